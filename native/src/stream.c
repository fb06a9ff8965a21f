/* Copies, also past the caches: a result that will not be read soon pushes nothing out of them. */
#include <string.h>

#include "hp_node.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

void hp_copy(void *dst, const void *src, size_t nbytes)
{
    if (nbytes > 0)
        memcpy(dst, src, nbytes);
}

#if defined(__x86_64__)
void hp_copy_streaming(void *dst, const void *src, size_t nbytes)
{
    char *to = dst;
    const char *from = src;
    const size_t head = (size_t)(-(uintptr_t)to & 63);
    if (nbytes < 256 + head) {
        hp_copy(to, from, nbytes);
        return;
    }
    memcpy(to, from, head);
    to += head, from += head, nbytes -= head;
    for (; nbytes >= 64; to += 64, from += 64, nbytes -= 64)
        for (int i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)from + i));
    _mm_sfence();
    hp_copy(to, from, nbytes);
}
#else
void hp_copy_streaming(void *dst, const void *src, size_t nbytes)
{
    hp_copy(dst, src, nbytes);
}
#endif

/*
 * Copies between a rank's arrays and slots that other cores read and write.
 *
 * The next lines are asked for ahead, those of a target for writing: lines that another core has
 * written last come slowly, and the string instructions that a libc uses for long copies ask for
 * few at a time. Results that will not be read soon are written past the caches.
 */
#include <string.h>

#include "hp_node.h"

#define AHEAD 512 /* bytes; more brought nothing, and less came late */
#define LINE HP_CACHE_LINE

#if defined(__x86_64__)
#include <emmintrin.h>

struct line {
    __m128i part[4];
};

static inline struct line load(const char *from)
{
    struct line line;
    for (int i = 0; i < 4; i++)
        line.part[i] = _mm_loadu_si128((const __m128i *)from + i);
    return line;
}

void hp_copy(void *dst, const void *src, size_t nbytes)
{
    char *to = dst;
    const char *from = src;
    for (; nbytes >= LINE; to += LINE, from += LINE, nbytes -= LINE) {
        __builtin_prefetch(to + AHEAD, 1);
        __builtin_prefetch(from + AHEAD);
        const struct line line = load(from);
        for (int i = 0; i < 4; i++)
            _mm_storeu_si128((__m128i *)to + i, line.part[i]);
    }
    if (nbytes > 0)
        memcpy(to, from, nbytes);
}

void hp_copy_streaming(void *dst, const void *src, size_t nbytes)
{
    char *to = dst;
    const char *from = src;
    const size_t head = (size_t)(-(uintptr_t)to & (LINE - 1));
    if (nbytes < head + LINE) {
        hp_copy(to, from, nbytes);
        return;
    }
    memcpy(to, from, head);
    to += head, from += head, nbytes -= head;
    for (; nbytes >= LINE; to += LINE, from += LINE, nbytes -= LINE) {
        __builtin_prefetch(from + AHEAD);
        const struct line line = load(from);
        for (int i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)to + i, line.part[i]);
    }
    _mm_sfence(); /* a later release does not order streamed stores */
    memcpy(to, from, nbytes);
}

void hp_copy_twice(void *near, void *far, const void *src, size_t nbytes)
{
    char *to = far, *other = near;
    const char *from = src;
    if ((uintptr_t)to % LINE) { /* streamed stores go to whole lines */
        hp_copy(near, src, nbytes);
        hp_copy_streaming(far, near, nbytes);
        return;
    }
    for (; nbytes >= LINE; to += LINE, other += LINE, from += LINE, nbytes -= LINE) {
        __builtin_prefetch(other + AHEAD, 1);
        __builtin_prefetch(from + AHEAD);
        const struct line line = load(from);
        for (int i = 0; i < 4; i++) {
            _mm_storeu_si128((__m128i *)other + i, line.part[i]);
            _mm_stream_si128((__m128i *)to + i, line.part[i]);
        }
    }
    _mm_sfence();
    memcpy(to, from, nbytes);
    memcpy(other, from, nbytes);
}
#else
void hp_copy(void *dst, const void *src, size_t nbytes)
{
    if (nbytes > 0)
        memcpy(dst, src, nbytes);
}

void hp_copy_streaming(void *dst, const void *src, size_t nbytes)
{
    hp_copy(dst, src, nbytes);
}

void hp_copy_twice(void *near, void *far, const void *src, size_t nbytes)
{
    hp_copy(near, src, nbytes);
    hp_copy(far, src, nbytes);
}
#endif

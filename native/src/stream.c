/*
 * Copies between a rank's arrays and slots that other cores read and write.
 *
 * The next lines are asked for ahead, those of a target for writing: lines that another core has
 * written last come slowly, and the string instructions that a libc uses for long copies ask for
 * few at a time. Results that will not be read soon are written past the caches.
 */
#include <string.h>

#include "engine.h"

/* Bytes that are asked for ahead: of other cores' caches, of memory. Less comes late. */
#define AHEAD 512
#define FAR_AHEAD 1024
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

static inline void put_line(char *to, const struct line *line, bool past)
{
    for (int i = 0; i < 4; i++)
        if (past)
            _mm_stream_si128((__m128i *)to + i, line->part[i]);
        else
            _mm_storeu_si128((__m128i *)to + i, line->part[i]);
}

static void copy_both(char *one, char *other, const char *from, size_t nbytes)
{
    memcpy(one, from, nbytes);
    memcpy(other, from, nbytes);
}

/* Whole lines of `far` past the caches, those of `other` past them or not. */
static inline void put_twice(char *other, char *far, const char *from, size_t nbytes, bool past)
{
    const size_t head = (size_t)(-(uintptr_t)far & (LINE - 1));
    size_t at = head < nbytes ? head : nbytes;
    copy_both(other, far, from, at);
    for (; at + LINE <= nbytes; at += LINE) {
        if (!past)
            __builtin_prefetch(other + at + AHEAD, 1);
        __builtin_prefetch(from + at + FAR_AHEAD);
        const struct line line = load(from + at);
        put_line(other + at, &line, past);
        put_line(far + at, &line, true);
    }
    _mm_sfence();
    copy_both(other + at, far + at, from + at, nbytes - at);
}

void hp_copy_twice(void *near, void *far, const void *src, size_t nbytes, bool past)
{
    const bool is_alike = ((uintptr_t)near - (uintptr_t)far) % sizeof(__m128i) == 0;
    if (!past) {
        put_twice(near, far, src, nbytes, false);
    } else if (is_alike) {
        put_twice(near, far, src, nbytes, true);
    } else { /* streamed stores are aligned */
        hp_copy_streaming(near, src, nbytes);
        hp_copy_streaming(far, src, nbytes);
    }
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

void hp_copy_twice(void *near, void *far, const void *src, size_t nbytes, bool past)
{
    (void)past;
    hp_copy(near, src, nbytes);
    hp_copy(far, src, nbytes);
}
#endif

void hp_copy_or_stream(void *dst, const void *src, uint64_t nbytes, bool past)
{
    if (past)
        hp_copy_streaming(dst, src, nbytes);
    else
        hp_copy(dst, src, nbytes);
}

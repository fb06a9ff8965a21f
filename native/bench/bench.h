/* The engine of the micro-benchmarks: the median of many rounds, each long enough to time. */
#ifndef HP_BENCH_H
#define HP_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hpcpar.h"

enum { HP_ROUNDS = 15 };

static inline double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds per call of `body(arg)`: the median of rounds of about 2 ms. */
static inline double time_ns(void (*body)(void *), void *arg)
{
    double rounds[HP_ROUNDS];
    body(arg);
    double start = now_ns();
    body(arg);
    const double once = now_ns() - start;
    const int calls = once > 2e6 ? 1 : (int)(2e6 / (once + 1)) + 1;
    for (int i = 0; i < HP_ROUNDS; i++) {
        start = now_ns();
        for (int j = 0; j < calls; j++)
            body(arg);
        rounds[i] = (now_ns() - start) / calls;
    }
    qsort(rounds, HP_ROUNDS, sizeof rounds[0], by_value);
    return rounds[HP_ROUNDS / 2];
}

/* `nbytes` counts what is read and written. */
static inline void report(const char *what, size_t size, double ns, size_t nbytes)
{
    printf("%-28s %10zu %12.1f ns", what, size, ns);
    if (nbytes)
        printf(" %8.2f GB/s", (double)nbytes / ns);
    printf("\n");
}

static inline void *filled(size_t nbytes)
{
    void *const memory = aligned_alloc(HP_CACHE_LINE, (nbytes + 63) / 64 * 64);
    if (!memory)
        exit(1);
    memset(memory, 0, nbytes);
    return memory;
}

#endif

/* What the C tests share: checks, repeatable random numbers, the levels of this machine. */
#ifndef HP_CHECK_H
#define HP_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hpcpar.h"

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static inline uint64_t random64(uint64_t *state)
{
    *state ^= *state << 13; /* xorshift64; the state is never 0 */
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline void random_bytes(void *out, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t word = random64(state);
        memcpy((char *)out + i, &word, n - i < 8 ? n - i : 8);
    }
}

/* Loop over the SIMD levels that this CPU runs; `k` is the level's kernels. */
#define FOR_EACH_LEVEL(k)                                                  \
    for (int level_ = 0; level_ < HP_NUM_LEVELS; level_++)                 \
        for (const struct hp_kernels *k = hp_kernels_of((enum hp_level)level_); k; k = NULL)

#endif

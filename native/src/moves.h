/* moves.h - what moves.c and lend.c share: which bytes of whose array a verb needs. */
#ifndef HP_MOVES_H
#define HP_MOVES_H

#include "engine.h"

static inline bool is_cut(const struct hp_call *call)
{
    return call->request.verb == HP_REDUCE_SCATTER || call->request.verb == HP_ALL_TO_ALL;
}

static inline int me(const struct hp_call *call)
{
    return call->team->rank;
}

static inline bool is_at_root(const struct hp_call *call)
{
    return call->request.root < 0 || call->request.root == me(call);
}

static inline uint64_t before(const uint64_t *counts, int rank)
{
    uint64_t sum = 0;
    for (int r = 0; r < rank; r++)
        sum += counts[r];
    return sum;
}

/* The slice of `nbytes` that rank `r` reduces: where it begins. */
static inline uint64_t slice(const struct hp_call *call, uint64_t nbytes, int r)
{
    const uint64_t size = (uint64_t)call->team->size;
    const uint64_t share = (nbytes + size - 1) / size;
    const uint64_t whole = (share + 63) & ~63ull;
    return whole * (uint64_t)r < nbytes ? whole * (uint64_t)r : nbytes;
}

/* Ranks whose arrays make up my result. */
int hp_move_num_sources(const struct hp_call *call);
/* Where byte `at` of what rank `r` gave me lies, in its post or a window; NULL: it was lent. */
const char *hp_move_source(const struct hp_call *call, int r, uint64_t at);
/* out = op over `srcs`; changes them. */
int hp_move_sum(const struct hp_call *call, char *out, const void **srcs, int count,
                uint64_t nbytes);
/* Copy a result to my array, past the caches if it leaves them anyhow. */
void hp_move_put(const struct hp_call *call, char *to, const void *from, uint64_t nbytes);

#endif

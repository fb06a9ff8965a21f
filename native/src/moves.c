/*
 * What each verb writes into slots and takes out of them.
 *
 * "Same" verbs pass one array of the same length; all_gather one block per rank; the rest a part
 * for each rank, which has a place of its own in a slot.
 */
#include <errno.h>
#include <string.h>

#include "moves.h"

#define BLOCK 8192

bool hp_move_is_sliced(const struct hp_call *call)
{
    return call->request.verb == HP_ALL_REDUCE && call->team->size > 1;
}

/*
 * Bytes of a chunk, or of one rank's place in it; the same on all ranks. Where only copies are to
 * be made and waits are short, shorter chunks stay in a nearer cache.
 */
static uint64_t grain(const struct hp_call *call)
{
    const struct hp_node *const node = call->team->node;
    if (is_cut(call))
        return (node->tuning.chunk / (uint64_t)call->team->size) & ~63ull;
    const bool copies = call->request.verb == HP_ALL_GATHER || call->request.verb == HP_BROADCAST;
    const bool is_short = node->tuning.copy_chunk >= HP_POST_DATA;
    return copies && node->spins > 0 && is_short ? node->tuning.copy_chunk : node->tuning.chunk;
}

static uint64_t most(const uint64_t *counts, int size)
{
    uint64_t largest = 0;
    for (int r = 0; r < size; r++)
        if (counts[r] > largest)
            largest = counts[r];
    return largest;
}

/* Bytes of the longest thing that I send. */
static uint64_t longest(const struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    if (q->verb == HP_BARRIER || q->verb == HP_EXCHANGE)
        return 0;
    if (q->verb == HP_BROADCAST && !is_at_root(call))
        return 0;
    return is_cut(call) ? most(q->send_counts, call->team->size) : q->nbytes;
}

uint64_t hp_move_steps(const struct hp_call *call)
{
    const uint64_t unit = grain(call);
    return (longest(call) + unit - 1) / unit;
}

bool hp_move_fits(const struct hp_call *call)
{
    const uint64_t parts = is_cut(call) ? (uint64_t)call->team->size : 1;
    return (longest(call) + 15) / 16 * 16 * parts <= HP_POST_DATA;
}

/* Whether ranks read what others wrote sooner from memory than from their caches. */
static bool is_far(const struct hp_call *call)
{
    return hp_line_is_far(call->team->node, call->team->line_ns) && !call->inline_data;
}

/* Whether what is read or written is so long that it does not stay in the caches. */
static bool leaves_caches(const struct hp_call *call)
{
    return call->request.nbytes >= call->team->node->tuning.stream;
}

/* Copy into my slot. */
static void fill(const struct hp_call *call, void *to, const void *from, uint64_t nbytes)
{
    hp_copy_or_stream(to, from, nbytes, is_far(call));
}

/* Copy part `q` from `at` on, up to a grain, to `to`. */
static void put_part(const struct hp_call *call, int q, uint64_t at, uint64_t unit, uint8_t *to)
{
    const struct hp_request *const request = &call->request;
    const uint64_t count = request->send_counts[q];
    if (q == me(call) || count <= at)
        return;
    const char *const from = (const char *)request->send + before(request->send_counts, q) + at;
    fill(call, to, from, count - at < unit ? count - at : unit);
}

void hp_move_inline(const struct hp_call *call, struct hp_post *post)
{
    const uint64_t length = longest(call);
    post->stride = (uint32_t)((length + 15) / 16 * 16);
    if (!is_cut(call) && length > 0)
        memcpy(post->data, call->request.send, length);
    for (int q = 0; is_cut(call) && q < call->team->size; q++)
        put_part(call, q, 0, length, post->data + (size_t)q * post->stride);
}

/* Whether others need what I have. */
static bool sends(const struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    if (q->verb == HP_BROADCAST)
        return is_at_root(call);
    if (q->verb == HP_REDUCE || q->verb == HP_ALL_GATHER)
        return q->root < 0 || q->root != me(call);
    return true;
}

/* Whether my result is written where others read; each may read only its own part itself. */
static bool overwrites(const struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    const char *const send = q->send, *const recv = q->recv;
    const bool writes = q->verb != HP_EXSCAN || me(call) > 0;
    if (!recv || !is_at_root(call) || !writes)
        return false;
    if (q->verb == HP_REDUCE || q->verb == HP_BROADCAST || q->verb == HP_ALL_REDUCE)
        return false; /* nobody reads what its owner overwrites */
    const uint64_t sent = is_cut(call) ? before(q->send_counts, call->team->size) : q->nbytes;
    const bool joins = q->verb == HP_ALL_GATHER || q->verb == HP_ALL_TO_ALL;
    const uint64_t part = q->verb == HP_REDUCE_SCATTER ? q->send_counts[me(call)] : q->nbytes;
    const uint64_t got = joins ? before(q->recv_counts, call->team->size) : part;
    if (q->verb == HP_ALL_GATHER && send == recv + before(q->recv_counts, me(call)))
        return false;
    return send < recv + got && recv < send + sent;
}

/* Where an array lies in windows; or lent, if need be. */
static struct hp_place offer(const struct hp_call *call, const void *begin, uint64_t nbytes)
{
    const struct hp_place place = hp_node_place(call->team->node, begin, nbytes);
    return place.at || !call->may_lend ? place : hp_lend(call->team->node, begin, nbytes);
}

/* Parts for others lie where a table in the post says, by rank. */
enum hp_offer hp_move_offer(const struct hp_call *call, struct hp_post *post)
{
    const struct hp_request *const q = &call->request;
    const uint64_t sent = is_cut(call) ? before(q->send_counts, call->team->size) : q->nbytes;
    post->send_in = sends(call) ? offer(call, q->send, sent) : (struct hp_place){0};
    if (hp_move_is_sliced(call))
        post->recv_in = offer(call, q->recv, q->nbytes);
    uint64_t *const table = (uint64_t *)post->data;
    for (int r = 0; is_cut(call) && post->send_in.at && r < call->team->size; r++)
        table[r] = before(q->send_counts, r);
    const bool has_all = (post->send_in.at || !sends(call)) &&
                         (post->recv_in.at || !hp_move_is_sliced(call));
    if (!has_all || overwrites(call))
        return HP_NOTHING;
    const bool is_lent = hp_place_is_lent(post->send_in) || hp_place_is_lent(post->recv_in);
    return is_lent ? HP_LENT : HP_IN_WINDOWS;
}

static uint8_t *slot(const struct hp_call *call, int rank, uint64_t step)
{
    return call->team->lanes[rank]->slots[(call->base + step) % HP_SLOTS];
}

/* Where my own block of a large all_gather goes: it is written while it is read to be sent. */
static char *own_block(const struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    const bool sends_and_takes = q->verb == HP_ALL_GATHER && q->root < 0;
    const bool in_chunks = sends_and_takes && !call->inline_data && !call->is_direct;
    if (!in_chunks || call->team->size == 1 || !leaves_caches(call))
        return NULL;
    return (char *)q->recv + before(q->recv_counts, me(call));
}

void hp_move_produce(const struct hp_call *call, uint64_t step)
{
    uint8_t *const to = slot(call, me(call), step);
    const uint64_t unit = grain(call);
    if (call->inline_data || call->team->size == 1 || !sends(call))
        return;
    if (is_cut(call)) {
        for (int q = 0; q < call->team->size; q++)
            put_part(call, q, step * unit, unit, to + (uint64_t)q * unit);
        return;
    }
    const uint64_t nbytes = hp_step_bytes(call->request.nbytes, step, unit);
    const char *const from = (const char *)call->request.send + step * unit;
    char *const own = own_block(call);
    if (own && own != call->request.send) {
        hp_copy_twice(to, own + step * unit, from, nbytes, is_far(call));
        return;
    }
    if (!hp_move_is_sliced(call)) {
        fill(call, to, from, nbytes);
        return;
    }
    const uint64_t begin = slice(call, nbytes, me(call)), end = slice(call, nbytes, me(call) + 1);
    fill(call, to, from, begin);
    fill(call, to + end, from + end, nbytes - end);
}

/* Whether the result is so long that it leaves the caches anyhow. In place it is there already. */
static bool is_streamed(const struct hp_call *call)
{
    return leaves_caches(call) && call->request.recv != call->request.send;
}

/* ---- taking ---------------------------------------------------------------------------- */

static struct hp_reduction reduction(const struct hp_call *call, void *out, void *also,
                                     const void **srcs, int count, uint64_t nbytes)
{
    const struct hp_request *const q = &call->request;
    return (struct hp_reduction){.out = out, .srcs = srcs, .num_srcs = (size_t)count,
                                 .count = nbytes / hp_itemsize(q->dtype), .dtype = q->dtype,
                                 .op = q->op, .factors = q->factors, .divisor = q->divisor,
                                 .also = also};
}

/* out = also = op over `srcs`, through the caches; also NULL: nowhere. */
static int reduce_twice(const struct hp_call *call, void *out, void *also, const void **srcs,
                        int count, uint64_t nbytes)
{
    const struct hp_reduction r = reduction(call, out, also, srcs, count, nbytes);
    return hp_reduce(call->team->node->kernels, &r);
}

static int reduce_near(const struct hp_call *call, void *out, const void **srcs, int count,
                       uint64_t nbytes)
{
    return reduce_twice(call, out, NULL, srcs, count, nbytes);
}

void hp_move_put(const struct hp_call *call, char *to, const void *from, uint64_t nbytes)
{
    if (nbytes > 0 && to != from)
        hp_copy_or_stream(to, from, nbytes, is_streamed(call));
}

/* Reduce block by block to my array, and to `to` unless it is NULL; none of it stays in caches. */
static int reduce_past(const struct hp_call *call, char *out, uint8_t *to, const void **srcs,
                       int count, uint64_t nbytes)
{
    _Alignas(HP_CACHE_LINE) char room[BLOCK];
    const struct hp_reduction whole = reduction(call, out, to, srcs, count, nbytes);
    if (is_streamed(call) && hp_reduce_past(call->team->node->kernels, &whole))
        return 0;
    for (uint64_t at = 0; at < nbytes; at += BLOCK) {
        const uint64_t now = hp_step_bytes(nbytes, at / BLOCK, BLOCK);
        const int rc = reduce_near(call, room, srcs, count, now);
        if (rc < 0)
            return rc;
        if (to)
            hp_copy_streaming(to + at, room, now);
        hp_move_put(call, out + at, room, now);
        for (int s = 0; s < count; s++)
            srcs[s] = (const char *)srcs[s] + now;
    }
    return 0;
}

int hp_move_sum(const struct hp_call *call, char *out, const void **srcs, int count,
                uint64_t nbytes)
{
    if (is_streamed(call))
        return reduce_past(call, out, NULL, srcs, count, nbytes);
    return reduce_near(call, out, srcs, count, nbytes);
}

const char *hp_move_source(const struct hp_call *call, int r, uint64_t at)
{
    const struct hp_request *const q = &call->request;
    const struct hp_post *const post = hp_call_post(call, r);
    if (r == me(call))
        return (const char *)q->send + (is_cut(call) ? before(q->send_counts, r) : 0) + at;
    if (hp_call_is_inline(call, r))
        return (const char *)post->data + (is_cut(call) ? me(call) * post->stride : 0u) + at;
    const uint64_t part = is_cut(call) ? ((const uint64_t *)post->data)[me(call)] : 0;
    return hp_place_is_lent(post->send_in)
               ? NULL
               : (const char *)hp_node_address(call->team->node, post->send_in) + part + at;
}

/* What rank `r` gave for chunk `step` of its array, or of its part for me. */
static const void *source(const struct hp_call *call, int r, uint64_t step)
{
    const uint64_t unit = grain(call);
    if (r == me(call) || hp_call_is_inline(call, r) || call->is_direct)
        return hp_move_source(call, r, step * unit);
    return slot(call, r, step) + (is_cut(call) ? (uint64_t)me(call) * unit : 0);
}

int hp_move_num_sources(const struct hp_call *call)
{
    if (!is_at_root(call))
        return 0;
    switch (call->request.verb) {
    case HP_SCAN: return me(call) + 1;
    case HP_EXSCAN: return me(call);
    default: return call->team->size;
    }
}

static int take_reduced(const struct hp_call *call, uint64_t step)
{
    const struct hp_request *const q = &call->request;
    const int count = hp_move_num_sources(call);
    const uint64_t length = is_cut(call) ? q->send_counts[me(call)] : q->nbytes;
    const uint64_t unit = grain(call), nbytes = hp_step_bytes(length, step, unit);
    if (count == 0 || nbytes == 0)
        return 0;
    const void *srcs[HP_MAX_LOCAL];
    for (int r = 0; r < count; r++)
        srcs[r] = source(call, r, step);
    return hp_move_sum(call, (char *)q->recv + step * unit, srcs, count, nbytes);
}

static void take_broadcast(const struct hp_call *call, uint64_t step)
{
    const struct hp_request *const q = &call->request;
    const uint64_t unit = grain(call);
    if (q->recv != q->send || q->root != me(call))
        hp_move_put(call, (char *)q->recv + step * unit, source(call, q->root, step),
            hp_step_bytes(q->nbytes, step, unit));
}

static void take_blocks(const struct hp_call *call, uint64_t step)
{
    const struct hp_request *const q = &call->request;
    const uint64_t unit = grain(call);
    if (!is_at_root(call) && q->verb == HP_ALL_GATHER)
        return;
    char *to = (char *)q->recv + step * unit;
    for (int r = 0; r < call->team->size; to += q->recv_counts[r++])
        if (r != me(call) || !own_block(call))
            hp_move_put(call, to, source(call, r, step),
                        hp_step_bytes(q->recv_counts[r], step, unit));
}

/* Copy what the others have reduced. */
static void take_slices(const struct hp_call *call, uint64_t step)
{
    const struct hp_request *const q = &call->request;
    const uint64_t unit = grain(call), nbytes = hp_step_bytes(q->nbytes, step, unit);
    char *const to = (char *)q->recv + step * unit;
    for (int r = 0; r < call->team->size; r++) {
        const uint64_t begin = slice(call, nbytes, r), end = slice(call, nbytes, r + 1);
        if (r != me(call))
            hp_move_put(call, to + begin, slot(call, r, step) + begin, end - begin);
    }
}

/* The result goes to its place in my slot, which nobody filled, and to my array. */
int hp_move_reduce(const struct hp_call *call, uint64_t step)
{
    const struct hp_request *const q = &call->request;
    const uint64_t unit = grain(call), nbytes = hp_step_bytes(q->nbytes, step, unit);
    const uint64_t begin = slice(call, nbytes, me(call)), end = slice(call, nbytes, me(call) + 1);
    const void *srcs[HP_MAX_LOCAL];
    if (end == begin)
        return 0;
    for (int r = 0; r < call->team->size; r++)
        srcs[r] = (const char *)source(call, r, step) + begin;
    char *const out = (char *)q->recv + step * unit + begin;
    uint8_t *const to = slot(call, me(call), step) + begin;
    if (is_far(call))
        return reduce_past(call, out, to, srcs, call->team->size, end - begin);
    const int rc = reduce_near(call, to, srcs, call->team->size, end - begin);
    hp_move_put(call, out, to, end - begin);
    return rc;
}

static char *result_of(const struct hp_call *call, int r)
{
    return hp_node_address(call->team->node, hp_call_post(call, r)->recv_in);
}

/* Reduce a block of all arrays where they lie, and write it where all results lie. */
static int reduce_block_everywhere(const struct hp_call *call, const void **srcs, uint64_t at,
                                   uint64_t nbytes)
{
    _Alignas(HP_CACHE_LINE) char room[BLOCK];
    const bool past = is_streamed(call);
    const int size = call->team->size, next = me(call) == 0;
    char *const out = past ? room : (char *)call->request.recv + at;
    char *const also = past ? NULL : result_of(call, next) + at; /* in the same pass */
    const int rc = reduce_twice(call, out, also, srcs, size, nbytes);
    for (int r = 0; rc == 0 && r < size; r++)
        if (past || (r != me(call) && r != next))
            hp_copy_or_stream(result_of(call, r) + at, out, nbytes, past);
    return rc;
}

/* Reduce my slice of a chunk where all arrays lie, and write it where all results lie. */
static int reduce_everywhere(const struct hp_call *call, uint64_t step)
{
    const struct hp_request *const q = &call->request;
    const uint64_t unit = grain(call), nbytes = hp_step_bytes(q->nbytes, step, unit);
    const uint64_t begin = step * unit + slice(call, nbytes, me(call));
    const uint64_t end = step * unit + slice(call, nbytes, me(call) + 1);
    const int size = call->team->size;
    const bool at_once = is_streamed(call) && size == 2;
    const uint64_t block = at_once ? end - begin : BLOCK;
    int rc = 0;
    for (uint64_t at = begin; rc == 0 && at < end; at += block) {
        const uint64_t now = end - at < block ? end - at : block;
        const void *srcs[HP_MAX_LOCAL];
        for (int r = 0; r < size; r++)
            srcs[r] = (const char *)source(call, r, 0) + at;
        if (at_once)
            rc = reduce_past(call, (char *)q->recv + at,
                             (uint8_t *)result_of(call, 1 - me(call)) + at, srcs, size, now);
        else
            rc = reduce_block_everywhere(call, srcs, at, now);
    }
    return rc;
}

int hp_move_consume(const struct hp_call *call, uint64_t step)
{
    switch (call->request.verb) {
    case HP_BARRIER:
    case HP_EXCHANGE: return 0;
    case HP_BROADCAST: take_broadcast(call, step); return 0;
    case HP_ALL_GATHER:
    case HP_ALL_TO_ALL: take_blocks(call, step); return 0;
    default: break;
    }
    if (!hp_move_is_sliced(call) || call->inline_data)
        return take_reduced(call, step);
    if (call->is_direct)
        return reduce_everywhere(call, step);
    take_slices(call, step);
    return 0;
}

/* With chunks to come as well (of other ranks) the first consume takes what came inline. */
int hp_move_take_inline(const struct hp_call *call)
{
    return call->steps == 0 ? hp_move_consume(call, 0) : 0;
}

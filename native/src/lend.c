/*
 * Arrays of other processes, read where they lie: the kernel copies once, where chunks through
 * shared memory are copied twice. Who lends an array waits until all have read it.
 *
 * Not everywhere may a process read another one: namespaces, Yama and seccomp forbid it. So each
 * rank tries it first, at the windows of the others, and arrays are lent only where all can.
 */
#ifdef __linux__
#define _GNU_SOURCE 1 /* process_vm_readv */
#include <sys/uio.h>
#include <unistd.h>
#endif
#include <errno.h>
#include <string.h>

#include "hp_atomic.h"
#include "moves.h"

enum reach { UNTRIED, REACHED, OUT_OF_REACH };

#ifdef __linux__
static uint64_t own_process(void)
{
    return (uint64_t)getpid();
}

/* Read `count` pieces to one place. 0, or why not. */
static int read_pieces(uint64_t process, const struct iovec *pieces, size_t count, void *to,
                       uint64_t nbytes)
{
    const struct iovec mine = {to, nbytes};
    const ssize_t got = process_vm_readv((pid_t)process, &mine, 1, pieces, count, 0);
    if (got == (ssize_t)nbytes)
        return 0;
    return got < 0 ? -errno : -EFAULT;
}
#else
struct iovec {
    void *iov_base;
    size_t iov_len;
};

static uint64_t own_process(void)
{
    return 0;
}

static int read_pieces(uint64_t process, const struct iovec *pieces, size_t count, void *to,
                       uint64_t nbytes)
{
    (void)process, (void)pieces, (void)count, (void)to, (void)nbytes;
    return -ENOSYS;
}
#endif

#define BYTES_AT_ONCE (UINT64_C(1) << 30) /* the kernel reads less than 2 GiB in one call */
#define LOST_AFTER_NS UINT64_C(2000000000) /* ties of who has ended hang up much sooner */

static int read_at(const struct hp_node *node, int place, uint64_t address, void *to,
                   uint64_t nbytes)
{
    const uint64_t process = hp_load_relaxed(&node->windows[place]->process);
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < nbytes; at += BYTES_AT_ONCE) {
        const uint64_t now = nbytes - at < BYTES_AT_ONCE ? nbytes - at : BYTES_AT_ONCE;
        const struct iovec there = {(void *)(uintptr_t)(address + at), now};
        rc = read_pieces(process, &there, 1, (char *)to + at, now);
    }
    return rc;
}

void hp_lend_begin(struct hp_node *node)
{
    struct hp_window *const mine = node->windows[node->index];
    hp_store_relaxed(&mine->process, own_process());
    hp_store_release(&mine->address, (uint64_t)(uintptr_t)mine);
}

/* The first bytes of a window say whose it is: another process of that number has none there. */
int hp_lend_confirm(const struct hp_node *node, int place)
{
    char seen[offsetof(struct hp_window, bells)];
    const struct hp_window *const its = node->windows[place];
    const uint64_t address = hp_load_acquire(&its->address); /* pairs with hp_lend_begin */
    const int rc = address ? read_at(node, place, address, seen, sizeof seen) : -EAGAIN;
    return rc == 0 && memcmp(seen, its, sizeof seen) != 0 ? -ESRCH : rc;
}

bool hp_node_reaches(struct hp_node *node, int peer)
{
    uint64_t known = hp_load_relaxed(&node->reach[peer]);
    if (known == UNTRIED) {
        known = hp_lend_confirm(node, peer) == 0 ? REACHED : OUT_OF_REACH;
        hp_store_relaxed(&node->reach[peer], known);
    }
    return known == REACHED;
}

/* A process lives on without its first thread, and then the kernel does not find it either. */
bool hp_lend_is_lost(uint64_t *since)
{
    const uint64_t now = hp_now();
    if (*since == 0)
        *since = now;
    return now - *since > LOST_AFTER_NS;
}

/* Memory of devices is not read by the kernel, wherever it is mapped. */
struct hp_place hp_lend(const struct hp_node *node, const void *begin, uint64_t nbytes)
{
    struct iovec ends[2] = {{(char *)begin, 1}, {(char *)begin + nbytes - 1, 1}};
    char seen[2];
    if (nbytes == 0 || read_pieces(own_process(), ends, 2, seen, sizeof seen) < 0)
        return (struct hp_place){0};
    return (struct hp_place){.at = (uint64_t)(uintptr_t)begin, .window = (uint32_t)node->index,
                             .is_lent = 1};
}

int hp_lend_read(const struct hp_node *node, struct hp_place lent, uint64_t at, void *to,
                 uint64_t nbytes)
{
    return nbytes == 0 ? 0 : read_at(node, (int)lent.window, lent.at + at, to, nbytes);
}

/* ---- collectives ------------------------------------------------------------------------ */

/* The same on all ranks, where what they receive is the same. */
uint64_t hp_lend_bytes(const struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    const int size = call->team->size;
    const bool joins = q->verb == HP_ALL_GATHER || q->verb == HP_ALL_TO_ALL;
    const uint64_t sent = is_cut(call) ? before(q->send_counts, size) : q->nbytes;
    const uint64_t received = joins ? before(q->recv_counts, size) : 0;
    return sent > received ? sent : received;
}

bool hp_lend_pays(const struct hp_call *call)
{
    const struct hp_team *const team = call->team;
    return team->reaches_all && hp_lend_bytes(call) >= team->node->tuning.lend;
}

/*
 * Why a member's array cannot be read: it has given up, or the kernel refuses. One that has ended
 * will be found by who looks at its ties, and must be found there first: else what follows an error
 * would still take it to be alive.
 */
static int lose(struct hp_call *call, int rank, int rc)
{
    call->blocked_on = rank;
    if (rc == -ESRCH && !hp_lend_is_lost(&call->refused_ns))
        return -EAGAIN;
    return hp_team_has(call->team, rank) ? -EFAULT : -ECANCELED;
}

/* Bytes from `at` on of what rank `r` gave me, or of its result. */
static int fetch(struct hp_call *call, int r, struct hp_place lent, uint64_t at, void *to,
                 uint64_t nbytes)
{
    const int rc = hp_lend_read(call->team->node, lent, at, to, nbytes);
    return rc < 0 ? lose(call, r, rc) : 0;
}

/* Where in what a member lends the part for me begins. */
static uint64_t part(const struct hp_call *call, int r)
{
    return is_cut(call) ? ((const uint64_t *)hp_call_post(call, r)->data)[me(call)] : 0;
}

/*
 * Each member's bytes have a part of my slots. Nobody uses these meanwhile: who has posted this
 * call has left the one before.
 */
static uint64_t room_of_each(const struct hp_call *call)
{
    const uint64_t others = (uint64_t)call->team->size - 1;
    const uint64_t share = HP_SLOTS * HP_SLOT_BYTES / (others * 2) & ~63ull;
    return share < HP_SLOT_BYTES / 2 ? share : HP_SLOT_BYTES / 2;
}

/* out = op over bytes `at` to `at + nbytes` of what `count` members gave me. */
static int reduce_block(struct hp_call *call, int count, uint64_t at, char *out, uint64_t nbytes)
{
    const void *srcs[HP_MAX_LOCAL];
    char *room = (char *)call->team->lanes[me(call)]->slots;
    for (int r = 0; r < count; r++) {
        srcs[r] = hp_move_source(call, r, at);
        if (srcs[r])
            continue;
        const struct hp_place lent = hp_call_post(call, r)->send_in;
        const int rc = fetch(call, r, lent, part(call, r) + at, room, nbytes);
        if (rc < 0)
            return rc;
        srcs[r] = room;
        room += room_of_each(call);
    }
    return hp_move_sum(call, out, srcs, count, nbytes);
}

static int reduce_range(struct hp_call *call, int count, uint64_t begin, uint64_t end, char *out)
{
    const uint64_t block = room_of_each(call);
    int rc = 0;
    for (uint64_t at = begin; rc == 0 && at < end; at += block)
        rc = reduce_block(call, count, at, out + (at - begin), end - at < block ? end - at : block);
    return rc;
}

int hp_lend_reduce(struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    const uint64_t begin = slice(call, q->nbytes, me(call));
    const uint64_t end = slice(call, q->nbytes, me(call) + 1);
    return reduce_range(call, call->team->size, begin, end, (char *)q->recv + begin);
}

/* Copy slices that the others have reduced. */
static int take_slices(struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    int rc = 0;
    for (int i = 1; rc == 0 && i < call->team->size; i++) {
        const int r = (me(call) + i) % call->team->size;
        const uint64_t begin = slice(call, q->nbytes, r), end = slice(call, q->nbytes, r + 1);
        const struct hp_place its = hp_call_post(call, r)->recv_in;
        char *const to = (char *)q->recv + begin;
        if (hp_place_is_lent(its))
            rc = fetch(call, r, its, begin, to, end - begin);
        else
            hp_move_put(call, to, (char *)hp_node_address(call->team->node, its) + begin,
                        end - begin);
    }
    return rc;
}

/* Copy a member's whole part for me. */
static int take_part(struct hp_call *call, int r, char *to, uint64_t nbytes)
{
    const char *const from = hp_move_source(call, r, 0);
    if (!from)
        return fetch(call, r, hp_call_post(call, r)->send_in, part(call, r), to, nbytes);
    hp_move_put(call, to, from, nbytes);
    return 0;
}

/* Each begins behind itself, so that not all read of one. */
static int take_parts(struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    const int size = call->team->size;
    int rc = 0;
    for (int i = 0; rc == 0 && is_at_root(call) && i < size; i++) {
        const int r = (me(call) + i) % size;
        rc = take_part(call, r, (char *)q->recv + before(q->recv_counts, r), q->recv_counts[r]);
    }
    return rc;
}

static int take_reduced(struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    const uint64_t length = is_cut(call) ? q->send_counts[me(call)] : q->nbytes;
    const int count = hp_move_num_sources(call);
    return count == 0 ? 0 : reduce_range(call, count, 0, length, q->recv);
}

int hp_lend_take(struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    switch (q->verb) {
    case HP_BROADCAST:
        return q->root == me(call) && q->recv == q->send
                   ? 0
                   : take_part(call, q->root, q->recv, q->nbytes);
    case HP_ALL_GATHER:
    case HP_ALL_TO_ALL: return take_parts(call);
    case HP_ALL_REDUCE: return take_slices(call);
    default: return take_reduced(call);
    }
}

int hp_lend_confirm_all(struct hp_call *call)
{
    const struct hp_team *const team = call->team;
    for (int r = 0; r < team->size; r++) {
        const int rc = r == team->rank ? 0 : hp_lend_confirm(team->node, team->members[r]);
        if (rc < 0)
            return lose(call, r, rc);
    }
    return 0;
}

/* engine.h - what the files of the node engine share. */
#ifndef HP_ENGINE_H
#define HP_ENGINE_H

#include "hp_node.h"

/* Reserve the memory of my slots; -ENOMEM. */
int hp_team_reserve(struct hp_team *team);
/* Get memory for a part of my window, so that a full machine is an error and no SIGBUS. */
int hp_node_reserve(const struct hp_node *node, const void *begin, uint64_t nbytes);

/* Wake all threads of a rank that sleep. */
void hp_node_ring(const struct hp_node *node, int place);
/* How a thread looks at what it waits for; HP_PENDING: not yet. */
struct hp_waits {
    int (*advance)(void *waiter); /* again and again */
    int (*settle)(void *waiter);  /* once it listens to its bell, before it sleeps */
};
/* Wait up to `nanoseconds`: spin, then sleep on my bell of the lane. */
int hp_bell_wait(const struct hp_node *node, int lane, const struct hp_waits *how, void *waiter,
                 uint64_t nanoseconds);
/* The same for who has spun: sleep at once. */
int hp_bell_doze(const struct hp_node *node, int lane, const struct hp_waits *how, void *waiter,
                 uint64_t nanoseconds);

/* About what a line of another rank's cache takes, after one took `took` nanoseconds to come. */
int hp_line_after(const struct hp_node *node, int line_ns, uint64_t took);
/* Whether ranks read what others wrote sooner from memory than from their caches. */
bool hp_line_is_far(const struct hp_node *node, int line_ns);

/* The address of a place in a window. */
void *hp_node_address(const struct hp_node *node, struct hp_place place);
/* dst = src, past the caches or through them. */
void hp_copy_or_stream(void *dst, const void *src, uint64_t nbytes, bool past);
/* Bytes of `length` that belong to a step. */
static inline uint64_t hp_step_bytes(uint64_t length, uint64_t step, uint64_t unit)
{
    const uint64_t at = step * unit;
    return length <= at ? 0 : length - at < unit ? length - at : unit;
}

/* moves.c: what each verb does. */

/* Chunks that this rank needs. */
uint64_t hp_move_steps(const struct hp_call *call);
/* Whether all that I send goes with the post. */
bool hp_move_fits(const struct hp_call *call);
/* Write what I send into the post. */
void hp_move_inline(const struct hp_call *call, struct hp_post *post);
/* Say in the post where what others read or write lies, and whether they may do so there. */
enum hp_offer { HP_NOTHING, HP_IN_WINDOWS, HP_LENT };
enum hp_offer hp_move_offer(const struct hp_call *call, struct hp_post *post);
/* Write chunk `step` of what I send into my slot. */
void hp_move_produce(const struct hp_call *call, uint64_t step);
/* Reduce my slice of a chunk, where the verb has that stage. */
int hp_move_reduce(const struct hp_call *call, uint64_t step);
/* Take chunk `step` of what the others sent. */
int hp_move_consume(const struct hp_call *call, uint64_t step);
/* Take what came with the posts. */
int hp_move_take_inline(const struct hp_call *call);
/* Whether the verb reduces slice by slice, in a stage of its own. */
bool hp_move_is_sliced(const struct hp_call *call);

/* lend.c: arrays that other ranks read where they lie, through the kernel. */

/* Tell others where they may read. */
void hp_lend_begin(struct hp_node *node);
/* Lend an array; at 0: the kernel does not read it. */
struct hp_place hp_lend(const struct hp_node *node, const void *begin, uint64_t nbytes);
/* Read what a rank has lent, from byte `at` on. -ESRCH: it has ended; or why not. */
int hp_lend_read(const struct hp_node *node, struct hp_place lent, uint64_t at, void *to,
                 uint64_t nbytes);
/* After what was read: 0 if it was that rank's, and no other process has its number by now. */
int hp_lend_confirm(const struct hp_node *node, int place);
/* Whether a rank that the kernel does not find, since *since, has had the time to be found dead. */
bool hp_lend_is_lost(uint64_t *since);
static inline bool hp_place_is_lent(struct hp_place place)
{
    return place.is_lent;
}
/* Bytes that a rank sends or receives in a call; whether they are enough to lend arrays. */
uint64_t hp_lend_bytes(const struct hp_call *call);
bool hp_lend_pays(const struct hp_call *call);
/*
 * Reduce my slice of the whole array, where all can read it; take all that I need of the others.
 * -EAGAIN: a member's process has ended, which others will find.
 */
int hp_lend_reduce(struct hp_call *call);
int hp_lend_take(struct hp_call *call);
/* hp_lend_confirm for all members. */
int hp_lend_confirm_all(struct hp_call *call);

/* ways.c: which of two ways was faster lately. */
enum hp_way_of { HP_BY_CHUNKS, HP_BY_LENDING };
/* Which class what is long enough to be lent belongs to. */
int hp_ways_class(const struct hp_node *node, uint64_t nbytes);
enum hp_way_of hp_ways_choose(struct hp_ways *ways);
void hp_ways_tell(struct hp_ways *ways, enum hp_way_of way, uint64_t nbytes, uint64_t took);

/* Whether all that a member sends came with its post. */
bool hp_call_is_inline(const struct hp_call *call, int rank);
/* The post of a member for the call. */
const struct hp_post *hp_call_post(const struct hp_call *call, int rank);

#endif

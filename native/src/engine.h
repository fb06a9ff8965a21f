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
/* Say in the post where what others read or write lies; whether they may do so there. */
bool hp_move_offer(const struct hp_call *call, struct hp_post *post);
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

/* Whether all that a member sends came with its post. */
bool hp_call_is_inline(const struct hp_call *call, int rank);
/* The post of a member for the call. */
const struct hp_post *hp_call_post(const struct hp_call *call, int rank);

#endif

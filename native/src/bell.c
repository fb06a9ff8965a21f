/*
 * Sleeping and waking. A thread sleeps on one word only, its rank's bell of the lane that it waits
 * on, whatever it waits for.
 *
 * The publisher stores progress and then looks at `sleepers`; the waiter counts itself among the
 * sleepers, reads the bell and then looks at the progress. Both sides are seq_cst, so at least
 * one of them sees the other: either the waiter finds the progress, or the publisher rings. A ring
 * between the read of the bell and the sleep changes the bell, and the kernel refuses to sleep.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "hp_atomic.h"
#include "hp_mail.h"

#define YIELD_NS 200000 /* others may take much longer at each turn, so turns are not counted */

static long futex(const _Atomic uint32_t *word, int what, uint32_t value,
                  const struct timespec *timeout)
{
    return syscall(SYS_futex, word, what, value, timeout, NULL, 0);
}

void hp_bell_ring(struct hp_bell *bell)
{
    if (hp_load32_ordered(&bell->sleepers) == 0)
        return;
    hp_add32_ordered(&bell->rings, 1);
    futex(&bell->rings, FUTEX_WAKE, INT_MAX, NULL);
}

uint32_t hp_bell_enter(struct hp_bell *bell)
{
    hp_add32_ordered(&bell->sleepers, 1);
    return hp_load32_ordered(&bell->rings);
}

void hp_bell_sleep(struct hp_bell *bell, uint32_t heard, uint64_t nanoseconds)
{
    const struct timespec limit = {.tv_sec = (time_t)(nanoseconds / 1000000000u),
                                   .tv_nsec = (long)(nanoseconds % 1000000000u)};
    futex(&bell->rings, FUTEX_WAIT, heard, &limit);
}

void hp_bell_leave(struct hp_bell *bell)
{
    hp_add32_ordered(&bell->sleepers, (uint32_t)-1);
}

void hp_node_ring(const struct hp_node *node, int place)
{
    for (int lane = 0; lane < HP_LANES; lane++)
        hp_bell_ring(&node->windows[place]->bells[lane]);
}

static struct hp_bell *bell_of(const struct hp_team *team, int rank)
{
    return &team->node->windows[team->members[rank]]->bells[team->lane];
}

void hp_team_ring(const struct hp_team *team)
{
    for (int r = 0; r < team->size; r++)
        if (r != team->rank && team->wakes_all)
            hp_node_ring(team->node, team->members[r]);
        else if (r != team->rank)
            hp_bell_ring(bell_of(team, r));
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Where ranks outnumber cores, who is awaited may wait for this one: cheaper than to be woken. */
static int give_way(const struct hp_waits *how, void *waiter)
{
    const uint64_t began = hp_now();
    int rc = how->advance(waiter);
    while (rc == HP_PENDING && hp_now() - began < YIELD_NS) {
        sched_yield();
        rc = how->advance(waiter);
    }
    return rc;
}

/* Look again and again while that is cheaper than to sleep. */
static int spin(const struct hp_node *node, const struct hp_waits *how, void *waiter)
{
    if (node->spins == 0)
        return give_way(how, waiter);
    int rc = how->advance(waiter);
    for (unsigned i = 0; rc == HP_PENDING && i < node->spins; i++) {
        relax();
        rc = how->advance(waiter);
    }
    return rc;
}

/* Sleep until the bell rings, `nanoseconds` at most, unless the waiter can move on. */
static int doze(const struct hp_node *node, struct hp_bell *mine, const struct hp_waits *how,
                void *waiter, uint64_t nanoseconds)
{
    const uint32_t heard = hp_bell_enter(mine);
    if (node->mail)
        hp_mail_stir(node->mail); /* who is waited for may have to send to me before it comes */
    const int rc = how->settle(waiter);
    if (rc == HP_PENDING)
        hp_bell_sleep(mine, heard, nanoseconds);
    hp_bell_leave(mine);
    return rc;
}

int hp_bell_wait(const struct hp_node *node, int lane, const struct hp_waits *how, void *waiter,
                 uint64_t nanoseconds)
{
    const int rc = spin(node, how, waiter);
    return rc == HP_PENDING ? hp_bell_doze(node, lane, how, waiter, nanoseconds) : rc;
}

int hp_bell_doze(const struct hp_node *node, int lane, const struct hp_waits *how, void *waiter,
                 uint64_t nanoseconds)
{
    struct hp_bell *const mine = &node->windows[node->index]->bells[lane];
    const uint64_t began = hp_now();
    int rc = HP_PENDING;
    for (uint64_t gone = 0; rc == HP_PENDING && gone < nanoseconds; gone = hp_now() - began) {
        rc = doze(node, mine, how, waiter, nanoseconds - gone);
        if (rc == HP_PENDING && hp_now() - began < nanoseconds) /* it was woken */
            rc = spin(node, how, waiter);
    }
    return rc;
}

static int advance_call(void *call)
{
    return hp_call_advance(call);
}

/* Death and departure are looked at too. */
static int settle_call(void *call)
{
    const int rc = hp_call_advance(call);
    return rc == HP_PENDING ? hp_call_look(call) : rc;
}

static const struct hp_waits how_calls_wait = {advance_call, settle_call};

int hp_call_run(struct hp_call *call, uint64_t nanoseconds)
{
    const struct hp_team *const team = call->team;
    return hp_bell_wait(team->node, team->lane, &how_calls_wait, call, nanoseconds);
}

int hp_call_doze(struct hp_call *call, uint64_t nanoseconds)
{
    const struct hp_team *const team = call->team;
    return hp_bell_doze(team->node, team->lane, &how_calls_wait, call, nanoseconds);
}

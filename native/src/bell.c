/*
 * Sleeping and waking. A rank sleeps on one word only, its bell, whatever it waits for.
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

static long futex(const _Atomic uint32_t *word, int what, uint32_t value,
                  const struct timespec *timeout)
{
    return syscall(SYS_futex, word, what, value, timeout, NULL, 0);
}

void hp_bell_ring(struct hp_window *window)
{
    if (hp_load32_ordered(&window->sleepers) == 0)
        return;
    hp_add32_ordered(&window->bell, 1);
    futex(&window->bell, FUTEX_WAKE, INT_MAX, NULL);
}

void hp_team_ring(const struct hp_team *team)
{
    for (int r = 0; r < team->size; r++)
        if (r != team->rank)
            hp_bell_ring(team->node->windows[team->members[r]]);
}

uint64_t hp_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Look again and again while that is cheaper than to sleep. */
static int spin(struct hp_call *call)
{
    int rc = hp_call_advance(call);
    for (unsigned i = 0; rc == HP_PENDING && i < call->team->node->spins; i++) {
        relax();
        rc = hp_call_advance(call);
    }
    return rc;
}

/* Sleep until the bell rings, `nanoseconds` at most, unless the call can move on. */
static int doze(struct hp_call *call, uint64_t nanoseconds)
{
    const struct hp_team *const team = call->team;
    struct hp_window *const mine = team->node->windows[team->members[team->rank]];
    const struct timespec limit = {.tv_sec = (time_t)(nanoseconds / 1000000000u),
                                   .tv_nsec = (long)(nanoseconds % 1000000000u)};
    hp_add32_ordered(&mine->sleepers, 1);
    const uint32_t heard = hp_load32_ordered(&mine->bell);
    int rc = hp_call_advance(call);
    if (rc == HP_PENDING)
        rc = hp_call_look(call); /* death and departure */
    if (rc == HP_PENDING) {
        futex(&mine->bell, FUTEX_WAIT, heard, &limit);
        rc = hp_call_advance(call);
    }
    hp_add32_ordered(&mine->sleepers, (uint32_t)-1);
    return rc;
}

int hp_call_run(struct hp_call *call, uint64_t nanoseconds)
{
    int rc = spin(call);
    if (rc != HP_PENDING)
        return rc;
    const uint64_t began = hp_now();
    for (uint64_t gone = 0; rc == HP_PENDING && gone < nanoseconds; gone = hp_now() - began) {
        rc = doze(call, nanoseconds - gone);
        if (rc == HP_PENDING)
            rc = spin(call);
    }
    return rc;
}

/* Groups that ranks call in different orders are found out; groups that are just busy are not. */
#define _GNU_SOURCE
#include "ranks.h"

enum { NUM_GROUPS = 2, ROUNDS = 300 };

static struct hp_team *new_group(struct rank *rank, uint64_t key)
{
    struct hp_team *const team = calloc(1, sizeof *team);
    CHECK(team && hp_node_claim(&rank->node, key) > 0);
    join(rank, key, team, 0);
    team->key = key;
    return team;
}

/* Wait in slices, and after each say for whom and look for a cycle, as the callers do. */
static int wait_for(struct hp_call *call, uint64_t slice, uint64_t limit)
{
    const uint64_t end = now_ns() + limit;
    int rc = HP_PENDING;
    while (rc == HP_PENDING && now_ns() < end) {
        rc = hp_call_run(call, slice);
        if (rc == HP_PENDING)
            hp_call_tell_wait(call);
        if (rc == HP_PENDING)
            rc = hp_call_find_cycle(call);
    }
    hp_team_end_wait(call->team);
    return rc;
}

static int barrier(struct hp_team *team, uint64_t slice, uint64_t limit)
{
    const struct hp_request request = {.verb = HP_BARRIER, .root = -1, .is_ready = true};
    struct hp_call call;
    hp_call_begin(&call, team, &request);
    return wait_for(&call, slice, limit);
}

/*
 * Rank 0 calls the first group, the others the second. Ranks 0 and 1 wait for each other and see
 * it; the others are in no cycle: they are let wait for rank 0.
 */
static void cross(struct rank *rank)
{
    struct hp_team *const teams[NUM_GROUPS] = {new_group(rank, 501), new_group(rank, 502)};
    struct hp_team *const mine = teams[rank->index > 0];
    const int rc = barrier(mine, 20000000, rank->index < 2 ? 2 * SECOND : SECOND / 2);
    if (rank->index < 2) {
        CHECK(rc == -EDEADLK && mine->cycle_length == 2);
        CHECK(mine->cycle[0].place == rank->index && mine->cycle[0].on == 1 - rank->index);
        CHECK(mine->cycle[1].place == 1 - rank->index && mine->cycle[1].on == rank->index);
        CHECK(mine->cycle[0].key == (rank->index ? 502 : 501) && mine->cycle[0].seq == 1);
    } else {
        CHECK(rc != HP_DONE && rc != HP_HEADERS);
    }
    hp_team_give_up(mine);
    meet(rank);
    free(teams[0]);
    free(teams[1]);
}

/* The groups are called in turns, so ranks wait for each other in both, but never for ever. */
static void be_busy(struct rank *rank)
{
    struct hp_team *const teams[NUM_GROUPS] = {new_group(rank, 501), new_group(rank, 502)};
    for (int i = 0; i < ROUNDS; i++) {
        dawdle(&rank->random);
        CHECK(barrier(teams[i % 2], 1000, 60 * SECOND) == HP_DONE);
    }
    meet(rank);
    free(teams[0]);
    free(teams[1]);
}

static _Atomic int num_busy; /* ranks whose groups come and go */

/* Look at the posts of these groups, as who follows the waits of others does. */
static void watch(struct rank *rank)
{
    const struct hp_window *const window = rank->node.windows[1];
    while (num_busy > 0) {
        const uint64_t key = window->keys[1];
        if (key != 0)
            CHECK(hp_node_posted(&rank->node, 1, key, 1) <= 1);
    }
}

static void live_once(struct rank *rank, uint64_t key)
{
    struct hp_team *const team = calloc(1, sizeof *team);
    int members[MAX_RANKS], areas[MAX_RANKS];
    const int size = rank->world->size - 1;
    CHECK(team && hp_node_claim(&rank->node, key) == 1);
    for (int r = 0; r < size; r++) {
        members[r] = r + 1;
        while ((areas[r] = hp_node_find(&rank->node, r + 1, key)) == -EAGAIN)
            sched_yield();
    }
    hp_team_init(team, &rank->node, members, areas, size, rank->index - 1, 0);
    CHECK(barrier(team, 1000, 60 * SECOND) == HP_DONE);
    hp_node_close(&rank->node, 1);
    for (int r = 0; r < size; r++)
        while (!hp_node_is_closed(&rank->node, r + 1, areas[r], key))
            sched_yield();
    hp_node_release(&rank->node, 1);
    free(team);
}

/* Groups of all but rank 0 come and go in one area, while rank 0 looks at them. */
static void come_and_go(struct rank *rank)
{
    if (rank->index == 0)
        num_busy = rank->world->size - 1;
    meet(rank);
    if (rank->index == 0)
        watch(rank);
    for (uint64_t key = 1000; key < 1000 + ROUNDS && rank->index > 0; key++)
        live_once(rank, key);
    if (rank->index > 0)
        num_busy--;
}

int main(void)
{
    for (int size = 2; size <= 5; size++) {
        run_ranks(size, HP_SLOT_BYTES, 0, cross);
        run_ranks(size, HP_SLOT_BYTES, 0, be_busy);
        run_ranks(size, HP_SLOT_BYTES, 0, come_and_go);
    }
    return 0;
}

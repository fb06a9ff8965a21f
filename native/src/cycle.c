/*
 * Groups called in different orders: rank 0 waits in one group for rank 1, which waits in another
 * for rank 0. No deadline is needed to know that this never ends.
 *
 * A rank that has waited for a while for a member's post says so in its window. Who waits as well
 * follows these words from rank to rank. What it reads is true at different moments, so it goes
 * round twice: if nothing has changed, all of it was true at once in between, and ranks that are
 * blocked stay so.
 */
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "hp_atomic.h"

#define HOLD_NS 80000000 /* time for the others in the cycle to see it too, before one leaves */

static struct hp_wait *my_wait(const struct hp_team *team)
{
    return &team->node->windows[team->members[team->rank]]->wait;
}

/* Only the owner writes; readers compare the turn before and after. */
static void write_wait(struct hp_wait *wait, uint64_t key, uint64_t seq, uint64_t on)
{
    const uint64_t turn = hp_load_relaxed(&wait->turn);
    hp_store_ordered(&wait->turn, turn + 1);
    hp_store_ordered(&wait->key, key);
    hp_store_ordered(&wait->seq, seq);
    hp_store_ordered(&wait->on, on);
    hp_store_ordered(&wait->turn, turn + 2);
}

static bool read_wait(const struct hp_node *node, int place, struct hp_link *link)
{
    const struct hp_wait *const its = &node->windows[place]->wait;
    link->place = place;
    link->turn = hp_load_ordered(&its->turn);
    link->key = hp_load_ordered(&its->key);
    link->seq = hp_load_ordered(&its->seq);
    link->on = (int)hp_load_ordered(&its->on);
    return link->turn % 2 == 0 && link->key != 0 && link->on >= 0 && link->on < node->size &&
           hp_load_ordered(&its->turn) == link->turn;
}

/* Whether the rank has posted its part of the call, and the one that it waits for has not. */
static bool is_true(const struct hp_node *node, const struct hp_link *link)
{
    const uint64_t mine = hp_node_posted(node, link->place, link->key, link->seq);
    const uint64_t its = hp_node_posted(node, link->on, link->key, link->seq);
    return mine == link->seq && its < link->seq;
}

/* Follow the waits from `place` back to it: how many there are, 0 if they lead elsewhere. */
static int follow(const struct hp_node *node, int place, struct hp_link *links)
{
    int next = place;
    for (int n = 0; n < HP_MAX_CYCLE && n < node->size; n++) {
        if (!read_wait(node, next, &links[n]) || !is_true(node, &links[n]))
            return 0;
        next = links[n].on;
        if (next == place)
            return n + 1;
    }
    return 0;
}

void hp_call_tell_wait(const struct hp_call *call)
{
    const struct hp_team *const team = call->team;
    const bool waits = call->phase == HP_POSTED && call->blocked_on >= 0;
    struct hp_wait *const wait = my_wait(team);
    const uint64_t on = waits ? (uint64_t)team->members[call->blocked_on] : 0;
    const uint64_t key = waits ? team->key : 0;
    if (hp_load_relaxed(&wait->key) != key || hp_load_relaxed(&wait->seq) != call->seq ||
        hp_load_relaxed(&wait->on) != on)
        write_wait(wait, key, call->seq, on);
}

void hp_team_end_wait(const struct hp_team *team)
{
    if (hp_load_relaxed(&my_wait(team)->key) != 0)
        write_wait(my_wait(team), 0, 0, 0);
}

int hp_call_find_cycle(struct hp_call *call)
{
    struct hp_team *const team = call->team;
    const struct hp_node *const node = team->node;
    const int place = team->members[team->rank];
    if (call->cycle_ns != 0)
        return hp_now() - call->cycle_ns > HOLD_NS ? -EDEADLK : HP_PENDING;
    struct hp_link again[HP_MAX_CYCLE];
    const int length = follow(node, place, team->cycle);
    if (length == 0 || follow(node, place, again) != length)
        return HP_PENDING;
    for (int i = 0; i < length; i++)
        if (again[i].place != team->cycle[i].place || again[i].turn != team->cycle[i].turn)
            return HP_PENDING;
    team->cycle_length = length;
    call->cycle_ns = hp_now();
    return HP_PENDING;
}

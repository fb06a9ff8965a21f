/*
 * A collective's way: post, agree, move chunks. It never blocks, so that one thread can move
 * several on; bell.c waits.
 *
 * Everybody's post is awaited before anything else, whatever the verb. So a rank that posts number
 * k + 2 knows that all have read number k, and two posts per rank are enough. The chunks of all
 * collectives of a lane are numbered through; slot n % HP_SLOTS is written when all ranks have
 * taken chunk n - HP_SLOTS.
 */
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "hp_atomic.h"

#define SAMPLED 2 /* of how many chunks one is timed */

/* Flags of a post. REACHES: I can read what others lend; LENDING: rank 0 wants that. */
enum { READY = 1, INLINE = 2, DIRECT = 4, LENT = 8, REACHES = 16, LENDING = 32 };

enum { FILLED, REDUCED, TAKEN }; /* counters of a lane */

static _Atomic uint64_t *counter(struct hp_lane *lane, int which)
{
    return which == FILLED ? &lane->filled : which == REDUCED ? &lane->reduced : &lane->taken;
}

static struct hp_lane *my_lane(const struct hp_call *call)
{
    return call->team->lanes[call->team->rank];
}

const struct hp_post *hp_call_post(const struct hp_call *call, int rank)
{
    return &call->team->lanes[rank]->posts[call->seq & 1];
}

const void *hp_call_header(const struct hp_call *call, int rank)
{
    return hp_call_post(call, rank)->header;
}

bool hp_call_has_come(const struct hp_call *call, int rank)
{
    return hp_load_ordered(&hp_call_post(call, rank)->seq) == call->seq; /* pairs with post() */
}

/* Whether a member waits, or has waited in vain, for the same that we wait for. */
static bool has_waited(const struct hp_call *call, int rank)
{
    return (hp_load_ordered(&hp_call_post(call, rank)->seq) & ~HP_WITHDRAWN) == call->seq;
}

bool hp_call_is_missing(const struct hp_call *call, int rank)
{
    return !has_waited(call, rank) || (call->phase == HP_MOVING && rank == call->blocked_on);
}

bool hp_call_is_inline(const struct hp_call *call, int rank)
{
    return hp_call_post(call, rank)->flags & INLINE;
}

void hp_call_begin(struct hp_call *call, struct hp_team *team, const struct hp_request *request)
{
    memset(call, 0, sizeof *call);
    call->team = team;
    call->request = *request;
    call->seq = ++team->seq;
    call->blocked_on = -1;
}

/* What rank 0 knows of calls like this one. */
static struct hp_ways *ways_of(const struct hp_call *call)
{
    const struct hp_request *const q = &call->request;
    const int size = hp_ways_class(call->team->node, hp_lend_bytes(call));
    const bool is_other = q->root < 0 ? q->send == q->recv : q->root > 0;
    return &call->team->ways[q->verb][is_other][size];
}

/* What others may do with my arrays. */
static uint32_t offer(struct hp_call *call, struct hp_post *mine)
{
    const enum hp_offer offered = hp_move_offer(call, mine);
    return offered == HP_IN_WINDOWS ? DIRECT : offered == HP_LENT ? LENT : 0;
}

/* Rank 0 says which way all shall take, if all can. */
static uint32_t choose(const struct hp_call *call)
{
    const bool chooses = call->may_lend && call->team->rank == 0;
    return chooses && hp_ways_choose(ways_of(call)) == HP_BY_LENDING ? LENDING : 0;
}

static void post(struct hp_call *call)
{
    struct hp_post *const mine = &my_lane(call)->posts[call->seq & 1];
    const struct hp_request *const request = &call->request;
    call->inline_data = hp_move_fits(call);
    call->may_lend = hp_lend_pays(call);
    mine->print = request->print;
    mine->flags = (request->is_ready ? READY : 0u) | (call->inline_data ? INLINE : 0u);
    mine->flags |= (call->team->reaches_all ? REACHES : 0u) | choose(call);
    mine->steps = call->inline_data ? 0 : hp_move_steps(call);
    if (request->header)
        memcpy(mine->header, request->header, HP_POST_HEADER);
    if (call->inline_data)
        hp_move_inline(call, mine);
    else
        mine->flags |= offer(call, mine);
    hp_store_ordered(&mine->seq, call->seq);
    hp_team_ring(call->team);
    call->phase = HP_POSTED;
}

/* Every rank computes this from the same posts, so all come to the same verdict. */
static bool all_agree(const struct hp_call *call)
{
    const uint64_t print = hp_call_post(call, 0)->print;
    for (int r = 0; r < call->team->size; r++) {
        const struct hp_post *const its = hp_call_post(call, r);
        if (!(its->flags & READY) || its->print != print)
            return false;
    }
    return true;
}

/* How many chunks are needed, and whether all arrays lie where others can get at them. */
static void count_steps(struct hp_call *call)
{
    call->is_direct = true;
    call->is_lent = hp_call_post(call, 0)->flags & LENDING;
    for (int r = 0; r < call->team->size; r++) {
        const struct hp_post *const its = hp_call_post(call, r);
        if (its->steps > call->steps)
            call->steps = its->steps;
        if (!(its->flags & (DIRECT | INLINE)))
            call->is_direct = false;
        if (!(its->flags & REACHES) || !(its->flags & (DIRECT | LENT | INLINE)))
            call->is_lent = false;
    }
    call->is_lent = call->is_lent && !call->is_direct;
}

static int agree(struct hp_call *call)
{
    struct hp_team *const team = call->team;
    for (; call->come < team->size; call->come++) /* another thread may have withdrawn my own */
        if (call->come != team->rank && !hp_call_has_come(call, call->come)) {
            call->blocked_on = call->come;
            return HP_PENDING;
        }
    if (!all_agree(call)) {
        call->phase = HP_ENDED;
        return HP_HEADERS;
    }
    count_steps(call);
    call->base = team->steps;
    team->steps += call->steps;
    call->phase = HP_MOVING;
    call->moved_ns = call->may_lend ? hp_now() : 0;
    if (call->steps > 0 && !call->is_direct && hp_team_reserve(team) < 0)
        return -ENOMEM;
    return hp_move_take_inline(call);
}

/* Load a counter; one in a few that have reached `value` tells how far its rank is. */
static uint64_t load(const struct hp_call *call, int rank, int which, uint64_t value)
{
    struct hp_team *const team = call->team;
    const _Atomic uint64_t *const its = counter(team->lanes[rank], which);
    if (call->steps < 2 || value % SAMPLED)
        return hp_load_ordered(its); /* pairs with publish() */
    const uint64_t began = hp_now();
    const uint64_t reached = hp_load_ordered(its);
    const uint64_t took = hp_now() - began;
    if (reached >= value)
        team->line_ns = hp_line_after(team->node, team->line_ns, took);
    return reached;
}

/* Whether all peers' counters have reached `value`; else blocked_on says whose has not. */
static bool all_reached(struct hp_call *call, int which, uint64_t value)
{
    struct hp_team *const team = call->team;
    for (int r = 0; r < team->size; r++) {
        uint64_t *const known = &team->known[which][r];
        if (r == team->rank || *known >= value)
            continue;
        *known = load(call, r, which, value);
        if (*known < value) {
            call->blocked_on = r;
            return false;
        }
    }
    return true;
}

static void publish(struct hp_call *call, int which, uint64_t value)
{
    hp_store_ordered(counter(my_lane(call), which), value);
    hp_team_ring(call->team);
}

/* Fill the next slot, if all have taken what was in it. */
static bool produce(struct hp_call *call)
{
    const uint64_t next = call->base + call->produced + 1;
    if (call->produced == call->steps ||
        (next > HP_SLOTS && !all_reached(call, TAKEN, next - HP_SLOTS)))
        return false;
    hp_move_produce(call, call->produced++);
    publish(call, FILLED, next);
    return true;
}

/* Reduce my slice of the next chunk, if all have filled theirs. 1: done, 0: not yet. */
static int reduce(struct hp_call *call)
{
    const uint64_t next = call->base + call->reduced + 1;
    if (call->reduced == call->produced || !all_reached(call, FILLED, next))
        return 0;
    const int rc = hp_move_reduce(call, call->reduced++);
    publish(call, REDUCED, next);
    return rc < 0 ? rc : 1;
}

static int consume(struct hp_call *call)
{
    const bool is_sliced = hp_move_is_sliced(call);
    const uint64_t next = call->base + call->consumed + 1;
    if (call->consumed == (is_sliced ? call->reduced : call->produced) ||
        !all_reached(call, is_sliced ? REDUCED : FILLED, next))
        return 0;
    const int rc = hp_move_consume(call, call->consumed++);
    publish(call, TAKEN, next);
    return rc < 0 ? rc : 1;
}

static int end(struct hp_call *call)
{
    call->phase = HP_ENDED;
    if (call->may_lend && !call->is_direct && call->team->rank == 0)
        hp_ways_tell(ways_of(call), call->is_lent ? HP_BY_LENDING : HP_BY_CHUNKS,
                     hp_lend_bytes(call), hp_now() - call->moved_ns);
    return HP_DONE;
}

/* Whether a member has given up, or ended; read after all that was read of it. */
static bool is_through(const struct hp_team *team, int r)
{
    /* In one step with a store, so that nothing is read after it; with give_up and node_leave. */
    return hp_add_ordered(&team->lanes[r]->gone, 0) != HP_HERE ||
           hp_load_ordered(&team->node->windows[team->members[r]]->state) != HP_ALIVE;
}

/*
 * I have taken all of the others' arrays, where they lie. Who has given up or ended meanwhile may
 * have changed its own while it was read; who has not waits for me.
 */
static int finish_reading(struct hp_call *call)
{
    const struct hp_team *const team = call->team;
    const int rc = call->is_lent ? hp_lend_confirm_all(call) : 0;
    if (rc < 0)
        return rc;
    for (int r = 0; r < team->size; r++)
        if (r != team->rank && is_through(team, r)) {
            call->blocked_on = r;
            return hp_node_is_alive(team->node, team->members[r]) ? -ECANCELED : -EPIPE;
        }
    call->consumed = call->steps;
    publish(call, TAKEN, call->base + call->steps);
    return 0;
}

bool hp_call_shares_arrays(const struct hp_call *call)
{
    return call->phase == HP_MOVING && (call->is_direct || call->is_lent) && call->steps > 0;
}

static int read_directly(struct hp_call *call)
{
    int rc = 0;
    for (uint64_t step = 0; rc == 0 && step < call->steps; step++)
        rc = hp_move_consume(call, step);
    return rc < 0 ? rc : finish_reading(call);
}

/* The same where the kernel reads: results cannot be written to others, who fetch them instead. */
static int read_lent(struct hp_call *call)
{
    const uint64_t last = call->base + call->steps;
    int rc = 0;
    if (hp_move_is_sliced(call) && call->reduced == 0) {
        rc = hp_lend_reduce(call);
        if (rc < 0)
            return rc;
        call->reduced = call->steps;
        publish(call, REDUCED, last);
    }
    if (hp_move_is_sliced(call) && !all_reached(call, REDUCED, last))
        return -EAGAIN;
    rc = hp_lend_take(call);
    return rc < 0 ? rc : finish_reading(call);
}

/* Who has done its part waits until nobody reads or writes its own arrays any more. */
static int move_where_they_lie(struct hp_call *call)
{
    int rc = 0;
    if (call->consumed == 0)
        rc = call->is_lent ? read_lent(call) : read_directly(call);
    if (rc < 0)
        return rc == -EAGAIN ? HP_PENDING : rc;
    return all_reached(call, TAKEN, call->base + call->steps) ? end(call) : HP_PENDING;
}

static int move(struct hp_call *call)
{
    if (hp_call_shares_arrays(call))
        return move_where_they_lie(call);
    while (call->consumed < call->steps) {
        const int filled = produce(call);
        const int reduced = hp_move_is_sliced(call) ? reduce(call) : 0;
        const int taken = reduced < 0 ? reduced : consume(call);
        if (taken < 0)
            return taken;
        if (!filled && !reduced && !taken)
            return HP_PENDING;
    }
    return end(call);
}

int hp_call_advance(struct hp_call *call)
{
    if (call->phase == HP_NEW)
        post(call);
    if (call->phase == HP_POSTED) {
        const int rc = agree(call);
        if (call->phase != HP_MOVING || rc < 0)
            return rc;
    }
    return call->phase == HP_MOVING ? move(call) : HP_DONE;
}

/* Whether members read what others lend, still. */
static bool is_read(const struct hp_call *call)
{
    const struct hp_team *const team = call->team;
    for (int r = 0; r < team->size; r++)
        if (hp_load_ordered(&team->lanes[r]->taken) < call->base + call->steps)
            return true;
    return false;
}

bool hp_call_needs(const struct hp_call *call, int rank)
{
    const struct hp_lane *const its = call->team->lanes[rank];
    const uint64_t end = call->base + call->steps;
    if (call->phase != HP_MOVING)
        return !hp_call_has_come(call, rank);
    if (call->is_lent)
        return is_read(call); /* memory of processes ends with them */
    if (call->is_direct)
        return hp_load_ordered(&its->taken) < end;
    return hp_load_ordered(&its->filled) < end ||
           (hp_move_is_sliced(call) && hp_load_ordered(&its->reduced) < end) ||
           hp_load_ordered(&its->taken) + HP_SLOTS < end;
}

/*
 * Whether a member whose deadline passed leaves us to wait on for another, which has never come:
 * then it is that one which we name at our own deadline. For who comes last nobody is missing.
 */
static bool waits_on(const struct hp_call *call, int rank)
{
    const struct hp_team *const team = call->team;
    const uint64_t gone = hp_load_ordered(&team->lanes[rank]->gone); /* pairs with give_up */
    if (call->phase == HP_MOVING || !(gone & HP_TIMED_OUT) || !has_waited(call, rank))
        return false;
    for (int r = 0; r < team->size; r++)
        if (!has_waited(call, r) && hp_load_ordered(&team->lanes[r]->gone) == HP_HERE)
            return true;
    return false;
}

/* Whether a member waited here in vain and then left in order: it gave up, whatever came after. */
static bool withdrew(const struct hp_call *call, int rank, uint64_t state)
{
    const uint64_t its = hp_load_ordered(&hp_call_post(call, rank)->seq); /* pairs with give_up */
    return state == HP_LEFT && its == (call->seq | HP_WITHDRAWN);
}

/*
 * Not only at blocked_on: that one may be late and alive while another is gone for good. Who has
 * found a cycle knows why others of it go.
 */
int hp_call_look(struct hp_call *call)
{
    const struct hp_team *const team = call->team;
    int rc = HP_PENDING;
    for (int r = 0; r < team->size; r++) {
        const struct hp_window *const its = team->node->windows[team->members[r]];
        /* These come first: what it did before it left is to be seen. */
        const uint64_t state = hp_load_ordered(&its->state); /* pairs with hp_node_leave */
        const uint64_t gone = hp_load_ordered(&team->lanes[r]->gone);
        if (r == team->rank || (state == HP_ALIVE && gone == HP_HERE) || !hp_call_needs(call, r))
            continue;
        const bool is_lost = state != HP_ALIVE && !withdrew(call, r, state);
        if (!is_lost && waits_on(call, r))
            continue;
        if (is_lost || rc == HP_PENDING)
            call->blocked_on = r;
        if (call->cycle_ns != 0)
            return -EDEADLK;
        if (is_lost)
            return -EPIPE;
        rc = -ECANCELED;
    }
    return rc;
}

static void give_up(struct hp_team *team, enum hp_gone why)
{
    struct hp_lane *const mine = team->lanes[team->rank];
    hp_store_ordered(&mine->gone, why);
    /* Who has not seen my post shall not go on with it. */
    hp_store_ordered(&mine->posts[team->seq & 1].seq, team->seq | HP_WITHDRAWN);
    hp_team_ring(team);
}

bool hp_team_has(const struct hp_team *team, int rank)
{
    return hp_load_ordered(&team->lanes[rank]->gone) == HP_HERE; /* pairs with give_up */
}

void hp_team_give_up(struct hp_team *team)
{
    give_up(team, HP_GAVE_UP);
}

void hp_team_time_out(struct hp_team *team)
{
    give_up(team, HP_TIMED_OUT);
}

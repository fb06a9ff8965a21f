/*
 * The node engine when something is wrong: ranks that disagree, are late, leave, give up or close
 * the group; windows that are none or too short; signals; no memory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "ranks.h"

enum { CHUNK = 4096, MOST = 30 * CHUNK / 4 }; /* elements */

#define NEVER (60 * SECOND) /* a wait that must end much earlier by itself */
#define SOON (2 * SECOND)
#define MS 1000000u

/* What one collective of a rank works on; element i of rank r is r + i. */
struct job {
    struct hp_call call;
    struct hp_request request;
    uint8_t header[HP_POST_HEADER];
    uint64_t counts[MAX_RANKS];
    int32_t send[MOST], recv[MOST];
};

/* `count` elements of each rank, or for each rank. */
static struct job *new_job(const struct rank *rank, enum hp_verb verb, uint64_t count)
{
    struct job *const job = calloc(1, sizeof *job);
    const uint64_t size = (uint64_t)rank->world->size;
    const bool is_cut = verb == HP_REDUCE_SCATTER || verb == HP_ALL_TO_ALL;
    CHECK(job && count * size <= MOST);
    for (int i = 0; i < MOST; i++)
        job->send[i] = rank->index + i, job->recv[i] = -1;
    for (uint64_t r = 0; r < size; r++)
        job->counts[r] = 4 * count;
    memset(job->header, rank->index + 1, sizeof job->header);
    job->request = (struct hp_request){
        .verb = verb, .dtype = HP_I32, .op = HP_SUM, .root = verb == HP_BROADCAST ? 0 : -1,
        .send = job->send, .recv = job->recv, .nbytes = 4 * count * (is_cut ? size : 1),
        .send_counts = job->counts, .recv_counts = job->counts, .print = 7, .is_ready = true,
        .header = job->header};
    return job;
}

static void start(struct rank *rank, struct job *job)
{
    hp_call_begin(&job->call, &rank->teams[0], &job->request);
}

static int finish(struct rank *rank, struct job *job, uint64_t nanoseconds)
{
    start(rank, job);
    return hp_call_run(&job->call, nanoseconds);
}

/* An all_reduce that must work. */
static void reduce_once(struct rank *rank, uint64_t count)
{
    const int size = rank->world->size;
    struct job *const job = new_job(rank, HP_ALL_REDUCE, count);
    CHECK(finish(rank, job, NEVER) == HP_DONE);
    for (int i = 0; i < (int)count; i++)
        CHECK(job->recv[i] == size * i + size * (size - 1) / 2);
    free(job);
}

/* ---- no agreement -------------------------------------------------------------------------- */

static void check_verdict(const struct rank *rank, const struct job *job)
{
    for (int r = 0; r < rank->world->size; r++) {
        const uint8_t *const header = hp_call_header(&job->call, r);
        for (int i = 0; i < HP_POST_HEADER; i++)
            CHECK(header[i] == r + 1);
    }
    for (int i = 0; i < MOST; i++)
        CHECK(job->recv[i] == -1 && job->send[i] == rank->index + i);
}

/* One rank has another print (and size), or is not ready: all learn it, and go on. */
static void disagree(struct rank *rank)
{
    const enum hp_verb verbs[] = {HP_ALL_REDUCE, HP_BROADCAST, HP_ALL_TO_ALL};
    for (int i = 0; i < 3 * 2 * 2 * rank->world->size; i++) {
        const int culprit = i / 12;
        const uint64_t count = i & 1 ? 3 : MOST / 10;
        struct job *const job = new_job(rank, verbs[i / 4 % 3], count);
        if (culprit == rank->index && (i & 2)) {
            job->request.is_ready = false;
        } else if (culprit == rank->index) {
            job->request.print++;
            job->request.nbytes *= 2;
        }
        dawdle(&rank->random);
        CHECK(finish(rank, job, NEVER) == HP_HEADERS);
        check_verdict(rank, job);
        free(job);
        reduce_once(rank, i & 4 ? 5 : MOST / 10);
    }
}

/* ---- late ---------------------------------------------------------------------------------- */

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* Rank 0 is late: the others say who, sleep, and go on when it comes. */
static void wait_for_late(struct rank *rank)
{
    struct job *const job = new_job(rank, HP_ALL_REDUCE, 100);
    meet(rank);
    if (rank->index == 0) {
        sleep_ns(400 * MS);
        CHECK(finish(rank, job, NEVER) == HP_DONE);
    } else {
        const uint64_t began = now_ns(), cpu = cpu_ns();
        CHECK(finish(rank, job, 200 * MS) == HP_PENDING);
        CHECK(now_ns() - began >= 200 * MS && cpu_ns() - cpu < 40 * MS);
        CHECK(job->call.blocked_on == 0 && !hp_call_has_come(&job->call, 0));
        CHECK(hp_call_has_come(&job->call, rank->index));
        CHECK(hp_call_look(&job->call) == HP_PENDING);
        CHECK(hp_call_run(&job->call, NEVER) == HP_DONE && hp_call_has_come(&job->call, 0));
    }
    CHECK(job->recv[99] == 99 * rank->world->size + (rank->world->size == 2 ? 1 : 3));
    free(job);
}

/* ---- gone ---------------------------------------------------------------------------------- */

enum departure { LEAVE, FAIL, GIVE_UP, CLOSE, TIME_OUT };

static void depart(struct rank *rank, enum departure how)
{
    switch (how) {
    case LEAVE: hp_node_leave(&rank->node, HP_LEFT); break;
    case FAIL: hp_node_leave(&rank->node, HP_FAILED); break;
    case GIVE_UP: hp_team_give_up(&rank->teams[0]); break;
    case TIME_OUT: /* what comes after it does not hide it */
        hp_team_time_out(&rank->teams[0]);
        hp_node_close(&rank->node, rank->area);
        hp_node_leave(&rank->node, HP_LEFT);
        break;
    default: hp_node_close(&rank->node, rank->area); break;
    }
}

static void expect_gone(struct rank *rank, struct job *job, int culprit, enum departure how)
{
    const uint64_t began = now_ns();
    CHECK(finish(rank, job, NEVER) == (how == LEAVE || how == FAIL ? -EPIPE : -ECANCELED));
    CHECK(job->call.blocked_on == culprit && now_ns() - began < SOON);
}

/* Rank `culprit` never comes; it departs before or after the others wait. */
static void miss(struct rank *rank, int culprit, enum departure how, bool is_early)
{
    struct job *const job = new_job(rank, HP_ALL_REDUCE, is_early ? 3 : MOST / 10);
    meet(rank);
    if (rank->index == culprit) {
        sleep_ns(is_early ? 0 : 20 * MS);
        depart(rank, how);
    } else {
        sleep_ns(is_early ? 20 * MS : 0);
        expect_gone(rank, job, culprit, how);
    }
    meet(rank);
    free(job);
}

/* It posts, with chunks to come, and departs before it has moved one. */
static void break_off(struct rank *rank, int culprit, enum departure how)
{
    struct job *const job = new_job(rank, HP_ALL_REDUCE, MOST / 10);
    if (rank->index == culprit) {
        start(rank, job);
        CHECK(hp_call_advance(&job->call) == HP_PENDING);
        depart(rank, how);
    }
    meet(rank);
    if (rank->index != culprit)
        expect_gone(rank, job, culprit, how);
    meet(rank);
    free(job);
}

#define DEPARTURE(NAME, HOW)                                                          \
    static void miss_early_##NAME(struct rank *rank) { miss(rank, 0, HOW, true); }    \
    static void miss_late_##NAME(struct rank *rank) { miss(rank, 1, HOW, false); }    \
    static void break_off_##NAME(struct rank *rank) { break_off(rank, 1, HOW); }

DEPARTURE(leave, LEAVE)
DEPARTURE(fail, FAIL)
DEPARTURE(give_up, GIVE_UP)
DEPARTURE(close, CLOSE)
static void break_off_time_out(struct rank *rank) { break_off(rank, 1, TIME_OUT); }

static void test_departures(int size)
{
    static void (*const bodies[])(struct rank *) = {
        miss_early_leave, miss_late_leave, break_off_leave, miss_early_fail,
        miss_late_fail, break_off_fail, miss_early_give_up, miss_late_give_up,
        break_off_give_up, miss_early_close, miss_late_close, break_off_close,
        break_off_time_out,
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        run_ranks(size, CHUNK, 0, bodies[i]);
}

/* Rank 1 is late but alive, rank 2 fails: rank 0 need not wait for rank 1 to learn it. */
static void fail_behind_late(struct rank *rank)
{
    struct job *const job = new_job(rank, HP_ALL_REDUCE, 100);
    meet(rank);
    if (rank->index == 0)
        expect_gone(rank, job, 2, FAIL);
    else if (rank->index == 2)
        sleep_ns(20 * MS), depart(rank, FAIL);
    meet(rank); /* rank 1 is here all the time */
    free(job);
}

/* Rank 0 comes last, has the result and leaves, and the others have not moved on since. */
static void look_after(struct rank *rank)
{
    struct job *const job = new_job(rank, HP_ALL_REDUCE, 3);
    if (rank->index > 0) {
        start(rank, job);
        CHECK(hp_call_advance(&job->call) == HP_PENDING);
    }
    meet(rank);
    if (rank->index == 0) {
        CHECK(finish(rank, job, NEVER) == HP_DONE);
        depart(rank, LEAVE);
    }
    meet(rank);
    if (rank->index > 0) {
        CHECK(hp_call_look(&job->call) == HP_PENDING);
        CHECK(hp_call_advance(&job->call) == HP_DONE);
    }
    meet(rank);
    free(job);
}

/* Who has the result leaves; the others get theirs all the same. */
static void leave_after(struct rank *rank, enum hp_verb verb, uint64_t count)
{
    struct job *const job = new_job(rank, verb, count);
    dawdle(&rank->random);
    CHECK(finish(rank, job, NEVER) == HP_DONE);
    depart(rank, (const enum departure[]){LEAVE, FAIL, CLOSE}[random64(&rank->random) % 3]);
    const int size = rank->world->size, last = (int)count - 1;
    if (verb == HP_ALL_REDUCE)
        CHECK(job->recv[last] == size * last + size * (size - 1) / 2);
    if (verb == HP_BROADCAST)
        CHECK(job->recv[last] == last);
    if (verb == HP_ALL_GATHER)
        CHECK(job->recv[count * (uint64_t)size - 1] == last + size - 1);
    free(job);
}

static void leave_after_small(struct rank *rank)
{
    leave_after(rank, HP_ALL_REDUCE, 3);
}

static void leave_after_barrier(struct rank *rank)
{
    leave_after(rank, HP_BARRIER, 0);
}

static void leave_after_large(struct rank *rank)
{
    leave_after(rank, HP_ALL_REDUCE, MOST / 8);
}

static void leave_after_broadcast(struct rank *rank)
{
    leave_after(rank, HP_BROADCAST, MOST / 8);
}

static void leave_after_gather(struct rank *rank)
{
    leave_after(rank, HP_ALL_GATHER, MOST / 8);
}

static void test_leaving(int size)
{
    for (int i = 0; i < 20; i++) {
        run_ranks(size, CHUNK, 0, leave_after_small);
        run_ranks(size, CHUNK, 0, leave_after_barrier);
        run_ranks(size, CHUNK, 100, leave_after_large);
        run_ranks(size, CHUNK, 0, leave_after_broadcast);
        run_ranks(size, CHUNK, 0, leave_after_gather);
    }
}

/* ---- areas --------------------------------------------------------------------------------- */

/* A group's whole life: claimed, used, closed by all, its area given back. */
static void live_once(struct rank *rank, uint64_t key)
{
    struct hp_team *const team = calloc(1, sizeof *team);
    struct job *const job = new_job(rank, HP_ALL_GATHER, 1);
    const int area = hp_node_claim(&rank->node, key);
    CHECK(team && area == 1); /* area 0 is in use, this one was given back */
    dawdle(&rank->random);
    join(rank, key, team, 0);
    CHECK(!hp_node_is_closed(&rank->node, rank->index, area, key));
    hp_call_begin(&job->call, team, &job->request);
    CHECK(hp_call_run(&job->call, NEVER) == HP_DONE);
    for (int r = 0; r < rank->world->size; r++)
        CHECK(job->recv[r] == r);
    hp_node_close(&rank->node, area);
    for (int r = 0; r < rank->world->size; r++)
        while (!hp_node_is_closed(&rank->node, r, area, key))
            sched_yield();
    hp_node_release(&rank->node, area);
    free(job);
    free(team);
}

static void live_often(struct rank *rank)
{
    for (uint64_t i = 0; i < 200; i++)
        live_once(rank, 1000 + i);
    reduce_once(rank, 3);
}

/* A window with room for MAX_AREAS; one of them is the fixture's. */
static void fill_window(struct rank *rank)
{
    const int next = (rank->index + 1) % rank->world->size;
    CHECK(hp_node_find(&rank->node, rank->index, 5) == -EAGAIN);
    for (int i = 1; i < MAX_AREAS; i++)
        CHECK(hp_node_claim(&rank->node, (uint64_t)i) == i);
    CHECK(hp_node_claim(&rank->node, 5) == -ENOSPC);
    meet(rank);
    CHECK(hp_node_find(&rank->node, next, 2) == 2);
    meet(rank);
    hp_node_release(&rank->node, 2);
    meet(rank);
    CHECK(hp_node_find(&rank->node, next, 2) == -EAGAIN);
    CHECK(hp_node_is_closed(&rank->node, next, 2, 2));
    meet(rank);
    CHECK(hp_node_claim(&rank->node, 5) == 2);
    meet(rank);
    CHECK(hp_node_find(&rank->node, next, 5) == 2);
    CHECK(!hp_node_is_closed(&rank->node, next, 2, 5));
    CHECK(hp_node_is_closed(&rank->node, next, 2, 2));
    meet(rank);
    depart(rank, LEAVE);
    meet(rank);
    CHECK(hp_node_is_closed(&rank->node, next, 2, 5));
}

/* ---- memory and signals -------------------------------------------------------------------- */

static _Atomic int num_signals;

static void count_signal(int number)
{
    (void)number;
    num_signals++;
}

/* Windows in files, and a signal each half millisecond. */
static void reduce_often(struct rank *rank)
{
    struct stat before, after;
    CHECK(fstat(rank->node.fd, &before) == 0);
    for (int i = 0; i < 300; i++)
        reduce_once(rank, i % 3 ? 10 : MOST / 10);
    CHECK(fstat(rank->node.fd, &after) == 0);
    const uint64_t grown = (uint64_t)(after.st_blocks - before.st_blocks) * 512;
    CHECK(grown >= (HP_SLOTS - 1) * HP_SLOT_BYTES); /* reserved, touched or not */
}

static void test_signals(void)
{
    struct world world = {.size = 2, .chunk = CHUNK, .has_files = true, .body = reduce_often};
    const struct sigaction action = {.sa_handler = count_signal};
    const struct itimerval often = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    run_world(&world);
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0 && num_signals > 0);
}

/* Rank 0 gets no memory for slots: it says so and gives up, and the others do not wait. */
static void lack_memory(struct rank *rank)
{
    struct job *const job = new_job(rank, HP_ALL_REDUCE, MOST / 10);
    if (rank->index == 0) {
        rank->node.fd = open("/dev/null", O_RDONLY);
        CHECK(hp_node_claim(&rank->node, 5) == -ENOMEM);
        CHECK(finish(rank, job, NEVER) == -ENOMEM);
        depart(rank, GIVE_UP);
        close(rank->node.fd);
    } else {
        expect_gone(rank, job, 0, GIVE_UP);
    }
    free(job);
}

/* ---- windows that are none ----------------------------------------------------------------- */

/* One page too short for the messages of so many ranks. */
static void test_too_short(void)
{
    const uint64_t messages = 2 * HP_MAIL_RING + sizeof(struct hp_buffer) +
                              HP_TRANSFERS * sizeof(struct hp_transfer);
    struct world world = {.size = 2, .length = HP_WINDOW_MIN + messages - 4096};
    struct hp_node node;
    map_window(&world, 0);
    map_window(&world, 1);
    CHECK(hp_node_init(&node, world.windows, 2, 0, world.length) == -EINVAL);
    unmap_window(&world, 0);
    unmap_window(&world, 1);
}

static void test_refused(void)
{
    const uint64_t messages = 2 * HP_MAIL_RING + sizeof(struct hp_buffer) +
                              HP_TRANSFERS * sizeof(struct hp_transfer);
    struct world world = {.size = 2, .length = HP_WINDOW_MIN + messages};
    struct hp_node node;
    map_window(&world, 0);
    map_window(&world, 1);
    const uint64_t length = world.length;
    struct hp_window *const second = world.windows[1];
    void *const odd[] = {world.windows[0], (char *)second + 64}, *const none[] = {second, NULL};
    CHECK(hp_node_init(&node, world.windows, 2, 1, length) == 0);
    CHECK(hp_node_claim(&node, 1) == 0 && hp_node_claim(&node, 2) == -ENOSPC);
    CHECK(hp_node_init(&node, world.windows, 0, 0, length) == -EINVAL);
    CHECK(hp_node_init(&node, world.windows, HP_MAX_LOCAL + 1, 0, length) == -EINVAL);
    CHECK(hp_node_init(&node, world.windows, 2, 2, length) == -EINVAL);
    CHECK(hp_node_init(&node, world.windows, 2, -1, length) == -EINVAL);
    CHECK(hp_node_init(&node, world.windows, 2, 0, HP_WINDOW_MIN - 1) == -EINVAL);
    CHECK(hp_node_init(&node, world.windows, 2, 0, length + 4096) == -EBADMSG);
    CHECK(hp_node_init(&node, odd, 2, 0, length) == -EINVAL);
    CHECK(hp_node_init(&node, none, 2, 0, length) == -EINVAL);
    second->version++;
    CHECK(hp_node_init(&node, world.windows, 2, 0, length) == -EBADMSG);
    second->version--;
    second->magic[7]++;
    CHECK(hp_node_init(&node, world.windows, 2, 0, length) == -EBADMSG);
    second->magic[7]--;
    CHECK(hp_node_init(&node, world.windows, 2, 0, length) == 0);
    unmap_window(&world, 0);
    unmap_window(&world, 1);
}

int main(void)
{
    test_too_short();
    test_refused();
    for (int size = 2; size <= 4; size++) {
        run_ranks(size, CHUNK, 0, disagree);
        run_ranks(size, CHUNK, 0, fill_window);
        run_ranks(size, CHUNK, 0, live_often);
        run_ranks(size, CHUNK, 0, lack_memory);
        run_ranks(size, CHUNK, 0, look_after);
        test_departures(size);
        test_leaving(size);
    }
    run_ranks(2, CHUNK, 1000, wait_for_late);
    run_ranks(3, CHUNK, 0, wait_for_late);
    run_ranks(3, CHUNK, 0, fail_behind_late);
    test_signals();
    return 0;
}

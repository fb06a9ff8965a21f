/* Arrays that the kernel reads: whose, what it refuses, who gives up meanwhile; the faster way. */
#define _GNU_SOURCE
#include "ranks.h"

#define SLICE 40000000u /* of a wait, in nanoseconds */

enum { COUNT = 5000, CHUNK = 4096, DEAD = 1 << 30 /* more than any process has */ };

struct job {
    struct hp_call call;
    struct hp_request request;
    uint8_t header[HP_POST_HEADER];
    int32_t *send, *recv;
};

static int32_t *pages(void)
{
    int32_t *const memory = mmap(NULL, sizeof(int32_t) * COUNT, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void begin(struct rank *rank, struct job *job, enum hp_verb verb)
{
    *job = (struct job){.send = pages(), .recv = pages()};
    for (int i = 0; i < COUNT; i++)
        job->send[i] = rank->index + i;
    job->request = (struct hp_request){
        .verb = verb, .dtype = HP_I32, .op = HP_SUM, .root = verb == HP_BROADCAST ? 0 : -1,
        .send = job->send, .recv = job->recv, .nbytes = sizeof(int32_t) * COUNT, .print = 7,
        .is_ready = true, .header = job->header};
    hp_call_begin(&job->call, &rank->teams[0], &job->request);
}

static void drop(struct job *job)
{
    munmap(job->send, sizeof(int32_t) * COUNT);
    munmap(job->recv, sizeof(int32_t) * COUNT);
}

/* Rank 1 looks once, then rank 0, and so on; what this rank's last look said. */
static int take_turns(struct rank *rank, struct job *job, int rounds)
{
    int rc = HP_PENDING;
    for (int i = 0; i < rounds; i++)
        for (int turn = 1; turn >= 0; turn--) {
            if (turn == rank->index)
                rc = hp_call_advance(&job->call);
            meet(rank);
        }
    return rc;
}

/* What happens to rank 0 when it has done its part of a call, and before rank 1 reads. */
enum fate { GIVES_UP, LEAVES, FAILS, DIES, LOSES_ITS_ARRAY };

static void suffer(struct rank *rank, struct job *job, enum fate fate)
{
    switch (fate) {
    case GIVES_UP: /* as rank 1 sees it that had seen rank 0's post before */
        rank->teams[0].lanes[0]->gone = HP_TIMED_OUT;
        break;
    case LEAVES: hp_node_leave(&rank->node, HP_LEFT); break;
    case FAILS: hp_node_leave(&rank->node, HP_FAILED); break;
    case DIES: rank->node.windows[0]->process = DEAD; break;
    default: munmap(job->send, sizeof(int32_t) * COUNT);
    }
}

static void meet_fate(struct rank *rank, enum hp_verb verb, enum fate fate, bool in_windows)
{
    static const int ends[] = {[GIVES_UP] = -ECANCELED, [LEAVES] = -EPIPE, [FAILS] = -EPIPE,
                               [DIES] = HP_PENDING, [LOSES_ITS_ARRAY] = -EFAULT};
    struct job job;
    begin(rank, &job, verb);
    if (in_windows)
        job.call.request.send = job.call.request.recv =
            (char *)rank->node.windows[rank->index] + rank->node.heap;
    take_turns(rank, &job, 1);
    CHECK(rank->index == 1 || (job.call.phase == HP_MOVING && job.call.is_lent == !in_windows));
    if (rank->index == 0)
        suffer(rank, &job, fate);
    meet(rank);
    if (rank->index == 1) {
        CHECK(hp_call_advance(&job.call) == ends[fate]);
        CHECK(job.call.blocked_on == 0 && hp_call_shares_arrays(&job.call));
    }
    meet(rank);
    drop(&job);
}

static void give_up_broadcast(struct rank *rank)
{
    meet_fate(rank, HP_BROADCAST, GIVES_UP, false);
}

static void give_up_reduction(struct rank *rank)
{
    meet_fate(rank, HP_ALL_REDUCE, GIVES_UP, false);
}

static void give_up_in_windows(struct rank *rank)
{
    meet_fate(rank, HP_BROADCAST, GIVES_UP, true);
}

static void leave(struct rank *rank)
{
    meet_fate(rank, HP_BROADCAST, LEAVES, false);
}

static void fail(struct rank *rank)
{
    meet_fate(rank, HP_BROADCAST, FAILS, true);
}

static void die(struct rank *rank)
{
    meet_fate(rank, HP_BROADCAST, DIES, false);
}

static void lose_array(struct rank *rank)
{
    meet_fate(rank, HP_BROADCAST, LOSES_ITS_ARRAY, false);
}

/* A first thread that has ended looks like a death to the kernel: that must not take for ever. */
static void lose_first_thread(struct rank *rank)
{
    struct job job;
    begin(rank, &job, HP_BROADCAST);
    take_turns(rank, &job, 1);
    if (rank->index == 0)
        suffer(rank, &job, DIES);
    meet(rank);
    int rc = HP_PENDING;
    for (int slice = 0; rank->index == 1 && rc == HP_PENDING && slice < 500; slice++)
        rc = hp_call_run(&job.call, SLICE);
    CHECK(rank->index == 0 || rc == -EFAULT);
    meet(rank);
    drop(&job);
}

/* Where one cannot read another all go in chunks, also if it lends nothing itself. */
static void stay_apart(struct rank *rank, enum hp_verb verb)
{
    struct job job;
    rank->teams[0].reaches_all = rank->index == 0;
    begin(rank, &job, verb);
    CHECK(take_turns(rank, &job, 40) == HP_DONE && !job.call.is_lent);
    for (int i = 0; i < COUNT; i++)
        CHECK(job.recv[i] == (verb == HP_BROADCAST ? i : 2 * i + 1));
    meet(rank);
    drop(&job);
}

static void broadcast_apart(struct rank *rank)
{
    stay_apart(rank, HP_BROADCAST);
}

static void reduce_apart(struct rank *rank)
{
    stay_apart(rank, HP_ALL_REDUCE);
}

/* Memory that the kernel refuses is not lent. */
static void refuse(struct rank *rank)
{
    struct job job;
    begin(rank, &job, HP_ALL_REDUCE);
    if (rank->index == 1)
        CHECK(mprotect(job.recv, sizeof(int32_t) * COUNT, PROT_NONE) == 0);
    CHECK(take_turns(rank, &job, 1) == HP_PENDING && !job.call.is_lent);
    CHECK(rank->index == 1 || job.call.phase == HP_MOVING);
    meet(rank);
    drop(&job);
}

/* ---- messages ----------------------------------------------------------------------------- */

static struct hp_box open_box(struct rank *rank)
{
    return (struct hp_box){.mail = &rank->mail, .key = GROUP_KEY, .size = 2, .rank = rank->index,
                           .members = {0, 1}};
}

enum { LONG = 2 << 20 }; /* more than a buffer holds */

static void begin_message(struct rank *rank, struct hp_box *box, struct hp_message *m, char *data)
{
    *m = (struct hp_message){.box = box, .way = rank->index == 0 ? HP_SEND : HP_RECEIVE,
                             .peer = 1 - rank->index, .tag = 5, .kind = "k", .kind_length = 1,
                             .data = data, .nbytes = LONG};
    hp_mail_begin(m);
}

/* A receiver whom the kernel does not let read, suddenly, asks for chunks. */
static void fetch_after_refusal(struct rank *rank)
{
    struct hp_box box = open_box(rank);
    struct hp_message m;
    char *const data = calloc(1, LONG);
    CHECK(data && hp_node_reaches(&rank->node, 1 - rank->index));
    memset(data, 'a' + rank->index, LONG);
    meet(rank);
    if (rank->index == 0)
        suffer(rank, NULL, DIES);
    meet(rank);
    begin_message(rank, &box, &m, data);
    int rc = HP_PENDING;
    for (int slice = 0; rc != HP_DONE && slice < 500; slice++) {
        rc = hp_mail_run(&m, 0, SLICE);
        rc = rc == HP_FOUND ? hp_mail_take(&m) : rc;
    }
    CHECK(rc == HP_DONE && data[0] == 'a' && data[LONG - 1] == 'a' && !m.is_lent);
    meet(rank);
    free(data);
}

/* A send is done when its receiver wants nothing of the group any more. */
static void drop_letter(struct rank *rank)
{
    struct hp_box box = open_box(rank);
    struct hp_message m;
    char *const data = calloc(1, LONG);
    if (rank->index == 0) {
        begin_message(rank, &box, &m, data);
        CHECK(hp_mail_run(&m, 0, 1000000) == HP_PENDING);
    }
    meet(rank);
    if (rank->index == 1)
        hp_box_empty(&box);
    meet(rank);
    if (rank->index == 0)
        CHECK(hp_mail_run(&m, 0, 20 * SECOND) == HP_DONE);
    meet(rank);
    free(data);
}

static void test_reach(void)
{
    struct world world = {.size = 2, .length = HP_AREAS_OFFSET + 4 * sizeof(struct hp_area)};
    struct hp_node nodes[2];
    map_window(&world, 0);
    map_window(&world, 1);
    struct hp_window *const second = world.windows[1];
    CHECK(hp_node_init(&nodes[0], world.windows, 2, 0, world.length) == 0);
    CHECK(hp_node_reaches(&nodes[0], 0));
    CHECK(!hp_node_reaches(&nodes[0], 1)); /* it has not begun */
    CHECK(hp_node_init(&nodes[1], world.windows, 2, 1, world.length) == 0);
    nodes[0].reach[1] = 0;
    CHECK(hp_node_reaches(&nodes[0], 1) && hp_node_reaches(&nodes[0], 1));
    nodes[0].reach[1] = 0;
    second->address = (uint64_t)(uintptr_t)world.windows[0]; /* somebody else lies there */
    second->rank = 1;
    CHECK(!hp_node_reaches(&nodes[0], 1));
    nodes[0].reach[1] = 0;
    second->process = DEAD;
    CHECK(!hp_node_reaches(&nodes[0], 1));
    unmap_window(&world, 0);
    unmap_window(&world, 1);
}

static void test_pieces(void)
{
    struct world world = {.size = 1, .length = HP_AREAS_OFFSET + 4 * sizeof(struct hp_area)};
    struct hp_node node;
    char got[4];
    map_window(&world, 0);
    CHECK(hp_node_init(&node, world.windows, 1, 0, world.length) == 0);
    char *const memory = (char *)pages();
    memcpy(memory, "hpcpar", 6);
    const struct hp_place lent = hp_lend(&node, memory, 6);
    CHECK(hp_place_is_lent(lent) && hp_lend_read(&node, lent, 2, got, 4) == 0);
    CHECK(memcmp(got, "cpar", 4) == 0);
    CHECK(hp_lend_read(&node, lent, 2, got, 0) == 0);
    CHECK(!hp_lend(&node, memory, 0).at);
    CHECK(munmap(memory, sizeof(int32_t) * COUNT) == 0);
    CHECK(!hp_lend(&node, memory, 6).at);
    CHECK(hp_lend_read(&node, lent, 0, got, 4) == -EFAULT);
    unmap_window(&world, 0);
}

/* The first two choices try both ways; then the faster is taken, and the other now and then. */
static void test_ways(void)
{
    struct hp_ways ways = {0};
    struct hp_node node = {.tuning.lend = 1000};
    const uint64_t took[] = {[HP_BY_CHUNKS] = 900, [HP_BY_LENDING] = 500};
    int chosen[2] = {0, 0};
    for (int i = 0; i < 300; i++) {
        const enum hp_way_of way = hp_ways_choose(&ways);
        chosen[way]++;
        hp_ways_tell(&ways, way, 1 << 16, took[way] + (uint64_t)(i % 7) * 10);
    }
    CHECK(chosen[HP_BY_CHUNKS] > 5 && chosen[HP_BY_CHUNKS] < 20);
    for (int i = 0; i < HP_WAYS_KEPT; i++) /* it becomes slow, all of the last times */
        hp_ways_tell(&ways, HP_BY_LENDING, 1 << 16, 5000);
    CHECK(hp_ways_choose(&ways) == HP_BY_CHUNKS);
    hp_ways_tell(&ways, HP_BY_LENDING, 1, UINT64_MAX); /* does not overflow */
    CHECK(hp_ways_choose(&ways) == HP_BY_CHUNKS);
    CHECK(hp_ways_class(&node, 1000) == 0 && hp_ways_class(&node, 3999) == 0);
    CHECK(hp_ways_class(&node, 4000) == 1 && hp_ways_class(&node, 16000) == 2);
    CHECK(hp_ways_class(&node, UINT64_MAX) == HP_WAY_SIZES - 1);
}

static void run(enum in_heap in_heap, void (*body)(struct rank *))
{
    struct world world = {.size = 2, .chunk = CHUNK, .in_heap = in_heap, .lends = true,
                          .body = body};
    run_world(&world);
}

/* Emulators and sandboxes have no such system call: then nothing is ever lent. */
static bool is_possible(void)
{
    const struct hp_node node = {.index = 0};
    const char byte = 0;
    return hp_lend(&node, &byte, 1).at != 0;
}

int main(void)
{
    if (!is_possible())
        return 77;
    test_reach();
    test_pieces();
    test_ways();
    run(NOWHERE, give_up_broadcast);
    run(NOWHERE, give_up_reduction);
    run(EVERYWHERE, give_up_in_windows);
    run(NOWHERE, leave);
    run(EVERYWHERE, fail);
    run(NOWHERE, die);
    run(NOWHERE, lose_array);
    run(NOWHERE, lose_first_thread);
    run(NOWHERE, broadcast_apart);
    run(NOWHERE, reduce_apart);
    run(NOWHERE, refuse);
    run(NOWHERE, fetch_after_refusal);
    run(NOWHERE, drop_letter);
    return 0;
}

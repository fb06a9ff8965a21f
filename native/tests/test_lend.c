/* Arrays that the kernel reads: whose, what it refuses, who gives up meanwhile; the faster way. */
#define _GNU_SOURCE
#include "ranks.h"

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

static bool is_lent(const struct job *job)
{
    return job->call.phase == HP_MOVING && job->call.is_lent;
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

/* As rank 1 sees it that had seen rank 0's post before. */
static void end_in_vain(struct rank *rank)
{
    rank->teams[0].lanes[0]->gone = HP_TIMED_OUT;
}

/* Who has given up may have changed its array: that it was read to the end does not help. */
static void give_up(struct rank *rank)
{
    const enum hp_verb verbs[] = {HP_BROADCAST, HP_ALL_REDUCE};
    struct job job;
    begin(rank, &job, verbs[rank->world->chunk == CHUNK]);
    take_turns(rank, &job, 1);
    if (rank->index == 0) {
        CHECK(is_lent(&job));
        end_in_vain(rank);
        meet(rank);
    } else {
        meet(rank);
        CHECK(hp_call_advance(&job.call) == -ECANCELED);
        CHECK(job.call.blocked_on == 0 && is_lent(&job));
    }
    meet(rank);
    drop(&job);
}

/* The same where arrays lie in windows: rank 0 has taken all that it needs. */
static void give_up_in_windows(struct rank *rank)
{
    struct job job;
    begin(rank, &job, HP_BROADCAST);
    job.call.request.send = job.call.request.recv =
        (char *)rank->node.windows[rank->index] + rank->node.heap;
    take_turns(rank, &job, 1);
    if (rank->index == 0) {
        CHECK(job.call.phase == HP_MOVING && job.call.is_direct);
        end_in_vain(rank);
        meet(rank);
    } else {
        meet(rank);
        CHECK(hp_call_advance(&job.call) == -ECANCELED && job.call.is_direct);
    }
    meet(rank);
    drop(&job);
}

/* The array of rank 0, or its whole process, is gone when it is read. */
static void lose(struct rank *rank)
{
    const bool has_died = rank->world->spins > 0;
    _Atomic uint64_t *const process = &rank->node.windows[0]->process;
    struct job job;
    CHECK(hp_node_reaches(&rank->node, 0));
    begin(rank, &job, HP_BROADCAST);
    take_turns(rank, &job, 1);
    if (rank->index == 0 && has_died)
        *process = DEAD;
    else if (rank->index == 0)
        munmap(job.send, sizeof(int32_t) * COUNT);
    meet(rank);
    if (rank->index == 1) {
        CHECK(hp_call_advance(&job.call) == (has_died ? HP_PENDING : -EFAULT));
        CHECK(job.call.blocked_on == 0);
    }
    meet(rank);
    drop(&job);
}

/* Where one cannot read another all go on in chunks; memory that the kernel refuses is not lent. */
static void stay_apart(struct rank *rank)
{
    const bool is_apart = rank->world->spins > 0;
    struct job job;
    if (is_apart && rank->index == 1)
        rank->node.reach[0] = 2;
    begin(rank, &job, HP_ALL_REDUCE);
    if (!is_apart && rank->index == 1)
        CHECK(mprotect(job.recv, sizeof(int32_t) * COUNT, PROT_NONE) == 0);
    const int rc = take_turns(rank, &job, is_apart ? 40 : 1);
    CHECK(!job.call.is_lent && rc == (is_apart ? HP_DONE : HP_PENDING));
    CHECK(is_apart || rank->index == 1 || job.call.phase == HP_MOVING);
    meet(rank);
    drop(&job);
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

static void run(unsigned chunk, unsigned spins, enum in_heap in_heap, void (*body)(struct rank *))
{
    struct world world = {.size = 2, .chunk = chunk, .spins = spins, .in_heap = in_heap,
                          .lends = true, .body = body};
    run_world(&world);
}

int main(void)
{
    test_reach();
    test_pieces();
    test_ways();
    run(CHUNK, 0, NOWHERE, give_up);
    run(2 * CHUNK, 0, NOWHERE, give_up);
    run(CHUNK, 0, EVERYWHERE, give_up_in_windows);
    run(CHUNK, 0, NOWHERE, lose);
    run(CHUNK, 1, NOWHERE, lose);
    run(CHUNK, 0, NOWHERE, stay_apart);
    run(CHUNK, 1, NOWHERE, stay_apart);
    return 0;
}

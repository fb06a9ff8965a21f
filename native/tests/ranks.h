/* Ranks as threads of one process, over windows of anonymous shared memory. */
#ifndef HP_RANKS_H
#define HP_RANKS_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "engine.h"
#include "hp_mail.h"

enum { MAX_RANKS = 8, MAX_AREAS = 3, HEAP = 64 << 20 };

enum in_heap { NOWHERE, EVERYWHERE, BUT_FOR_ONE };

#define SECOND 1000000000ull
#define GROUP_KEY 77u

struct rank;

struct world {
    int size;
    unsigned chunk, spins;
    uint64_t length;
    bool has_files; /* windows are memfds, as between processes */
    bool is_far;    /* lines of other ranks are said to come slowly */
    bool lends;     /* arrays may be read through the kernel */
    enum in_heap in_heap; /* the arrays of which ranks lie in their windows */
    void *windows[MAX_RANKS];
    int fds[MAX_RANKS];
    pthread_barrier_t all; /* of the test itself: all ranks are here */
    void (*body)(struct rank *rank);
};

struct rank {
    struct world *world;
    int index, area;
    uint64_t random;
    struct hp_node node;
    struct hp_mail mail;
    struct hp_team teams[HP_LANES];
    pthread_t thread;
};

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static inline void sleep_ns(uint64_t nanoseconds)
{
    const struct timespec t = {(time_t)(nanoseconds / SECOND), (long)(nanoseconds % SECOND)};
    nanosleep(&t, NULL);
}

/* Be late by up to 200 us, one time in eight. */
static inline void dawdle(uint64_t *random)
{
    if (random64(random) % 8 == 0)
        sleep_ns(random64(random) % 200000);
}

static inline void map_window(struct world *world, int rank)
{
    const int fd = world->has_files ? memfd_create("hpcpar-test", MFD_CLOEXEC) : -1;
    const int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    CHECK(fd < 0 ? !world->has_files : ftruncate(fd, (off_t)world->length) == 0);
    struct hp_window *const window =
        mmap(NULL, world->length, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(window != MAP_FAILED);
    memcpy(window->magic, HP_WINDOW_MAGIC, sizeof window->magic);
    window->version = HP_WINDOW_VERSION;
    window->rank = rank;
    window->length = world->length;
    world->windows[rank] = window;
    world->fds[rank] = fd;
}

static inline void unmap_window(const struct world *world, int rank)
{
    CHECK(munmap(world->windows[rank], world->length) == 0);
    if (world->fds[rank] >= 0)
        close(world->fds[rank]);
}

/* Find the areas of `key` of all ranks and make a lane of that group. */
static inline void join(struct rank *rank, uint64_t key, struct hp_team *team, int lane)
{
    int members[MAX_RANKS], areas[MAX_RANKS];
    for (int r = 0; r < rank->world->size; r++) {
        members[r] = r;
        while ((areas[r] = hp_node_find(&rank->node, r, key)) == -EAGAIN)
            sched_yield();
    }
    hp_team_init(team, &rank->node, members, areas, rank->world->size, rank->index, lane);
    team->line_ns = rank->world->is_far ? SECOND : 0; /* too much for samples to change it */
}

/* Both ways are known, and lending is the faster one for long. */
static inline void prefer_lending(struct hp_ways *ways, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hp_ways_tell(&ways[i], HP_BY_CHUNKS, 1 << 16, SECOND);
        hp_ways_tell(&ways[i], HP_BY_LENDING, 1 << 16, 1);
    }
}

static inline void prefer_all(struct rank *rank)
{
    const size_t count = sizeof rank->teams[0].ways / sizeof(struct hp_ways);
    for (int lane = 0; lane < HP_LANES; lane++)
        prefer_lending(&rank->teams[lane].ways[0][0][0], count);
    prefer_lending(rank->mail.ways, HP_WAY_SIZES);
}

static inline void *start_rank(void *arg)
{
    struct rank *const rank = arg;
    const struct world *const world = rank->world;
    CHECK(hp_node_init(&rank->node, world->windows, world->size, rank->index, world->length) == 0);
    rank->node.kernels = hp_kernels_of(hp_best_level());
    rank->node.tuning.chunk = world->chunk;
    rank->node.tuning.copy_chunk = world->chunk / 4 & ~63u;
    rank->node.tuning.lend = world->lends ? 1 : UINT64_MAX;
    rank->node.spins = world->spins;
    rank->node.fd = world->fds[rank->index];
    rank->area = hp_node_claim(&rank->node, GROUP_KEY);
    CHECK(rank->area == 0);
    for (int lane = 0; lane < HP_LANES; lane++)
        join(rank, GROUP_KEY, &rank->teams[lane], lane);
    hp_mail_init(&rank->mail, &rank->node);
    if (world->lends)
        prefer_all(rank);
    world->body(rank);
    hp_mail_end(&rank->mail);
    return NULL;
}

/* Run the body on all ranks of a new node. */
static inline void run_world(struct world *world)
{
    struct rank *const ranks = calloc((size_t)world->size, sizeof *ranks);
    CHECK(ranks && pthread_barrier_init(&world->all, NULL, (unsigned)world->size) == 0);
    world->length = HP_AREAS_OFFSET + 2 * MAX_AREAS * sizeof(struct hp_area);
    world->length += world->in_heap ? HEAP : 0;
    for (int r = 0; r < world->size; r++)
        map_window(world, r);
    for (int r = 0; r < world->size; r++) {
        ranks[r].world = world;
        ranks[r].index = r;
        ranks[r].random = 0x9e3779b97f4a7c15u * (uint64_t)(r + 1);
        CHECK(pthread_create(&ranks[r].thread, NULL, start_rank, &ranks[r]) == 0);
    }
    for (int r = 0; r < world->size; r++)
        CHECK(pthread_join(ranks[r].thread, NULL) == 0);
    for (int r = 0; r < world->size; r++)
        unmap_window(world, r);
    pthread_barrier_destroy(&world->all);
    free(ranks);
}

static inline void run_ranks(int size, unsigned chunk, unsigned spins, void (*body)(struct rank *))
{
    struct world world = {.size = size, .chunk = chunk, .spins = spins, .body = body};
    run_world(&world);
}

static inline void meet(struct rank *rank)
{
    pthread_barrier_wait(&rank->world->all);
}

#endif

/* The node engine between two processes; size is bytes, or the ranks that are looked at. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "hp_node.h"

enum { RANKS = 8, SPINS = 20000 };

struct job {
    struct hp_node node;
    struct hp_team team;
    struct hp_request request;
    float send[16384], recv[16384];
};

static void *new_window(int rank)
{
    struct hp_window *const window = mmap(NULL, HP_WINDOW_MIN, PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window == MAP_FAILED)
        exit(1);
    memcpy(window->magic, HP_WINDOW_MAGIC, sizeof window->magic);
    window->version = HP_WINDOW_VERSION;
    window->rank = rank;
    window->length = HP_WINDOW_MIN;
    return window;
}

/* A group of the first `size` ranks, as `rank` sees it. */
static void join(struct job *job, void *const *windows, int size, int rank)
{
    int members[RANKS], areas[RANKS] = {0};
    for (int r = 0; r < size; r++)
        members[r] = r;
    memset(job, 0, sizeof *job);
    if (hp_node_init(&job->node, windows, size, rank, HP_WINDOW_MIN) < 0)
        exit(1);
    job->node.kernels = hp_kernels_of(hp_best_level());
    job->node.spins = SPINS;
    hp_team_init(&job->team, &job->node, members, areas, size, rank, 0);
    job->request = (struct hp_request){.verb = HP_ALL_REDUCE, .dtype = HP_F32, .op = HP_SUM,
                                       .root = -1, .send = job->send, .recv = job->recv,
                                       .print = 1, .is_ready = true};
}

static void all_reduce(void *arg)
{
    struct job *const job = arg;
    struct hp_call call;
    hp_call_begin(&call, &job->team, &job->request);
    if (hp_call_run(&call, UINT64_C(10000000000)) != HP_DONE)
        exit(1);
}

static void ring(void *arg)
{
    hp_team_ring(&((struct job *)arg)->team);
}

/* The other process does the same until it is stopped. */
static void bench_all_reduce(void *const *windows, struct job *job, size_t nbytes)
{
    const pid_t child = fork();
    join(job, windows, 2, child == 0);
    if (hp_node_claim(&job->node, nbytes) != 0)
        exit(1);
    while (hp_node_find(&job->node, child != 0, nbytes) < 0)
        continue;
    job->request.nbytes = nbytes;
    while (child == 0)
        all_reduce(job);
    report("all_reduce, 2 processes", nbytes, time_ns(all_reduce, job), 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int r = 0; r < 2; r++) { /* what the stopped one leaves behind */
        struct hp_window *const window = windows[r];
        window->keys[0] = 0;
        window->bells[0].sleepers = 0;
    }
}

int main(void)
{
    static const size_t sizes[] = {4, 1024, 4096, 65536};
    struct job *const job = filled(sizeof *job);
    void *windows[RANKS];
    for (int r = 0; r < RANKS; r++)
        windows[r] = new_window(r);
    for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++)
        bench_all_reduce(windows, job, sizes[z]);
    for (int size = 2; size <= RANKS; size *= 2) {
        join(job, windows, size, 0);
        report("look at sleepers", (size_t)size, time_ns(ring, job), 0);
    }
    free(job);
    return 0;
}

/* The node engine between two processes; size is bytes, or the ranks that are looked at. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "hp_node.h"

#define LENGTH (HP_WINDOW_MIN + (96u << 20))

enum { RANKS = 8, SPINS = 20000, PAIRS = 41, CALLS = 25000 };

struct job {
    struct hp_node node;
    struct hp_team team;
    struct hp_request request;
    float send[16384], recv[16384];
    struct hp_recorder recorder;
    uint8_t header[HP_POST_HEADER];
};

static void *new_window(int rank)
{
    struct hp_window *const window = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window == MAP_FAILED)
        exit(1);
    memcpy(window->magic, HP_WINDOW_MAGIC, sizeof window->magic);
    window->version = HP_WINDOW_VERSION;
    window->rank = rank;
    window->length = LENGTH;
    return window;
}

/* A group of the first `size` ranks, as `rank` sees it. */
static void join(struct job *job, void *const *windows, int size, int rank)
{
    int members[RANKS], areas[RANKS] = {0};
    for (int r = 0; r < size; r++)
        members[r] = r;
    memset(job, 0, sizeof *job);
    if (hp_node_init(&job->node, windows, size, rank, LENGTH) < 0)
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

/* The same as the hot path does it: recorded, and with a header that says what is meant. */
static void watched_all_reduce(void *arg)
{
    struct job *const job = arg;
    const struct hp_operation operation = {.verb = 2, .dtype = 12, .count = 1, .itemsize = 4};
    const struct hp_total traffic = {.sent = 4, .received = 4, .messages = 1};
    const int64_t ticket = hp_recorder_begin(&job->recorder, &operation);
    const uint64_t seq = hp_recorder_seq(&job->recorder, 0) - 1;
    memcpy(job->header + HP_HEADER_SEQ, &seq, sizeof seq);
    job->request.header = job->header;
    all_reduce(job);
    job->request.header = NULL;
    hp_recorder_sent(&job->recorder, ticket, &traffic);
    hp_recorder_end(&job->recorder, ticket, 0);
}

/* Begin a group of two processes; the other one's id, 0 in itself. */
static pid_t part(void *const *windows, struct job *job, size_t nbytes)
{
    const pid_t child = fork();
    join(job, windows, 2, child == 0);
    if (hp_node_claim(&job->node, nbytes) != 0)
        exit(1);
    while (hp_node_find(&job->node, child != 0, nbytes) < 0)
        continue;
    job->request.nbytes = nbytes;
    return child;
}

static void end(void *const *windows, pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int r = 0; r < 2; r++) { /* what the stopped one leaves behind */
        struct hp_window *const window = windows[r];
        window->keys[0] = 0;
        window->bells[0].sleepers = 0;
    }
}

/* The other process does the same until it is stopped. */
static void bench_all_reduce(void *const *windows, struct job *job, size_t nbytes)
{
    const pid_t child = part(windows, job, nbytes);
    while (child == 0)
        all_reduce(job);
    report("all_reduce, 2 processes", nbytes, time_ns(all_reduce, job), 0);
    end(windows, child);
}

/* In place, of arrays that lie in the windows. */
static void bench_symmetric(void *const *windows, struct job *job, size_t nbytes)
{
    const pid_t child = part(windows, job, nbytes);
    char *const mine = (char *)windows[child == 0] + job->node.heap;
    memset(mine, 0, nbytes);
    job->request.send = job->request.recv = mine;
    while (child == 0)
        all_reduce(job);
    report("the same, symmetric", nbytes, time_ns(all_reduce, job), 0);
    end(windows, child);
}

static double round_ns(void (*body)(void *), struct job *job)
{
    const double start = now_ns();
    for (int i = 0; i < CALLS; i++)
        body(job);
    return (now_ns() - start) / CALLS;
}

/* What record and fingerprint cost: both ways by turns, a million calls each. */
static void bench_watching(void *const *windows, struct job *job)
{
    void *const memory = filled(hp_recorder_bytes(1024, 1));
    double plain[PAIRS], watched[PAIRS];
    const pid_t child = part(windows, job, sizeof(float));
    hp_recorder_init(&job->recorder, memory, 1024);
    hp_recorder_add_group(&job->recorder, "world", 0, 2);
    for (int i = 0; i < PAIRS; i++) {
        plain[i] = round_ns(all_reduce, job);
        watched[i] = round_ns(watched_all_reduce, job);
    }
    if (child == 0)
        _exit(0);
    qsort(plain, PAIRS, sizeof plain[0], by_value);
    qsort(watched, PAIRS, sizeof watched[0], by_value);
    report("the same, watched", sizeof(float), watched[PAIRS / 2], 0);
    report("record and fingerprint", sizeof(float), watched[PAIRS / 2] - plain[PAIRS / 2], 0);
    free(memory);
    end(windows, child);
}

int main(void)
{
    static const size_t sizes[] = {4, 1024, 4096, 65536}, large[] = {65536, 1 << 20, 25 << 20};
    struct job *const job = filled(sizeof *job);
    void *windows[RANKS];
    for (int r = 0; r < RANKS; r++)
        windows[r] = new_window(r);
    for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++)
        bench_all_reduce(windows, job, sizes[z]);
    for (size_t z = 0; z < sizeof large / sizeof large[0]; z++)
        bench_symmetric(windows, job, large[z]);
    bench_watching(windows, job);
    for (int size = 2; size <= RANKS; size *= 2) {
        join(job, windows, size, 0);
        report("look at sleepers", (size_t)size, time_ns(ring, job), 0);
    }
    free(job);
    return 0;
}

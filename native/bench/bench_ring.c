/* One message through the ring, written and read by one thread; size is bytes of the message. */
#include "bench.h"

struct job {
    struct hp_ring *ring;
    size_t nbytes;
};

static void pass(void *arg)
{
    const struct job *const job = arg;
    void *to;
    const void *from;
    size_t nbytes;
    hp_ring_reserve(job->ring, job->nbytes, &to);
    memset(to, 1, job->nbytes);
    hp_ring_commit(job->ring, job->nbytes);
    hp_ring_peek(job->ring, &from, &nbytes);
    hp_ring_release(job->ring);
}

int main(void)
{
    const size_t nbytes = sizeof(struct hp_ring) + (1 << 20), sizes[] = {0, 64, 4096, 65536};
    void *const memory = filled(nbytes);
    hp_ring_init(memory, nbytes, 0);
    for (size_t z = 0; z < 4; z++) {
        struct job job = {memory, sizes[z]};
        report("ring message", sizes[z], time_ns(pass, &job), sizes[z]);
    }
    free(memory);
    return 0;
}

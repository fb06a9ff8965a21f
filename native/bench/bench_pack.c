/* Gathering against memcpy of the same bytes; size is bytes of the array. */
#include "bench.h"

struct job {
    struct hp_array array;
    char *flat;
    size_t nbytes;
};

static void gather(void *arg)
{
    const struct job *const job = arg;
    hp_gather(job->flat, &job->array);
}

static void gather_cast(void *arg)
{
    const struct job *const job = arg;
    hp_gather_cast(hp_kernels_of(hp_best_level()), job->flat, HP_BF16, &job->array, 1.0);
}

static void plain_copy(void *arg)
{
    const struct job *const job = arg;
    memcpy(job->flat, job->array.data, job->nbytes);
}

int main(void)
{
    const size_t sizes[] = {1024, 65536, 1 << 20, 25 << 20};
    for (size_t z = 0; z < 4; z++) {
        const ptrdiff_t n = (ptrdiff_t)(sizes[z] / 4), cols = 16, rows = n / cols;
        const ptrdiff_t shape[] = {n}, stride[] = {4}, every_second[] = {8};
        const ptrdiff_t matrix[] = {rows, cols}, transposed[] = {4, 4 * rows};
        char *const data = filled(2 * sizes[z]), *const flat = filled(sizes[z]);
        struct job job = {{data, 1, shape, stride, 4, HP_F32}, flat, sizes[z]};
        report("memcpy", sizes[z], time_ns(plain_copy, &job), 2 * sizes[z]);
        report("gather contiguous", sizes[z], time_ns(gather, &job), 2 * sizes[z]);
        report("gather as bfloat16", sizes[z], time_ns(gather_cast, &job), 3 * sizes[z] / 2);
        job.array.strides = every_second;
        report("gather every second", sizes[z], time_ns(gather, &job), 2 * sizes[z]);
        job.array = (struct hp_array){data, 2, matrix, transposed, 4, HP_F32};
        report("gather 16 columns", sizes[z], time_ns(gather, &job), 2 * sizes[z]);
        free(data);
        free(flat);
    }
    return 0;
}

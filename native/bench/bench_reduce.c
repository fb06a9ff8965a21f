/* Reduction at each SIMD level; size is bytes per array. */
#include "bench.h"

struct job {
    const struct hp_kernels *kernels;
    struct hp_reduction r;
};

static void reduce(void *arg)
{
    const struct job *const job = arg;
    hp_reduce(job->kernels, &job->r);
}

static const struct {
    const char *name;
    int dtype;
} dtypes[] = {{"float32", HP_F32}, {"float16", HP_F16}, {"bfloat16", HP_BF16}, {"int8", HP_I8}};

int main(void)
{
    const size_t sizes[] = {4096, 65536, 1 << 20, 25 << 20};
    char name[64];
    for (size_t z = 0; z < 4; z++) {
        const void *srcs[4];
        for (int s = 0; s < 4; s++)
            srcs[s] = filled(sizes[z]);
        void *const out = filled(sizes[z]);
        for (int level = 0; level < HP_NUM_LEVELS; level++)
            for (size_t d = 0; d < 4; d++)
                for (size_t n = 2; n <= 4; n += 2) {
                    struct job job = {.kernels = hp_kernels_of((enum hp_level)level)};
                    job.r = (struct hp_reduction){.out = out, .srcs = srcs, .num_srcs = n};
                    job.r.dtype = dtypes[d].dtype;
                    job.r.count = sizes[z] / hp_itemsize(job.r.dtype);
                    snprintf(name, sizeof name, "%s %zu x %s",
                             hp_level_name((enum hp_level)level), n, dtypes[d].name);
                    if (job.kernels)
                        report(name, sizes[z], time_ns(reduce, &job), (n + 1) * sizes[z]);
                }
        for (int s = 0; s < 4; s++)
            free((void *)srcs[s]);
        free(out);
    }
    return 0;
}

/*
 * Reduction of several sources: block by block, so that the accumulator stays in the first-level
 * cache and each source is read once, in order. Only a block's last step writes `out`, and by
 * then the block of every source has been read: `out` may be a source.
 */
#include <errno.h>
#include <string.h>

#include "kernels.h"

#ifdef HP_HAS_avx2
#include <cpuid.h>
#endif

#define BLOCK_BYTES 8192

static const struct hp_kernels levels[HP_NUM_LEVELS] = {
    [HP_BASELINE] = {&hp_ints_baseline, &hp_floats_baseline, &hp_halves_baseline},
#ifdef HP_HAS_avx2
    [HP_AVX2] = {&hp_ints_avx2, &hp_floats_avx2, &hp_halves_avx2},
    [HP_AVX512] = {&hp_ints_avx512, &hp_floats_avx512, &hp_halves_avx512},
#endif
};

#ifdef HP_HAS_avx2
/* By hand, for compilers whose builtin does not know the name. Slow under a hypervisor. */
static bool cpu_has_f16c(void)
{
    unsigned int eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

static bool cpu_has(enum hp_level level)
{
    if (level == HP_BASELINE)
        return true;
#ifdef HP_HAS_avx2
    __builtin_cpu_init();
    /* True only where the operating system saves the registers, too; F16C uses AVX's. */
    if (!__builtin_cpu_supports("avx2") || !cpu_has_f16c())
        return false;
    return level == HP_AVX2 ||
           (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
#else
    return false;
#endif
}

const struct hp_kernels *hp_kernels_of(enum hp_level level)
{
    return level < HP_NUM_LEVELS && cpu_has(level) ? &levels[level] : NULL;
}

enum hp_level hp_best_level(void)
{
    return cpu_has(HP_AVX512) ? HP_AVX512 : cpu_has(HP_AVX2) ? HP_AVX2 : HP_BASELINE;
}

const char *hp_level_name(enum hp_level level)
{
    static const char *const names[HP_NUM_LEVELS] = {"baseline", "avx2", "avx512"};
    return level < HP_NUM_LEVELS ? names[level] : "unknown";
}

/* A reduction resolved to functions. */
struct plan {
    struct hp_reduction r;
    size_t item;     /* bytes of an element of the arrays */
    size_t acc_item; /* bytes of an accumulator */
    hp_step_fn *step;
    hp_widen_fn *widen;
    hp_widen_fn *add; /* widens and adds in one pass; NULL where that does not do */
    hp_narrow_fn *narrow;
    hp_by_fn *multiply;
    hp_by_fn *divide;
};

/* Complex numbers come here for products only; their sums were turned into floats. */
static hp_step_fn *step_of(const struct hp_kernels *k, int dtype, int op)
{
    if (dtype <= HP_U64)
        return k->ints->step[dtype][op];
    if (dtype == HP_C64 || dtype == HP_C128)
        return k->floats->complex_prod[dtype == HP_C128];
    return k->floats->step[dtype == HP_F64][op];
}

/* Only sums of floats can be scaled: for the rest a factor has no agreed meaning. */
static int check(const struct hp_reduction *r)
{
    if (r->num_srcs == 0 || hp_itemsize(r->dtype) == 0 || r->op < 0 || r->op >= HP_NUM_OPS)
        return -EINVAL;
    if (!hp_reducible(r->dtype, r->op))
        return -ENOTSUP;
    if ((r->factors || r->divisor) && !(r->op == HP_SUM && hp_scalable(r->dtype)))
        return -ENOTSUP;
    return 0;
}

/* Choose the functions; `given` was checked. */
static struct plan resolve(const struct hp_kernels *k, const struct hp_reduction *given)
{
    struct plan p = {.r = *given};
    if (p.r.op == HP_SUM && (p.r.dtype == HP_C64 || p.r.dtype == HP_C128)) {
        p.r.dtype = p.r.dtype == HP_C64 ? HP_F32 : HP_F64; /* a sum adds component by component */
        p.r.count *= 2;
    }
    const int wide = p.r.dtype == HP_F64;
    p.item = hp_itemsize(p.r.dtype);
    p.widen = k->halves->widen[p.r.dtype];
    p.narrow = k->halves->narrow[p.r.dtype];
    p.add = p.r.op == HP_SUM && !p.r.factors ? k->halves->add[p.r.dtype] : NULL;
    p.acc_item = p.widen ? sizeof(float) : p.item;
    p.step = step_of(k, p.r.dtype, p.r.op);
    p.multiply = k->floats->multiply[wide];
    p.divide = k->floats->divide[wide];
    return p;
}

/* A block of source `s` as accumulator values: in place, or made in `room`. */
static const void *operand(const struct plan *p, size_t s, size_t at, size_t n, void *room)
{
    const void *x = (const char *)p->r.srcs[s] + at * p->item;
    if (p->widen) {
        p->widen(room, x, n);
        x = room;
    }
    if (p->r.factors) {
        p->multiply(room, x, p->r.factors[s], n);
        x = room;
    }
    return x;
}

/* Sum narrow floats into `acc`. */
static const void *add_all(const struct plan *p, size_t at, size_t n, float *acc)
{
    p->widen(acc, (const char *)p->r.srcs[0] + at * p->item, n);
    for (size_t s = 1; s < p->r.num_srcs; s++)
        p->add(acc, (const char *)p->r.srcs[s] + at * p->item, n);
    return acc;
}

/* Fold the sources; the last step writes to `last`. */
static const void *fold_all(const struct plan *p, size_t at, size_t n, void *acc, void *last)
{
    _Alignas(HP_CACHE_LINE) char room[BLOCK_BYTES];
    const void *sum = operand(p, 0, at, n, acc);
    for (size_t s = 1; s < p->r.num_srcs; s++) {
        void *const dst = s + 1 == p->r.num_srcs ? last : acc;
        p->step(dst, sum, operand(p, s, at, n, room), n);
        sum = dst;
    }
    return sum;
}

static void reduce_block(const struct plan *p, size_t at, size_t n)
{
    _Alignas(HP_CACHE_LINE) char acc[BLOCK_BYTES];
    char *const out = (char *)p->r.out + at * p->item;
    void *const last = p->narrow || p->r.divisor ? acc : out;
    const void *sum = p->add ? add_all(p, at, n, (float *)acc) : fold_all(p, at, n, acc, last);
    if (p->r.divisor) {
        void *const dst = p->narrow ? (void *)acc : out;
        p->divide(dst, sum, *p->r.divisor, n);
        sum = dst;
    }
    if (p->narrow)
        p->narrow(out, sum, n);
    else if (sum != out)
        memmove(out, sum, n * p->item);
}

/* The common cases in one pass over whole arrays; false if this is none of them. */
static bool reduce_at_once(const struct hp_kernels *k, const struct plan *p)
{
    const struct hp_reduction *const r = &p->r;
    const int wide = r->dtype == HP_F64;
    const bool sum = r->op == HP_SUM, floats = r->dtype == HP_F32 || wide;
    if (r->factors || r->divisor)
        return false;
    if (r->num_srcs == 1)
        memmove(r->out, r->srcs[0], r->count * p->item);
    else if (r->num_srcs == 2 && p->widen && sum)
        k->halves->sum2[r->dtype](r->out, r->srcs[0], r->srcs[1], r->count);
    else if (r->num_srcs == 2 && !p->widen)
        p->step(r->out, r->srcs[0], r->srcs[1], r->count);
    else if (r->num_srcs == 3 && sum && floats)
        k->floats->sum3[wide](r->out, r->srcs, r->count);
    else if (r->num_srcs == 4 && sum && floats)
        k->floats->sum4[wide](r->out, r->srcs, r->count);
    else
        return false;
    return true;
}

/* Whether it is the sum of two arrays of float32, float64 or complex numbers. */
static bool is_sum2(const struct hp_reduction *r)
{
    const bool plain = r->num_srcs == 2 && r->op == HP_SUM && !r->factors && !r->divisor;
    return plain && (r->dtype == HP_F32 || r->dtype == HP_F64);
}

/* Write two results in one pass, where that is the common case; false if it is not. */
static bool reduce_to_both(const struct hp_kernels *k, const struct hp_reduction *r)
{
    if (!r->also || !is_sum2(r))
        return false;
    k->floats->sum2_both[r->dtype == HP_F64](r->out, r->also, r->srcs[0], r->srcs[1], r->count);
    return true;
}

bool hp_reduce_past(const struct hp_kernels *kernels, const struct hp_reduction *reduction)
{
    const struct hp_reduction r = resolve(kernels, reduction).r;
    if (!is_sum2(&r))
        return false;
    kernels->floats->sum2_past[r.dtype == HP_F64](r.out, r.also, r.srcs[0], r.srcs[1], r.count);
    return true;
}

int hp_reduce(const struct hp_kernels *kernels, const struct hp_reduction *reduction)
{
    const int rc = check(reduction);
    if (rc < 0)
        return rc;
    const struct plan p = resolve(kernels, reduction);
    if (reduce_to_both(kernels, &p.r))
        return 0;
    const size_t most = BLOCK_BYTES / p.acc_item;
    const size_t rest = reduce_at_once(kernels, &p) ? 0 : p.r.count;
    for (size_t at = 0; at < rest; at += most)
        reduce_block(&p, at, rest - at < most ? rest - at : most);
    if (p.r.also)
        memcpy(p.r.also, p.r.out, p.r.count * p.item);
    return 0;
}

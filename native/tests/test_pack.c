/* Gather and scatter against a naive walk over all indices. */
#include "check.h"

enum { MAX_AXES = 5, SPACE = 1 << 18 };

static uint64_t state = 88172645463325252u;

/* A random view into `space`: axes of length 0 to 3, steps of any sign, none overlapping. */
struct view {
    ptrdiff_t shape[MAX_AXES], strides[MAX_AXES];
    struct hp_array array;
    size_t count;
};

static void random_view(struct view *v, char *space, size_t item, int dtype)
{
    const int ndim = (int)(random64(&state) % (MAX_AXES + 1));
    int order[MAX_AXES] = {0, 1, 2, 3, 4};
    for (int i = ndim - 1; i > 0; i--) { /* which axis varies fastest in memory */
        const int j = (int)(random64(&state) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    ptrdiff_t step = (ptrdiff_t)item, at = 0;
    v->count = 1;
    for (int i = 0; i < ndim; i++) {
        const int axis = order[i];
        const ptrdiff_t n = (ptrdiff_t)(random64(&state) % 4);
        const ptrdiff_t gap = random64(&state) % 3 ? 1 : 2;
        const bool backwards = random64(&state) % 4 == 0;
        v->shape[axis] = n;
        v->strides[axis] = backwards ? -step * gap : step * gap;
        at += backwards && n ? (n - 1) * step * gap : 0;
        step *= (n ? n : 1) * gap;
        v->count *= (size_t)n;
    }
    CHECK(step <= SPACE);
    v->array = (struct hp_array){space + at, ndim, v->shape, v->strides, item, dtype};
}

/* Where element `index` (C order) lies. */
static char *element(const struct view *v, size_t index)
{
    char *at = v->array.data;
    for (int i = v->array.ndim - 1; i >= 0; i--) {
        at += (ptrdiff_t)(index % (size_t)v->shape[i]) * v->strides[i];
        index /= (size_t)v->shape[i];
    }
    return at;
}

static char space[SPACE + 16], flat[SPACE], back[SPACE + 16];

static void test_copy(size_t item)
{
    struct view v;
    random_view(&v, space + 1, item, -1); /* unaligned on purpose */
    random_bytes(space, sizeof space, &state);
    memset(flat, 0, sizeof flat);
    hp_gather(flat, &v.array);
    for (size_t i = 0; i < v.count; i++)
        CHECK(memcmp(flat + i * item, element(&v, i), item) == 0);
    memcpy(back, space, sizeof space);
    for (size_t i = 0; i < v.count; i++)
        memset(element(&v, i), 0xee, item);
    hp_scatter(&v.array, flat);
    CHECK(memcmp(space, back, sizeof space) == 0); /* and nothing beside the view changed */
}

static void test_cast(const struct hp_kernels *k)
{
    static _Alignas(8) double wide[SPACE / 4];
    struct view v;
    random_view(&v, space + random64(&state) % 2, 4, HP_F32);
    for (size_t i = 0; i < v.count; i++) {
        const float x = (float)i - 10;
        memcpy(element(&v, i), &x, sizeof x);
    }
    CHECK(hp_gather_cast(k, (char *)wide, HP_F64, &v.array, 0.5) == 0);
    for (size_t i = 0; i < v.count; i++)
        CHECK(wide[i] == ((double)i - 10) / 2);
    CHECK(hp_scatter_cast(k, &v.array, (const char *)wide, HP_F64, 4.0) == 0);
    for (size_t i = 0; i < v.count; i++) {
        float x;
        memcpy(&x, element(&v, i), sizeof x);
        CHECK(x == ((float)i - 10) * 2);
    }
}

/* More elements per line than a cast gathers at a time. */
static void test_long_lines(const struct hp_kernels *k)
{
    enum { N = 2500 };
    static float x[2 * N];
    static double y[N];
    const ptrdiff_t shape[1] = {N}, strides[1] = {2 * sizeof(float)};
    const struct hp_array a = {(char *)x, 1, shape, strides, sizeof(float), HP_F32};
    for (int i = 0; i < N; i++)
        x[2 * i] = (float)i;
    CHECK(hp_gather_cast(k, (char *)y, HP_F64, &a, 1.0) == 0);
    for (int i = 0; i < N; i++)
        CHECK(y[i] == i);
    memset(x, 0, sizeof x);
    CHECK(hp_scatter_cast(k, &a, (const char *)y, HP_F64, 1.0) == 0);
    for (int i = 0; i < N; i++)
        CHECK(x[2 * i] == (float)i && x[2 * i + 1] == 0);
}

static void test_own_place(void)
{
    const ptrdiff_t shape[1] = {100}, strides[1] = {1};
    const struct hp_array a = {flat, 1, shape, strides, 1, -1};
    random_bytes(flat, 100, &state);
    memcpy(back, flat, 100);
    hp_gather(flat, &a);
    hp_scatter(&a, flat);
    CHECK(memcmp(flat, back, 100) == 0);
}

int main(void)
{
    const size_t items[] = {1, 2, 3, 4, 8, 12, 16, 17};
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++)
        for (int round = 0; round < 100; round++)
            test_copy(items[i]);
    FOR_EACH_LEVEL(k)
    {
        for (int round = 0; round < 500; round++)
            test_cast(k);
        test_long_lines(k);
    }
    test_own_place();
    return 0;
}

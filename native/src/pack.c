/*
 * Strided arrays into and out of contiguous bytes. Axes are folded first: axes of length 1
 * vanish, neighbours that step as one are merged, and what is contiguous becomes one run of
 * bytes. So a contiguous array of any rank is one memcpy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compiler.h"
#include "hp_node.h"
#include "hpcpar.h"

#define BLOCK 1024          /* elements that a cast gathers at a time */
#define STREAMED (1u << 20) /* bytes from which a run is written past the caches */

struct walk;
/* Handles a line of `n` items that lie `stride` bytes apart. */
typedef void line_fn(const struct walk *w, char *flat, char *data, ptrdiff_t n, ptrdiff_t stride);

struct walk {
    line_fn *line;
    int ndim;
    ptrdiff_t shape[HP_MAX_NDIM];
    ptrdiff_t strides[HP_MAX_NDIM];
    size_t item;      /* bytes per item on the array's side */
    size_t flat_item; /* and on the flat side */
    /* read by casts only */
    const struct hp_kernels *kernels;
    int dtype;
    int flat_dtype;
    double scale;
};

/* Fold the axes; false if the array is empty. */
static bool fold(struct walk *w, const struct hp_array *a)
{
    int ndim = 0;
    for (int i = 0; i < a->ndim; i++) {
        if (a->shape[i] == 0)
            return false;
        if (a->shape[i] == 1)
            continue;
        if (ndim > 0 && w->strides[ndim - 1] == a->shape[i] * a->strides[i]) {
            w->shape[ndim - 1] *= a->shape[i];
            w->strides[ndim - 1] = a->strides[i];
        } else {
            w->shape[ndim] = a->shape[i];
            w->strides[ndim++] = a->strides[i];
        }
    }
    w->ndim = ndim;
    return true;
}

/* Make a contiguous last axis part of the item. */
static void absorb_run(struct walk *w)
{
    const int last = w->ndim - 1;
    if (last >= 0 && w->strides[last] == (ptrdiff_t)w->item) {
        w->item *= (size_t)w->shape[last];
        w->ndim = last;
    }
    w->flat_item = w->item;
}

enum { TILE_ROWS = 16, TILE_COLS = 32 };

static ptrdiff_t least(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

/* Whether the last two axes lie in memory the other way round, as in a transposed matrix. */
static bool is_transposed(const struct walk *w, int axis)
{
    return axis + 2 == w->ndim && labs(w->strides[axis]) < labs(w->strides[axis + 1]);
}

/* Such axes go in tiles, so that a cache line is fetched once and not once per row. */
static void visit_tiles(const struct walk *w, int axis, char *data, char *flat)
{
    const ptrdiff_t rows = w->shape[axis], cols = w->shape[axis + 1];
    const ptrdiff_t row_step = w->strides[axis], step = w->strides[axis + 1];
    for (ptrdiff_t top = 0; top < rows; top += TILE_ROWS)
        for (ptrdiff_t left = 0; left < cols; left += TILE_COLS)
            for (ptrdiff_t row = top; row < least(top + TILE_ROWS, rows); row++)
                w->line(w, flat + (size_t)(row * cols + left) * w->flat_item,
                        data + row * row_step + left * step, least(TILE_COLS, cols - left), step);
}

/* Visit all lines from `axis` on in C order; returns where the flat side goes on. */
static char *visit(const struct walk *w, int axis, char *data, char *flat)
{
    if (axis + 1 >= w->ndim) {
        const ptrdiff_t n = w->ndim ? w->shape[axis] : 1;
        w->line(w, flat, data, n, w->ndim ? w->strides[axis] : 0);
        return flat + (size_t)n * w->flat_item;
    }
    if (is_transposed(w, axis)) {
        visit_tiles(w, axis, data, flat);
        return flat + (size_t)(w->shape[axis] * w->shape[axis + 1]) * w->flat_item;
    }
    for (ptrdiff_t i = 0; i < w->shape[axis]; i++)
        flat = visit(w, axis + 1, data + i * w->strides[axis], flat);
    return flat;
}

/* Inlined with a constant `item` a copy is one load and one store. */
static inline void copy_in(char *flat, const char *data, ptrdiff_t n, ptrdiff_t stride, size_t item)
{
    HP_UNROLL
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(flat + (size_t)i * item, data + i * stride, item);
}

static inline void copy_out(const char *flat, char *data, ptrdiff_t n, ptrdiff_t stride,
                            size_t item)
{
    HP_UNROLL
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(data + i * stride, flat + (size_t)i * item, item);
}

static void copy_run(void *to, const void *from, size_t nbytes)
{
    if (nbytes < STREAMED)
        memcpy(to, from, nbytes);
    else /* the caches would not keep it: to read the old bytes first is for nothing */
        hp_copy_streaming(to, from, nbytes);
}

static void copy_in_runs(char *flat, const char *data, ptrdiff_t n, ptrdiff_t stride, size_t item)
{
    for (ptrdiff_t i = 0; i < n; i++)
        copy_run(flat + (size_t)i * item, data + i * stride, item);
}

static void copy_out_runs(const char *flat, char *data, ptrdiff_t n, ptrdiff_t stride, size_t item)
{
    for (ptrdiff_t i = 0; i < n; i++)
        copy_run(data + i * stride, flat + (size_t)i * item, item);
}

/* What is longer than an item is a run. */
#define BY_ITEM(copy, item, ...)       \
    switch (item) {                    \
    case 1: copy(__VA_ARGS__, 1); break;   \
    case 2: copy(__VA_ARGS__, 2); break;   \
    case 4: copy(__VA_ARGS__, 4); break;   \
    case 8: copy(__VA_ARGS__, 8); break;   \
    case 16: copy(__VA_ARGS__, 16); break; \
    default: copy##_runs(__VA_ARGS__, item); \
    }

static void gather_line(const struct walk *w, char *flat, char *data, ptrdiff_t n,
                        ptrdiff_t stride)
{
    BY_ITEM(copy_in, w->item, flat, data, n, stride)
}

static void scatter_line(const struct walk *w, char *flat, char *data, ptrdiff_t n,
                         ptrdiff_t stride)
{
    BY_ITEM(copy_out, w->item, flat, data, n, stride)
}

static void copy(char *flat, const struct hp_array *a, line_fn *line)
{
    struct walk w; /* not cleared: its room for axes would cost more than a small copy */
    w.line = line;
    w.item = a->itemsize;
    if (!fold(&w, a))
        return;
    absorb_run(&w);
    if (w.ndim == 0 && a->data == flat)
        return; /* the array is a view of its own place in the buffer */
    visit(&w, 0, a->data, flat);
}

void hp_gather(char *flat, const struct hp_array *array)
{
    copy(flat, array, gather_line);
}

void hp_scatter(const struct hp_array *array, const char *flat)
{
    copy((char *)flat, array, scatter_line); /* scatter_line only reads `flat` */
}

/* Whether a line can be cast where it lies. */
static bool castable(const struct walk *w, const char *data, ptrdiff_t n, ptrdiff_t stride)
{
    return (n == 1 || stride == (ptrdiff_t)w->item) && (uintptr_t)data % w->item == 0;
}

static void gather_cast_line(const struct walk *w, char *flat, char *data, ptrdiff_t n,
                             ptrdiff_t stride)
{
    _Alignas(16) char room[BLOCK * 16];
    if (castable(w, data, n, stride)) {
        hp_cast(w->kernels, flat, w->flat_dtype, data, w->dtype, w->scale, (size_t)n);
        return;
    }
    for (ptrdiff_t at = 0; at < n; at += BLOCK) {
        const ptrdiff_t m = n - at < BLOCK ? n - at : BLOCK;
        gather_line(w, room, data + at * stride, m, stride);
        hp_cast(w->kernels, flat + (size_t)at * w->flat_item, w->flat_dtype, room, w->dtype,
                w->scale, (size_t)m);
    }
}

static void scatter_cast_line(const struct walk *w, char *flat, char *data, ptrdiff_t n,
                              ptrdiff_t stride)
{
    _Alignas(16) char room[BLOCK * 16];
    if (castable(w, data, n, stride)) {
        hp_cast(w->kernels, data, w->dtype, flat, w->flat_dtype, w->scale, (size_t)n);
        return;
    }
    for (ptrdiff_t at = 0; at < n; at += BLOCK) {
        const ptrdiff_t m = n - at < BLOCK ? n - at : BLOCK;
        hp_cast(w->kernels, room, w->dtype, flat + (size_t)at * w->flat_item, w->flat_dtype,
                w->scale, (size_t)m);
        scatter_line(w, room, data + at * stride, m, stride);
    }
}

static int cast(const struct hp_kernels *kernels, char *flat, int flat_dtype,
                const struct hp_array *a, double scale, line_fn *line)
{
    struct walk w;
    w.line = line;
    w.item = a->itemsize;
    w.flat_item = hp_itemsize(flat_dtype);
    w.kernels = kernels;
    w.dtype = a->dtype;
    w.flat_dtype = flat_dtype;
    w.scale = scale;
    if (!hp_is_real_float(flat_dtype) || !hp_is_real_float(a->dtype))
        return -ENOTSUP;
    if (fold(&w, a))
        visit(&w, 0, a->data, flat);
    return 0;
}

int hp_gather_cast(const struct hp_kernels *kernels, char *flat, int flat_dtype,
                   const struct hp_array *array, double scale)
{
    return cast(kernels, flat, flat_dtype, array, scale, gather_cast_line);
}

int hp_scatter_cast(const struct hp_kernels *kernels, const struct hp_array *array,
                    const char *flat, int flat_dtype, double scale)
{
    return cast(kernels, (char *)flat, flat_dtype, array, scale, scatter_cast_line);
}

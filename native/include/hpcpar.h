/*
 * hpcpar.h - the C core: reductions, packing, random numbers, flight record, ring.
 *
 * The caller owns all memory. Functions that can fail return 0 or a negative errno; none prints,
 * allocates or keeps process-wide state, so any number of ranks may share one process.
 */
#ifndef HPCPAR_H
#define HPCPAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HP_CACHE_LINE 64

/* ---- dtypes and operations ------------------------------------------------------------- */

enum hp_dtype {
    HP_BOOL,
    HP_I8,
    HP_I16,
    HP_I32,
    HP_I64,
    HP_U8,
    HP_U16,
    HP_U32,
    HP_U64,
    HP_F16,
    HP_BF16,
    HP_F32,
    HP_F64,
    HP_C64,
    HP_C128,
    HP_F8E4M3FN,
    HP_F8E5M2,
    HP_NUM_DTYPES
};

enum hp_op {
    HP_SUM,
    HP_PROD,
    HP_MIN,
    HP_MAX,
    HP_BAND,
    HP_BOR,
    HP_BXOR,
    HP_NUM_OPS
};

/* Bytes of one element, 0 if `dtype` is out of range. */
size_t hp_itemsize(int dtype);
/* Whether `op` has a meaning for `dtype`. */
bool hp_reducible(int dtype, int op);
/* Whether the accumulator of `dtype` can be divided or multiplied by a float (mean, factors). */
bool hp_scalable(int dtype);
/* dtypes that hp_cast converts between: real floats of any width. */
bool hp_is_real_float(int dtype);

/* ---- SIMD levels ----------------------------------------------------------------------- */

enum hp_level { HP_BASELINE, HP_AVX2, HP_AVX512, HP_NUM_LEVELS };

struct hp_kernels;

/* The kernels of a level; NULL if this build or this CPU does not have it. Ask once, at load. */
const struct hp_kernels *hp_kernels_of(enum hp_level level);
/* The highest level that this CPU runs. */
enum hp_level hp_best_level(void);
const char *hp_level_name(enum hp_level level);

/* ---- reduction ------------------------------------------------------------------------- */

/*
 * out[i] = op over the sources, in the order of the list, one accumulator per element: float32
 * for 16-bit and 8-bit floats, the dtype itself otherwise. So the bits depend neither on
 * alignment nor on how a caller cuts the arrays. All pointers are aligned for the dtype; `out`
 * may be one of the sources, and overlaps none of them in part.
 */
struct hp_reduction {
    void *out;
    const void *const *srcs;
    size_t num_srcs;
    size_t count; /* elements */
    int dtype;
    int op;
    const double *factors; /* one per source, multiplied in the accumulator; NULL = none */
    const double *divisor; /* divides the accumulator before rounding; NULL = none */
    void *also; /* where the result goes too: disjoint from out, may be a source; NULL = nowhere */
};

/* -EINVAL: no source, unknown dtype or op; -ENOTSUP: the pair has no meaning. */
int hp_reduce(const struct hp_kernels *kernels, const struct hp_reduction *reduction);
/* The same past the caches, to places that are no sources, for sums of two; false: another case. */
bool hp_reduce_past(const struct hp_kernels *kernels, const struct hp_reduction *reduction);

/* dst[i] = round(src[i] * scale), one rounding to dst's dtype; both aligned, disjoint or equal. */
int hp_cast(const struct hp_kernels *kernels, void *dst, int dst_dtype, const void *src,
            int src_dtype, double scale, size_t count);

/* ---- packing --------------------------------------------------------------------------- */

#define HP_MAX_NDIM 64

/* One strided array; strides in bytes, of any sign. `ndim` <= HP_MAX_NDIM. */
struct hp_array {
    char *data;
    int ndim;
    const ptrdiff_t *shape;
    const ptrdiff_t *strides;
    size_t itemsize;
    int dtype; /* read by the casting calls only */
};

/* Copy the elements of an array in C order into, or out of, contiguous bytes. */
void hp_gather(char *flat, const struct hp_array *array);
void hp_scatter(const struct hp_array *array, const char *flat);
/* The same with a cast and a factor; `flat` is aligned for its dtype. */
int hp_gather_cast(const struct hp_kernels *kernels, char *flat, int flat_dtype,
                   const struct hp_array *array, double scale);
int hp_scatter_cast(const struct hp_kernels *kernels, const struct hp_array *array,
                    const char *flat, int flat_dtype, double scale);

/* ---- random numbers -------------------------------------------------------------------- */

enum hp_random { HP_BITS32, HP_BITS64, HP_UNIFORM32, HP_UNIFORM64, HP_NORMAL32, HP_NORMAL64 };

/* One block of Philox4x32-10. */
void hp_philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);
/*
 * Element i of `out` comes from its own block: key = seed (low word first), counter words 0-1 =
 * start + i, words 2-3 = stream. Only + - * / and sqrt are used, so every machine gives the
 * same bits.
 */
void hp_philox_fill(void *out, enum hp_random kind, uint64_t seed, uint64_t stream,
                    uint64_t start, size_t count);

/* ---- flight record --------------------------------------------------------------------- */

#define HP_MAX_GROUPS 4096
#define HP_MAX_VERBS 32
#define HP_NAME_BYTES 48

#define HP_SITE_BYTES 40

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t hp_now(void);

/* One operation, as readers get it. */
struct hp_record {
    uint64_t seq;
    int64_t count;
    uint64_t start_ns;
    uint64_t end_ns; /* 0 = still open */
    uint64_t sent;
    uint64_t received;
    uint32_t messages;
    int32_t peer;
    uint32_t slot;
    uint32_t itemsize;
    int32_t status; /* 0 while it is open */
    uint16_t verb;
    uint16_t dtype;
    char site[HP_SITE_BYTES]; /* who called: file and line; ends with a 0, may be empty */
};

struct hp_group {
    char name[HP_NAME_BYTES]; /* ends with a 0 */
    int32_t rank;
    int32_t size;
    uint64_t seq; /* of the next operation */
};

struct hp_total {
    uint64_t ops;
    uint64_t sent;
    uint64_t received;
    uint64_t messages;
};

/* What begin() is told about an operation. */
struct hp_operation {
    uint32_t slot;
    uint16_t verb;
    uint16_t dtype;
    int64_t count;
    uint32_t itemsize;
    int32_t peer;     /* -1 = none */
    const char *site; /* HP_SITE_BYTES, or NULL */
};

/* A record, in whose memory one thread writes; others may read, through structs of their own. */
struct hp_recorder {
    void *memory;
    uint64_t capacity; /* a copy: what the memory says may change */
};

/* Bytes that records and so many groups take; 0 if capacity is not a power of two. */
size_t hp_recorder_bytes(size_t capacity, uint32_t num_groups);
/* `zeroed` is cache-line aligned, and long enough for the groups that are going to be added. */
int hp_recorder_init(struct hp_recorder *recorder, void *zeroed, size_t capacity);
/*
 * Read a record that another thread or process writes, or that may be anything: `memory` has room
 * for all groups. Only reading functions may follow. -EINVAL: too short or not aligned; -EBADMSG:
 * no record of this version.
 */
int hp_recorder_attach(struct hp_recorder *recorder, const void *memory, size_t nbytes);

/* Go on in other memory, zeroed and aligned alike, with all that is recorded. */
void hp_recorder_move(struct hp_recorder *recorder, void *zeroed);

/* A slot >= 0, or -ENOSPC. Longer names are cut. */
int hp_recorder_add_group(struct hp_recorder *recorder, const char *name, int rank, int size);
/* A ticket > 0, or -EINVAL. One thread writes at a time. */
int64_t hp_recorder_begin(struct hp_recorder *recorder, const struct hp_operation *operation);
int hp_recorder_sent(struct hp_recorder *recorder, int64_t ticket, const struct hp_total *delta);
int hp_recorder_end(struct hp_recorder *recorder, int64_t ticket, int status);
/* Take back the newest operation of its group, as if it had not begun. */
int hp_recorder_withdraw(struct hp_recorder *recorder, int64_t ticket);

/*
 * Reading. A record is whole, and left out while it is being rewritten; the traffic of one that is
 * open is what has been added so far. Sums are read one by one.
 */

/* Copy up to `n` of the newest records, oldest first; how many is returned. */
size_t hp_recorder_last(const struct hp_recorder *recorder, struct hp_record *out, size_t n);
/* The open record with the earliest start; false if none is open. */
bool hp_recorder_oldest_open(const struct hp_recorder *recorder, struct hp_record *out);
uint32_t hp_recorder_num_groups(const struct hp_recorder *recorder);
/* False if there is no such group. */
bool hp_recorder_group(const struct hp_recorder *recorder, uint32_t slot, struct hp_group *out);
/* The number of the next operation of a group, which exists. */
uint64_t hp_recorder_seq(const struct hp_recorder *recorder, uint32_t slot);
/* False if nothing was recorded under slot and verb. */
bool hp_recorder_total(const struct hp_recorder *recorder, uint32_t slot, uint32_t verb,
                       struct hp_total *out);

/* ---- ring ------------------------------------------------------------------------------ */

/*
 * Messages from one writer to one reader through a caller's buffer, which may be mapped at
 * different addresses. A message is contiguous: reserve, write in place, commit; peek, read in
 * place, release. Counters run freely and are compared by difference.
 */
struct hp_ring {
    uint64_t magic;
    uint64_t capacity; /* bytes of data, a power of two */
    uint8_t pad_head[HP_CACHE_LINE - 16];
    _Atomic uint64_t written; /* by the writer only; the reader looks at it again and again */
    uint8_t pad_written[HP_CACHE_LINE - 8];
    uint64_t seen_read;   /* the writer's last look at `read` */
    uint64_t is_reserved; /* a reservation is open */
    uint64_t reserved;    /* its bytes */
    uint64_t frame;       /* where its header goes */
    uint8_t pad_writer[HP_CACHE_LINE - 32];
    _Atomic uint64_t read; /* by the reader only */
    uint64_t seen_written; /* the reader's last look at `written` */
    uint8_t pad_reader[HP_CACHE_LINE - 16];
    uint8_t data[];
};

_Static_assert(offsetof(struct hp_ring, written) == HP_CACHE_LINE, "the writer owns a line");
_Static_assert(offsetof(struct hp_ring, read) == 3 * HP_CACHE_LINE, "the reader owns a line");
_Static_assert(sizeof(struct hp_ring) == 4 * HP_CACHE_LINE, "data starts on a line");

#define HP_RING_FRAME 8 /* bytes in front of each message, and the grain of messages */

/*
 * Format `mem` (8-byte aligned) with the largest power of two of data that fits, counters at
 * `start` (a multiple of HP_RING_FRAME; 0 but in tests of their wrap-around).
 */
int hp_ring_init(void *mem, size_t nbytes, uint64_t start);
/* Whether `mem` holds a ring that fits into `nbytes`. */
bool hp_ring_valid(const void *mem, size_t nbytes);
/* The longest message that always goes through an empty ring. */
size_t hp_ring_max_message(const struct hp_ring *ring);
/* Writer: -EMSGSIZE too long, -EAGAIN no room now, -EBUSY reserved already. */
int hp_ring_reserve(struct hp_ring *ring, size_t nbytes, void **where);
/* Writer: publish the first `nbytes` of the reservation. -EINVAL none is open, or more. */
int hp_ring_commit(struct hp_ring *ring, size_t nbytes);
/* Reader: -EAGAIN nothing there. */
int hp_ring_peek(struct hp_ring *ring, const void **where, size_t *nbytes);
/* Reader: give the message that peek shows back to the writer. -EAGAIN nothing there. */
int hp_ring_release(struct hp_ring *ring);

#endif

/*
 * The node engine's collectives against a plain computation by one thread: all verbs, sizes around
 * every limit, uneven parts, in place or not, both lanes at once, with ranks that are late.
 */
#define _GNU_SOURCE
#include "ranks.h"

enum { GUARD = 64, SMALL_CHUNK = 4096, NUM_SIZES = 12, NUM_PATTERNS = 4, TRACE = 0x5a };

struct kind {
    int dtype, op;
    bool has_factors, has_divisor;
};

static const struct kind kinds[] = {
    {HP_F32, HP_SUM, false, false},   {HP_I32, HP_SUM, false, false},
    {HP_F32, HP_SUM, false, true},    {HP_BF16, HP_SUM, false, false},
    {HP_F16, HP_SUM, true, false},    {HP_F64, HP_MAX, false, false},
    {HP_U8, HP_BXOR, false, false},   {HP_I64, HP_PROD, false, false},
    {HP_C64, HP_SUM, false, false},   {HP_BOOL, HP_SUM, false, false},
    {HP_C128, HP_PROD, false, false}, {HP_F64, HP_SUM, true, true},
    {HP_I16, HP_MIN, false, false},   {HP_F8E4M3FN, HP_SUM, false, false},
    {HP_BF16, HP_MAX, false, false},  {HP_U64, HP_BAND, false, false},
};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

/* A collective; all ranks make the same one from its number. */
struct task {
    uint64_t number;
    struct kind kind;
    enum hp_verb verb;
    int size, root, pattern;
    uint64_t count; /* elements: of the array, or of its longest part */
    bool in_place;
};

static bool is_cut(enum hp_verb verb)
{
    return verb == HP_REDUCE_SCATTER || verb == HP_ALL_TO_ALL;
}

static bool has_parts(enum hp_verb verb)
{
    return is_cut(verb) || verb == HP_ALL_GATHER;
}

/* Elements that `from` has for `to`: all the same, none for some, less for some, one part only. */
static uint64_t part(const struct task *t, int from, int to)
{
    const int who = t->verb == HP_ALL_TO_ALL ? 2 * from + to : t->verb == HP_ALL_GATHER ? from : to;
    const uint64_t less = (uint64_t)who % 5;
    switch (has_parts(t->verb) ? t->pattern : 0) {
    case 1: return who % 3 == 0 ? 0 : t->count;
    case 2: return t->count < less ? 0 : t->count - less;
    case 3: return who % t->size == t->size / 2 ? t->count : 0;
    default: return t->count;
    }
}

static uint64_t before(const struct task *t, int from, int to)
{
    uint64_t sum = 0;
    for (int q = 0; q < to; q++)
        sum += part(t, from, q);
    return sum;
}

/* Elements that a rank sends. */
static uint64_t sent(const struct task *t, int rank)
{
    if (t->verb == HP_BARRIER || t->verb == HP_EXCHANGE)
        return 0;
    return is_cut(t->verb) ? before(t, rank, t->size) : part(t, rank, 0);
}

/* ---- what must come out ------------------------------------------------------------------- */

/* Small multiples of a quarter in any float dtype: sums of few are exact in most. */
static void fill_floats(int dtype, uint64_t bytes, char *out, uint64_t *state)
{
    enum { CHOICES = 32 };
    const size_t item = hp_itemsize(dtype);
    float values[CHOICES];
    _Alignas(8) char table[CHOICES * 8];
    for (int i = 0; i < CHOICES; i++)
        values[i] = (float)i / 4 - 3;
    CHECK(hp_cast(hp_kernels_of(HP_BASELINE), table, dtype, values, HP_F32, 1.0, CHOICES) == 0);
    for (uint64_t at = 0; at < bytes; at += item)
        memcpy(out + at, table + random64(state) % CHOICES * item, item);
}

static void fill(const struct task *t, int rank, char *out)
{
    const uint64_t bytes = sent(t, rank) * hp_itemsize(t->kind.dtype);
    uint64_t state = (t->number * MAX_RANKS + (uint64_t)rank + 1) * 0x9e3779b97f4a7c15u;
    if (hp_is_real_float(t->kind.dtype))
        fill_floats(t->kind.dtype, bytes, out, &state);
    else if (t->kind.dtype == HP_C64 || t->kind.dtype == HP_C128)
        fill_floats(t->kind.dtype == HP_C64 ? HP_F32 : HP_F64, bytes, out, &state);
    else
        random_bytes(out, bytes, &state);
    for (uint64_t i = 0; t->kind.dtype == HP_BOOL && i < bytes; i++)
        out[i] &= 1;
}

static void scales(const struct task *t, double *factors, double *divisor)
{
    for (int r = 0; r < t->size; r++)
        factors[r] = 0.5 + r;
    *divisor = t->size + 1.0;
}

/* The sums that need no library: does hp_reduce do what a loop does? */
static void check_sum(const struct task *t, const void *const *srcs, int n, uint64_t count,
                      const void *got)
{
    if (t->kind.op != HP_SUM || t->kind.has_factors || t->kind.has_divisor)
        return;
    for (uint64_t i = 0; i < count && t->kind.dtype == HP_F32; i++) {
        float sum = ((const float *)srcs[0])[i];
        for (int r = 1; r < n; r++)
            sum += ((const float *)srcs[r])[i];
        CHECK(memcmp(&sum, (const float *)got + i, sizeof sum) == 0);
    }
    for (uint64_t i = 0; i < count && t->kind.dtype == HP_I32; i++) {
        uint32_t sum = 0;
        for (int r = 0; r < n; r++)
            sum += ((const uint32_t *)srcs[r])[i];
        CHECK(sum == ((const uint32_t *)got)[i]);
    }
}

/* out = op over the first `n` arrays from element `at` on, whole and at the plainest level. */
static uint64_t fold(const struct task *t, char *const *inputs, int n, uint64_t at, uint64_t count,
                     char *out)
{
    const size_t item = hp_itemsize(t->kind.dtype);
    double factors[MAX_RANKS], divisor;
    const void *srcs[MAX_RANKS];
    if (n == 0 || count == 0)
        return 0;
    scales(t, factors, &divisor);
    for (int r = 0; r < n; r++)
        srcs[r] = inputs[r] + at * item;
    const struct hp_reduction reduction = {
        .out = out, .srcs = srcs, .num_srcs = (size_t)n, .count = count, .dtype = t->kind.dtype,
        .op = t->kind.op, .factors = t->kind.has_factors ? factors : NULL,
        .divisor = t->kind.has_divisor ? &divisor : NULL};
    CHECK(hp_reduce(hp_kernels_of(HP_BASELINE), &reduction) == 0);
    check_sum(t, srcs, n, count, out);
    return count;
}

/* The parts for `me` of all ranks, one after the other. */
static uint64_t collect(const struct task *t, char *const *inputs, int me, char *out)
{
    const size_t item = hp_itemsize(t->kind.dtype);
    uint64_t sum = 0;
    for (int r = 0; r < t->size; r++) {
        const uint64_t at = t->verb == HP_ALL_TO_ALL ? before(t, r, me) : 0;
        memcpy(out + sum * item, inputs[r] + at * item, part(t, r, me) * item);
        sum += part(t, r, me);
    }
    return sum;
}

/* Write what `me` must get; how many elements that is. */
static uint64_t expected(const struct task *t, char *const *inputs, int me, char *out)
{
    const bool receives = t->root < 0 || t->root == me;
    switch (t->verb) {
    case HP_ALL_REDUCE: return fold(t, inputs, t->size, 0, t->count, out);
    case HP_REDUCE: return receives ? fold(t, inputs, t->size, 0, t->count, out) : 0;
    case HP_SCAN: return fold(t, inputs, me + 1, 0, t->count, out);
    case HP_EXSCAN: return fold(t, inputs, me, 0, t->count, out);
    case HP_REDUCE_SCATTER:
        return fold(t, inputs, t->size, before(t, 0, me), part(t, 0, me), out);
    case HP_BROADCAST:
        memcpy(out, inputs[t->root], t->count * hp_itemsize(t->kind.dtype));
        return t->count;
    case HP_ALL_GATHER: return receives ? collect(t, inputs, me, out) : 0;
    case HP_ALL_TO_ALL: return collect(t, inputs, me, out);
    default: return 0;
    }
}

/* ---- one collective on one rank ----------------------------------------------------------- */

struct run {
    struct rank *rank;
    struct hp_team *team;
    uint64_t random;
    struct task task;
    char *inputs[MAX_RANKS], *want, *memory; /* memory: where the engine reads and writes */
    uint64_t room;                           /* bytes of each */
    char *result, *operand, *end;            /* in memory */
};

/* Until the end, in one of the ways to wait. */
static int drive(struct run *run, struct hp_call *call)
{
    const uint64_t end = now_ns() + 60 * SECOND, way = random64(&run->random) % 3;
    int rc = HP_PENDING;
    if (way == 0)
        return hp_call_run(call, 60 * SECOND);
    for (int turn = 0; rc == HP_PENDING && now_ns() < end; turn++) {
        if (way == 1)
            rc = hp_call_advance(call);
        else
            rc = turn == 0 ? hp_call_run(call, 100000) : hp_call_doze(call, 100000);
        if (rc == HP_PENDING && way == 1)
            sched_yield();
    }
    return rc;
}

static void write_header(uint8_t *header, uint64_t number, int rank)
{
    memset(header, rank, HP_POST_HEADER);
    memcpy(header, &number, sizeof number);
}

static void check_headers(const struct run *run, const struct hp_call *call)
{
    uint8_t header[HP_POST_HEADER];
    for (int r = 0; r < run->task.size; r++) {
        write_header(header, run->task.number, r);
        CHECK(hp_call_has_come(call, r));
        CHECK(memcmp(hp_call_header(call, r), header, sizeof header) == 0);
    }
}

/* Sizes in bytes of what each rank sends and receives, as the engine wants them. */
static void count_bytes(const struct task *t, int me, uint64_t *sends, uint64_t *receives)
{
    const size_t item = hp_itemsize(t->kind.dtype);
    for (int r = 0; r < t->size; r++) {
        sends[r] = part(t, me, r) * item;
        receives[r] = part(t, r, me) * item;
    }
}

/* Make the call: returns what hp_call_run does. */
static int call_engine(struct run *run, const void *send, void *recv)
{
    const struct task *const t = &run->task;
    const int me = run->rank->index;
    uint64_t sends[MAX_RANKS], receives[MAX_RANKS];
    uint8_t header[HP_POST_HEADER];
    double factors[MAX_RANKS], divisor;
    struct hp_call call;
    scales(t, factors, &divisor);
    count_bytes(t, me, sends, receives);
    write_header(header, t->number, me);
    const uint64_t count = t->verb == HP_BROADCAST ? t->count : sent(t, me);
    const struct hp_request request = {
        .verb = t->verb, .dtype = t->kind.dtype, .op = t->kind.op, .root = t->root, .send = send,
        .recv = recv, .nbytes = count * hp_itemsize(t->kind.dtype), .send_counts = sends,
        .recv_counts = receives, .factors = t->kind.has_factors ? factors : NULL,
        .divisor = t->kind.has_divisor ? &divisor : NULL, .print = t->number,
        .is_ready = t->verb != HP_EXCHANGE, .header = header};
    dawdle(&run->random);
    hp_call_begin(&call, run->team, &request);
    const int rc = drive(run, &call);
    CHECK(rc == HP_DONE || rc == HP_HEADERS);
    check_headers(run, &call);
    return rc;
}

/* Lay out the memory: guard, result, guard, operand (unless it is in the result), guard. */
static void place(struct run *run, uint64_t received)
{
    const struct task *const t = &run->task;
    const int me = run->rank->index;
    const size_t item = hp_itemsize(t->kind.dtype);
    uint64_t at = 0;
    for (int r = 0; t->verb == HP_ALL_GATHER && r < me; r++)
        at += part(t, r, 0);
    const uint64_t behind = (received * item + GUARD - 1) / GUARD * GUARD + 2 * GUARD;
    run->result = run->memory + GUARD + t->number % 3 * item;
    run->operand = run->memory + behind + GUARD + t->number % 5 * item;
    if (t->in_place)
        run->operand = run->result + (received > 0 ? at * item : 0);
    run->end = run->operand + sent(t, me) * item;
    if (run->end < run->result + received * item)
        run->end = run->result + received * item;
    run->end += GUARD;
    CHECK(run->end <= run->memory + run->room);
    memset(run->memory, TRACE, (size_t)(run->end - run->memory));
    memcpy(run->operand, run->inputs[me], sent(t, me) * item);
}

static void check_result(const struct run *run, uint64_t received)
{
    const struct task *const t = &run->task;
    const size_t item = hp_itemsize(t->kind.dtype);
    const char *const behind = run->result + received * item;
    const uint64_t mine = sent(t, run->rank->index) * item;
    CHECK(memcmp(run->result, run->want, received * item) == 0);
    if (!t->in_place || received == 0)
        CHECK(memcmp(run->operand, run->inputs[run->rank->index], mine) == 0);
    for (const char *p = run->memory; p < run->end; p++) {
        const bool is_result = p >= run->result && p < behind;
        if (!is_result && !(p >= run->operand && p < run->operand + mine))
            CHECK(*p == TRACE);
    }
}

static void run_task(struct run *run)
{
    const struct task *const t = &run->task;
    const int me = run->rank->index;
    for (int r = 0; r < t->size; r++)
        fill(t, r, run->inputs[r]);
    const uint64_t received = expected(t, run->inputs, me, run->want);
    place(run, received);
    const int rc = call_engine(run, run->operand, run->result);
    CHECK(rc == (t->verb == HP_EXCHANGE ? HP_HEADERS : HP_DONE));
    check_result(run, received);
}

/* ---- many ---------------------------------------------------------------------------------- */

static void *allocate(uint64_t room)
{
    void *const memory = aligned_alloc(GUARD, (room + GUARD - 1) / GUARD * GUARD);
    CHECK(memory);
    return memory;
}

static bool is_in_heap(const struct rank *rank)
{
    const bool is_last = rank->index == rank->world->size - 1;
    return rank->world->in_heap == EVERYWHERE || (rank->world->in_heap == BUT_FOR_ONE && !is_last);
}

static char *in_heap(const struct rank *rank, uint64_t at)
{
    return (char *)rank->node.windows[rank->index] + rank->node.heap + at;
}

static void start_run(struct run *run, struct rank *rank, int lane, uint64_t room)
{
    *run = (struct run){.rank = rank, .team = &rank->teams[lane], .room = room};
    run->random = rank->random + (uint64_t)lane;
    for (int r = 0; r < rank->world->size; r++)
        run->inputs[r] = allocate(room);
    run->want = allocate(room);
    run->memory = is_in_heap(rank) ? in_heap(rank, (uint64_t)lane * room) : allocate(room);
}

static void end_run(struct run *run)
{
    for (int r = 0; r < run->rank->world->size; r++)
        free(run->inputs[r]);
    free(run->want);
    if (!is_in_heap(run->rank))
        free(run->memory);
}

/* Sizes in elements that lie around the limits: the post, a chunk, all slots, many chunks. */
static uint64_t count_of(const struct task *t, unsigned chunk, int which)
{
    const uint64_t parts = is_cut(t->verb) ? (uint64_t)t->size : 1;
    const uint64_t item = hp_itemsize(t->kind.dtype);
    const uint64_t post = HP_POST_DATA / parts / 16 * 16 / item;
    const uint64_t grain = chunk / parts / 64 * 64 / item;
    const uint64_t counts[NUM_SIZES] = {0, 1, 7, post - 1, post, post + 1, grain - 1, grain,
                                        grain + 1, HP_SLOTS * grain, HP_SLOTS * grain + 1,
                                        9 * grain + grain / 2};
    return counts[which];
}

enum { NUM_TASKS = HP_NUM_NODE_VERBS * NUM_SIZES * NUM_PATTERNS * 2 * 2 };

static struct task task_of(uint64_t number, int size)
{
    struct task t = {.number = number + 1, .size = size, .root = -1};
    uint64_t rest = number;
    t.kind = kinds[number * 7 / 3 % NUM_KINDS];
    t.verb = (enum hp_verb)(rest % HP_NUM_NODE_VERBS), rest /= HP_NUM_NODE_VERBS;
    const int which = (int)(rest % NUM_SIZES);
    rest /= NUM_SIZES;
    t.pattern = (int)(rest % NUM_PATTERNS), rest /= NUM_PATTERNS;
    t.in_place = rest % 2 && !is_cut(t.verb), rest /= 2;
    if (t.verb == HP_BROADCAST || t.verb == HP_REDUCE || (t.verb == HP_ALL_GATHER && rest % 2))
        t.root = (int)(number % (uint64_t)size);
    t.count = count_of(&t, SMALL_CHUNK, which);
    return t;
}

/* Some of the tasks on a lane, from all over the list, in an order of its own. */
static void run_lane(struct rank *rank, int lane, uint64_t count)
{
    const uint64_t stride = lane == 0 ? 7919 : 104729; /* primes: each task comes once */
    struct run run;
    start_run(&run, rank, lane, (11 * (uint64_t)rank->world->size + 11) * SMALL_CHUNK);
    for (uint64_t i = 0; i < count; i++) {
        run.task = task_of(i * stride % NUM_TASKS, rank->world->size);
        run_task(&run);
    }
    end_run(&run);
}

static void run_all(struct rank *rank)
{
    run_lane(rank, 0, rank->world->size <= 3 ? NUM_TASKS : NUM_TASKS / 2);
}

static void *run_second_lane(void *rank)
{
    run_lane(rank, 1, NUM_TASKS / 6);
    return NULL;
}

static void run_both_lanes(struct rank *rank)
{
    pthread_t second;
    CHECK(pthread_create(&second, NULL, run_second_lane, rank) == 0);
    run_lane(rank, 0, NUM_TASKS / 6);
    CHECK(pthread_join(second, NULL) == 0);
}

/* Arrays of more than a MiB, whose results go past the caches. */
static void run_large(struct rank *rank)
{
    const struct kind floats[] = {kinds[0], kinds[3]};
    struct run run;
    start_run(&run, rank, 0, 16u << 20);
    for (int i = 0; i < 4 * HP_NUM_NODE_VERBS; i++) {
        struct task t = {.number = (uint64_t)i, .size = rank->world->size, .root = -1};
        t.verb = (enum hp_verb)(i % HP_NUM_NODE_VERBS);
        t.kind = floats[i / HP_NUM_NODE_VERBS % 2];
        t.pattern = 2;
        t.in_place = i / HP_NUM_NODE_VERBS / 2 && !is_cut(t.verb);
        if (t.verb == HP_BROADCAST || t.verb == HP_REDUCE)
            t.root = 1;
        t.count = ((5u << 18) + 12) / hp_itemsize(t.kind.dtype) + (uint64_t)i;
        run.task = t;
        run_task(&run);
    }
    end_run(&run);
}

/* Most arrays are read through the kernel, now and then they go in chunks. */
static void test_lent(int size)
{
    struct world lent = {.size = size, .chunk = SMALL_CHUNK, .lends = true};
    lent.body = size == 2 ? run_all : run_both_lanes;
    run_world(&lent);
    lent.in_heap = BUT_FOR_ONE;
    lent.body = run_both_lanes;
    run_world(&lent);
    struct world large = {.size = size, .chunk = HP_SLOT_BYTES, .lends = true, .body = run_large};
    run_world(&large);
}

int main(void)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        run_ranks(sizes[i], SMALL_CHUNK, 0, run_all);
        run_ranks(sizes[i], SMALL_CHUNK, sizes[i] > 2 ? 0 : 200, run_both_lanes);
    }
    run_ranks(2, HP_SLOT_BYTES, 200, run_large);
    run_ranks(3, HP_SLOT_BYTES, 0, run_large);
    for (int size = 2; size <= 3; size++) {
        struct world far = {.size = size, .chunk = SMALL_CHUNK, .is_far = true, .body = run_all};
        run_world(&far);
        far.chunk = HP_SLOT_BYTES;
        far.body = run_large;
        run_world(&far);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct world symmetric = {.size = sizes[i], .chunk = SMALL_CHUNK, .in_heap = EVERYWHERE};
        symmetric.body = sizes[i] > 3 ? run_both_lanes : run_all;
        run_world(&symmetric);
        symmetric.in_heap = BUT_FOR_ONE;
        symmetric.body = run_both_lanes;
        run_world(&symmetric);
    }
    struct world large = {.size = 3, .chunk = HP_SLOT_BYTES, .in_heap = EVERYWHERE};
    large.body = run_large;
    run_world(&large);
    for (int size = 2; size <= 4; size++)
        test_lent(size);
    return 0;
}

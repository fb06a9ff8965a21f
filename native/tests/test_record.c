/* The flight record: sequence numbers, the ring's wrap, totals that survive it. */
#include <errno.h>

#include "check.h"

enum { CAPACITY = 8 };

static struct hp_recorder *fresh(void)
{
    static struct hp_recorder recorder;
    const size_t nbytes = hp_recorder_bytes(CAPACITY, HP_MAX_GROUPS);
    free(recorder.memory);
    void *const memory = aligned_alloc(HP_CACHE_LINE, nbytes);
    CHECK(memory);
    memset(memory, 0, nbytes);
    CHECK(hp_recorder_init(&recorder, memory, CAPACITY) == 0);
    return &recorder;
}

static int64_t begin(struct hp_recorder *r, uint32_t slot, uint16_t verb)
{
    const struct hp_operation op = {
        .slot = slot, .verb = verb, .dtype = 11, .count = 100, .itemsize = 4, .peer = -1};
    return hp_recorder_begin(r, &op);
}

static void test_one_operation(void)
{
    struct hp_recorder *const r = fresh();
    CHECK(hp_recorder_add_group(r, "world", 1, 4) == 0);
    CHECK(hp_recorder_add_group(r, "tp", 0, 2) == 1);
    struct hp_group group;
    CHECK(hp_recorder_group(r, 1, &group) && strcmp(group.name, "tp") == 0);
    CHECK(group.rank == 0 && group.size == 2 && group.seq == 0);
    CHECK(!hp_recorder_group(r, 2, &group) && hp_recorder_num_groups(r) == 2);
    const int64_t ticket = begin(r, 1, 3);
    CHECK(ticket > 0);
    struct hp_record rec;
    CHECK(hp_recorder_oldest_open(r, &rec) && rec.slot == 1 && rec.end_ns == 0);
    const struct hp_total delta = {.sent = 400, .received = 800, .messages = 2};
    CHECK(hp_recorder_sent(r, ticket, &delta) == 0 && hp_recorder_sent(r, ticket, &delta) == 0);
    CHECK(hp_recorder_end(r, ticket, -7) == 0);
    CHECK(!hp_recorder_oldest_open(r, &rec));
    CHECK(hp_recorder_last(r, &rec, 1) == 1);
    CHECK(rec.seq == 0 && rec.verb == 3 && rec.dtype == 11 && rec.count == 100);
    CHECK(rec.itemsize == 4 && rec.peer == -1 && rec.status == -7);
    CHECK(rec.sent == 800 && rec.received == 1600 && rec.messages == 4);
    CHECK(rec.start_ns > 0 && rec.end_ns >= rec.start_ns);
    CHECK(hp_recorder_seq(r, 1) == 1 && hp_recorder_seq(r, 0) == 0);
    CHECK(hp_recorder_withdraw(r, begin(r, 1, 3)) == 0 && hp_recorder_seq(r, 1) == 1);
    CHECK(hp_recorder_last(r, &rec, 1) == 0); /* the newest was withdrawn */
}

static void test_wrap(void)
{
    struct hp_recorder *const r = fresh();
    struct hp_record recs[2 * CAPACITY];
    hp_recorder_add_group(r, "world", 0, 1);
    const int64_t early = begin(r, 0, 5);
    for (int i = 0; i < 3 * CAPACITY; i++)
        CHECK(hp_recorder_end(r, begin(r, 0, 6), 0) == 0);
    CHECK(hp_recorder_last(r, recs, 2 * CAPACITY) == CAPACITY);
    for (uint64_t i = 0; i < CAPACITY; i++)
        CHECK(recs[i].seq == 2 * CAPACITY + 1 + i);
    /* The early operation's record is gone; its traffic still counts, the new one is whole. */
    const struct hp_total delta = {.sent = 10, .received = 20, .messages = 1};
    CHECK(hp_recorder_sent(r, early, &delta) == 0 && hp_recorder_end(r, early, -1) == 0);
    struct hp_total total;
    CHECK(hp_recorder_total(r, 0, 5, &total) && total.sent == 10 && total.ops == 1);
    CHECK(hp_recorder_total(r, 0, 6, &total) && total.ops == 3 * CAPACITY);
    CHECK(hp_recorder_last(r, recs, CAPACITY) == CAPACITY);
    for (int i = 0; i < CAPACITY; i++)
        CHECK(recs[i].sent == 0 && recs[i].status == 0);
}

static void test_oldest_open(void)
{
    struct hp_recorder *const r = fresh();
    struct hp_record rec;
    hp_recorder_add_group(r, "world", 0, 1);
    const int64_t a = begin(r, 0, 0), b = begin(r, 0, 1), c = begin(r, 0, 2);
    CHECK(hp_recorder_oldest_open(r, &rec) && rec.verb == 0);
    hp_recorder_end(r, a, 0);
    CHECK(hp_recorder_oldest_open(r, &rec) && rec.verb == 1);
    hp_recorder_end(r, b, 0);
    hp_recorder_end(r, c, 0);
    CHECK(!hp_recorder_oldest_open(r, &rec));
}

static void test_refused(void)
{
    CHECK(hp_recorder_bytes(0, 1) == 0 && hp_recorder_bytes(12, 1) == 0);
    CHECK(hp_recorder_bytes(CAPACITY, 1) < 4096); /* little is used by a few groups */
    struct hp_recorder *const r = fresh();
    CHECK(begin(r, 0, 0) == -EINVAL); /* no group yet */
    const char *const name = "a name of more than forty-seven bytes, which must be cut somewhere";
    for (int i = 0; i < HP_MAX_GROUPS; i++)
        CHECK(hp_recorder_add_group(r, name, 0, 1) == i);
    CHECK(hp_recorder_add_group(r, name, 0, 1) == -ENOSPC);
    struct hp_group group;
    CHECK(hp_recorder_group(r, 0, &group) && strlen(group.name) == HP_NAME_BYTES - 1);
    CHECK(begin(r, 0, HP_MAX_VERBS) == -EINVAL);
    CHECK(begin(r, HP_MAX_GROUPS - 1, HP_MAX_VERBS - 1) > 0);
    const struct hp_total none = {0};
    CHECK(hp_recorder_end(r, 0, 0) == -EINVAL && hp_recorder_end(r, -5, 0) == -EINVAL);
    CHECK(hp_recorder_sent(r, INT64_MAX, &none) == -EINVAL);
    struct hp_total total;
    CHECK(!hp_recorder_total(r, 0, 0, &total) && !hp_recorder_total(r, 0, HP_MAX_VERBS, &total));
}

int main(void)
{
    test_one_operation();
    test_wrap();
    test_oldest_open();
    test_refused();
    return 0;
}

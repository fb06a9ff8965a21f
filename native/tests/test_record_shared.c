/* A flight record that one thread writes and others read, and records that hold anything. */
#include <errno.h>
#include <pthread.h>

#include "check.h"

enum { CAPACITY = 4, READERS = 2, OPERATIONS = 200000, GROUPS = 40 };

/* Everything of an operation follows from its number, so that a mixed record is seen. */
static struct hp_operation operation_of(uint64_t seq)
{
    return (struct hp_operation){.slot = 0,
                                 .verb = (uint16_t)(seq % 7),
                                 .dtype = (uint16_t)(seq % 11),
                                 .count = (int64_t)(seq * 3),
                                 .itemsize = (uint32_t)(seq % 1000),
                                 .peer = -(int32_t)(seq % 500)};
}

static void check_record(const struct hp_record *rec)
{
    const struct hp_operation op = operation_of(rec->seq);
    CHECK(rec->slot == 0 && rec->verb == op.verb && rec->dtype == op.dtype);
    CHECK(rec->count == op.count && rec->itemsize == op.itemsize && rec->peer == op.peer);
    CHECK(rec->sent == 0 || rec->sent == rec->seq);
    CHECK(rec->received == 0 || rec->received == 2 * rec->seq);
    CHECK(rec->start_ns > 0);
    if (rec->end_ns) { /* then all of it is there */
        CHECK(rec->end_ns >= rec->start_ns && rec->status == -(int32_t)(rec->seq % 9));
        CHECK(rec->sent == rec->seq && rec->received == 2 * rec->seq && rec->messages == 1);
    } else {
        CHECK(rec->status == 0);
    }
}

static void check_groups(const struct hp_recorder *r)
{
    struct hp_group group;
    char name[HP_NAME_BYTES];
    for (uint32_t slot = 0; hp_recorder_group(r, slot, &group); slot++) {
        snprintf(name, sizeof name, "group %u", slot);
        CHECK(strcmp(group.name, name) == 0 && group.rank == 1 && group.size == (int)slot);
    }
}

static void *read_all(void *memory)
{
    struct hp_recorder r;
    CHECK(hp_recorder_attach(&r, memory, hp_recorder_bytes(CAPACITY, HP_MAX_GROUPS)) == 0);
    struct hp_record recs[CAPACITY];
    uint64_t newest = 0, seen = 0;
    while (newest < OPERATIONS - 1) {
        const size_t n = hp_recorder_last(&r, recs, CAPACITY);
        for (size_t i = 0; i < n; i++) {
            check_record(&recs[i]);
            CHECK(i == 0 || recs[i].seq > recs[i - 1].seq);
        }
        if (n && recs[n - 1].seq > newest) /* not always: the writer may overtake a look */
            newest = recs[n - 1].seq;
        if (hp_recorder_oldest_open(&r, recs))
            check_record(recs);
        struct hp_total total;
        if (hp_recorder_total(&r, 0, 3, &total)) {
            CHECK(total.ops >= seen);
            seen = total.ops;
        }
        check_groups(&r);
    }
    return NULL;
}

static void write_all(struct hp_recorder *r)
{
    for (uint64_t seq = 0; seq < OPERATIONS; seq++) {
        const struct hp_operation op = operation_of(seq);
        const struct hp_total delta = {.sent = seq, .received = 2 * seq, .messages = 1};
        const int64_t ticket = hp_recorder_begin(r, &op);
        CHECK(ticket > 0 && hp_recorder_sent(r, ticket, &delta) == 0);
        CHECK(hp_recorder_end(r, ticket, -(int)(seq % 9)) == 0);
        if (seq % 512 == 0 && hp_recorder_num_groups(r) < GROUPS) {
            char name[HP_NAME_BYTES];
            const uint32_t slot = hp_recorder_num_groups(r);
            snprintf(name, sizeof name, "group %u", slot);
            CHECK(hp_recorder_add_group(r, name, 1, (int)slot) == (int)slot);
        }
    }
}

static void *zeroed(size_t nbytes)
{
    void *const memory = aligned_alloc(HP_CACHE_LINE, nbytes);
    CHECK(memory);
    return memset(memory, 0, nbytes);
}

static void test_readers_see_whole_records(void)
{
    void *const memory = zeroed(hp_recorder_bytes(CAPACITY, HP_MAX_GROUPS));
    struct hp_recorder r;
    pthread_t readers[READERS];
    CHECK(hp_recorder_init(&r, memory, CAPACITY) == 0);
    CHECK(hp_recorder_add_group(&r, "group 0", 1, 0) == 0);
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_create(&readers[i], NULL, read_all, memory) == 0);
    write_all(&r);
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_join(readers[i], NULL) == 0);
    free(memory);
}

static void test_what_is_no_record_is_refused(void)
{
    const size_t nbytes = hp_recorder_bytes(CAPACITY, HP_MAX_GROUPS);
    char *const memory = zeroed(nbytes);
    struct hp_recorder r, reader;
    CHECK(hp_recorder_attach(&reader, memory, nbytes) == -EBADMSG); /* not made yet */
    CHECK(hp_recorder_init(&r, memory + 8, CAPACITY) == -EINVAL);
    CHECK(hp_recorder_init(&r, memory, CAPACITY) == 0);
    CHECK(hp_recorder_attach(&reader, memory, nbytes) == 0);
    CHECK(hp_recorder_attach(&reader, memory, nbytes - 1) == -EINVAL);
    CHECK(hp_recorder_attach(&reader, memory, 8) == -EINVAL);
    CHECK(hp_recorder_attach(&reader, memory + 8, nbytes - 8) == -EINVAL);
    memory[8]++; /* the capacity */
    CHECK(hp_recorder_attach(&reader, memory, nbytes) == -EBADMSG);
    memory[8] = 2 * CAPACITY;
    CHECK(hp_recorder_attach(&reader, memory, nbytes) == -EINVAL);
    free(memory);
}

/* Whatever is in the memory behind the capacity: slots are groups that are there, n is kept. */
static void test_garbage_is_read_safely(void)
{
    const size_t nbytes = hp_recorder_bytes(CAPACITY, HP_MAX_GROUPS);
    char *const memory = zeroed(nbytes);
    struct hp_recorder r, reader;
    struct hp_record recs[CAPACITY];
    struct hp_group group;
    uint64_t random = 88172645463325252u;
    CHECK(hp_recorder_init(&r, memory, CAPACITY) == 0);
    CHECK(hp_recorder_attach(&reader, memory, nbytes) == 0);
    for (int round = 0; round < 200; round++) {
        random_bytes(memory + 8, round % 2 ? nbytes - 8 : 4096, &random);
        const uint64_t groups = random64(&random) % (2 * HP_MAX_GROUPS);
        memcpy(memory + 24, &groups, round % 3 ? sizeof groups : 0);
        const uint32_t many = hp_recorder_num_groups(&reader);
        CHECK(many <= HP_MAX_GROUPS);
        const size_t n = hp_recorder_last(&reader, recs, CAPACITY);
        CHECK(n <= CAPACITY);
        for (size_t i = 0; i < n; i++)
            CHECK(recs[i].slot < many && recs[i].verb < HP_MAX_VERBS);
        if (hp_recorder_oldest_open(&reader, recs))
            CHECK(recs[0].slot < many);
        for (uint32_t slot = 0; hp_recorder_group(&reader, slot, &group); slot++)
            CHECK(strlen(group.name) < HP_NAME_BYTES);
    }
    free(memory);
}

int main(void)
{
    test_readers_see_whole_records();
    test_what_is_no_record_is_refused();
    test_garbage_is_read_safely();
    return 0;
}

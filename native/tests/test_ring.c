/* The ring: messages, skips, wrap-around of the counters, and two threads. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "check.h"

enum { BYTES = sizeof(struct hp_ring) + 1024 };

static _Alignas(HP_CACHE_LINE) char memory[BYTES + 512]; /* the end is never written to */

static struct hp_ring *fresh(uint64_t start)
{
    CHECK(hp_ring_init(memory, BYTES, start) == 0);
    CHECK(hp_ring_valid(memory, BYTES));
    return (struct hp_ring *)memory;
}

static int put(struct hp_ring *ring, const void *data, size_t n)
{
    void *where;
    const int rc = hp_ring_reserve(ring, n, &where);
    if (rc < 0)
        return rc;
    memcpy(where, data, n);
    return hp_ring_commit(ring, n);
}

static void expect(struct hp_ring *ring, const void *data, size_t n)
{
    const void *where;
    size_t got;
    CHECK(hp_ring_peek(ring, &where, &got) == 0);
    CHECK(got == n && memcmp(where, data, n) == 0);
    CHECK(hp_ring_release(ring) == 0);
}

static void test_messages(void)
{
    struct hp_ring *const ring = fresh(0);
    const void *where;
    size_t n;
    CHECK(hp_ring_peek(ring, &where, &n) == -EAGAIN);
    CHECK(hp_ring_release(ring) == -EAGAIN);
    CHECK(put(ring, "first", 5) == 0 && put(ring, "", 0) == 0 && put(ring, "third!!!", 8) == 0);
    expect(ring, "first", 5);
    expect(ring, "", 0);
    expect(ring, "third!!!", 8);
    CHECK(hp_ring_peek(ring, &where, &n) == -EAGAIN);
}

static void test_reservation(void)
{
    struct hp_ring *const ring = fresh(0);
    void *where;
    CHECK(hp_ring_commit(ring, 0) == -EINVAL);
    CHECK(hp_ring_reserve(ring, 100, &where) == 0);
    CHECK(hp_ring_reserve(ring, 1, &where) == -EBUSY);
    CHECK(hp_ring_commit(ring, 101) == -EINVAL);
    memcpy(where, "short", 5);
    CHECK(hp_ring_commit(ring, 5) == 0); /* less than reserved */
    expect(ring, "short", 5);
}

static void test_full(void)
{
    struct hp_ring *const ring = fresh(0);
    CHECK(hp_ring_max_message(ring) == 1024 / 2 - HP_RING_FRAME);
    void *where;
    CHECK(hp_ring_reserve(ring, hp_ring_max_message(ring) + 1, &where) == -EMSGSIZE);
    const char data[56] = {1};
    for (int i = 0; i < 1024 / 64; i++)
        CHECK(put(ring, data, sizeof data) == 0);
    CHECK(put(ring, data, 0) == -EAGAIN);
    expect(ring, data, sizeof data);
    CHECK(put(ring, data, sizeof data) == 0);
    CHECK(put(ring, data, 0) == -EAGAIN);
}

/* Every position, every length: the longest message always goes through an empty ring. */
static void test_lengths(uint64_t start)
{
    struct hp_ring *const ring = fresh(start);
    char data[1024];
    uint64_t state = 88172645463325252u;
    random_bytes(data, sizeof data, &state);
    for (int i = 0; i < 20000; i++) {
        const size_t n = random64(&state) % (hp_ring_max_message(ring) + 1);
        const size_t at = random64(&state) % (sizeof data - n);
        CHECK(put(ring, data + at, n) == 0);
        expect(ring, data + at, n);
        CHECK(hp_ring_valid(memory, BYTES));
    }
}

static void test_invalid(void)
{
    CHECK(hp_ring_init(memory, sizeof(struct hp_ring) + 63, 0) == -EINVAL);
    CHECK(hp_ring_init(memory + 1, BYTES - 1, 0) == -EINVAL);
    CHECK(hp_ring_init(memory, BYTES, 4) == -EINVAL);
    struct hp_ring *const ring = fresh(0);
    CHECK(!hp_ring_valid(memory, BYTES - 1)); /* larger than the mapping */
    ring->capacity = 1000;
    CHECK(!hp_ring_valid(memory, BYTES));
    ring->capacity = 1024;
    ring->written = 2048; /* more than fits is in it */
    CHECK(!hp_ring_valid(memory, BYTES));
    ring->written = 0;
    CHECK(hp_ring_valid(memory, BYTES));
    ring->magic++;
    CHECK(!hp_ring_valid(memory, BYTES));
}

enum { MESSAGES = 200000 };

/* Message i has a length and content that follow from i. */
static size_t length_of(uint64_t i)
{
    return i * 2654435761u % 300;
}

static void *write_all(void *arg)
{
    struct hp_ring *const ring = arg;
    for (uint64_t i = 0; i < MESSAGES;) {
        void *where;
        const size_t n = length_of(i);
        if (hp_ring_reserve(ring, n, &where) == -EAGAIN) {
            sched_yield();
            continue;
        }
        memset(where, (int)(i & 0xff), n);
        CHECK(hp_ring_commit(ring, n) == 0);
        i++;
    }
    return NULL;
}

static void read_all(struct hp_ring *ring)
{
    for (uint64_t i = 0; i < MESSAGES;) {
        const void *where;
        size_t n;
        if (hp_ring_peek(ring, &where, &n) == -EAGAIN) {
            sched_yield();
            continue;
        }
        CHECK(n == length_of(i));
        for (size_t j = 0; j < n; j++)
            CHECK(((const uint8_t *)where)[j] == (i & 0xff));
        CHECK(hp_ring_release(ring) == 0);
        i++;
    }
}

static void test_two_threads(uint64_t start)
{
    struct hp_ring *const ring = fresh(start);
    pthread_t writer;
    CHECK(pthread_create(&writer, NULL, write_all, ring) == 0);
    read_all(ring);
    CHECK(pthread_join(writer, NULL) == 0);
}

static void check_end(void)
{
    for (size_t i = BYTES; i < sizeof memory; i++)
        CHECK(memory[i] == 0);
}

int main(void)
{
    const uint64_t near_wrap = UINT64_MAX - 4095; /* the counters pass 2**64 early on */
    test_messages();
    test_reservation();
    test_full();
    test_lengths(0);
    test_lengths(near_wrap);
    test_invalid();
    test_two_threads(0);
    test_two_threads(near_wrap);
    check_end();
    return 0;
}

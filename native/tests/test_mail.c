/* Messages: every size, in order, by tag and source; who gives up, leaves or has no room. */
#define _GNU_SOURCE
#include <fcntl.h>

#include "ranks.h"

#define NEVER (60 * SECOND)
#define SOON (2 * SECOND)
#define MS 1000000u

enum { ANY = -1, LONG = (HP_BUFFER_SLOTS + 3) * HP_BUFFER_CHUNK + 17 };

static struct hp_box open_box(struct rank *rank, uint64_t key)
{
    struct hp_box box = {.mail = &rank->mail, .key = key, .size = rank->world->size,
                         .rank = rank->index};
    for (int r = 0; r < box.size; r++)
        box.members[r] = r;
    return box;
}

/* What rank `from` sends as its message `number`. */
static void fill(uint8_t *out, uint64_t nbytes, int from, int number)
{
    for (uint64_t i = 0; i < nbytes; i++)
        out[i] = (uint8_t)(i * 31 + i / 251 + (uint64_t)from * 7 + (uint64_t)number);
}

static void expect(const uint8_t *got, uint64_t nbytes, int from, int number)
{
    uint8_t *const wanted = malloc(nbytes + 1);
    fill(wanted, nbytes, from, number);
    CHECK(memcmp(got, wanted, nbytes) == 0);
    free(wanted);
}

static void begin_send(struct hp_message *m, struct hp_box *box, int to, int64_t tag,
                       const void *data, uint64_t nbytes)
{
    *m = (struct hp_message){.box = box, .way = HP_SEND, .peer = to, .tag = tag, .kind = "bytes",
                             .kind_length = 5, .data = (void *)(uintptr_t)data, .nbytes = nbytes};
    hp_mail_begin(m);
}

static void begin_receive(struct hp_message *m, struct hp_box *box, int from, int64_t tag)
{
    *m = (struct hp_message){.box = box, .way = HP_RECEIVE, .peer = from, .tag = tag};
    hp_mail_begin(m);
}

static void finish(struct hp_message *m, int lane)
{
    CHECK(hp_mail_run(m, lane, NEVER) == HP_DONE);
}

/* Wait for what a receive finds and fetch it; its envelope. */
static struct hp_envelope fetch(struct hp_message *m, int lane, uint8_t *out, uint64_t nbytes)
{
    CHECK(hp_mail_run(m, lane, NEVER) == HP_FOUND);
    const struct hp_envelope found = hp_mail_found(m);
    CHECK(found.nbytes == nbytes && found.kind_length == 5 && memcmp(found.kind, "bytes", 5) == 0);
    m->data = out;
    const int rc = hp_mail_take(m);
    CHECK(rc == HP_DONE || rc == HP_PENDING);
    if (rc == HP_PENDING)
        finish(m, lane);
    return found;
}

static void send_number(struct hp_box *box, int to, int64_t tag, uint64_t number)
{
    struct hp_message m;
    begin_send(&m, box, to, tag, &number, sizeof number);
    finish(&m, 0);
}

static uint64_t receive_number(struct hp_box *box, int from, int64_t tag)
{
    struct hp_message m;
    uint64_t number;
    begin_receive(&m, box, from, tag);
    fetch(&m, 0, (uint8_t *)&number, sizeof number);
    return number;
}

/* ---- what arrives ------------------------------------------------------------------------ */

static const uint64_t sizes[] = {0, 1, 7, HP_MAIL_INLINE, HP_MAIL_INLINE + 1, HP_BUFFER_CHUNK,
                                 HP_BUFFER_CHUNK + 1, LONG};
enum { NUM_SIZES = sizeof sizes / sizeof sizes[0] };

/* The array of a rank: in its window, or nowhere. */
static uint8_t *array_of(const struct rank *rank, uint64_t at)
{
    if (rank->world->in_heap)
        return (uint8_t *)rank->node.windows[rank->index] + rank->node.heap + at;
    return malloc(LONG);
}

static void drop_array(const struct rank *rank, uint8_t *array)
{
    if (!rank->world->in_heap)
        free(array);
}

/* Everybody sends to the right, and to itself where it is alone, and receives from the left. */
static void body_sizes(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    const int size = box.size, to = (box.rank + 1) % size, from = (box.rank + size - 1) % size;
    uint8_t *const x = array_of(rank, 0), *const y = array_of(rank, LONG + 64);
    for (int lane = 0; lane < HP_LANES; lane++)
        for (int i = 0; i < NUM_SIZES; i++) {
            struct hp_message in, out;
            fill(x, sizes[i], box.rank, i);
            memset(y, 0xee, LONG);
            dawdle(&rank->random);
            begin_receive(&in, &box, from, i);
            begin_send(&out, &box, to, i, x, sizes[i]);
            const struct hp_envelope found = fetch(&in, lane, y, sizes[i]);
            CHECK(found.source == from && found.tag == i);
            expect(y, sizes[i], from, i);
            finish(&out, lane);
        }
    drop_array(rank, x);
    drop_array(rank, y);
}

/* A receive that knows the kind gets its message without a stop, late or early. */
static void body_unasked(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    const int peer = 1 - box.rank;
    uint8_t *const x = malloc(LONG), *const y = malloc(LONG);
    for (int i = 0; i < 2 * NUM_SIZES; i++) {
        const uint64_t nbytes = sizes[i % NUM_SIZES];
        struct hp_message out, in = {.box = &box, .way = HP_RECEIVE, .peer = peer, .tag = 3,
                                     .kind = "bytes", .kind_length = 5, .data = y,
                                     .nbytes = nbytes};
        fill(x, nbytes, box.rank, i);
        if (i % 2)
            hp_mail_begin(&in);
        begin_send(&out, &box, peer, 3, x, nbytes);
        if (i % 2 == 0) {
            dawdle(&rank->random);
            hp_mail_begin(&in);
        }
        finish(&in, 0);
        expect(y, nbytes, peer, i);
        finish(&out, 0);
    }
    free(x);
    free(y);
}

/* Far more than a ring holds, to who sleeps. */
static void body_many(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    enum { COUNT = 3000 };
    if (box.rank == 1)
        for (uint64_t i = 0; i < COUNT; i++)
            send_number(&box, 0, 5, i);
    else if (box.rank == 0) {
        sleep_ns(20 * MS);
        for (uint64_t i = 0; i < COUNT; i++)
            CHECK(receive_number(&box, 1, ANY) == i);
    }
}

/* More long messages than there are places for them. */
static void body_many_long(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    enum { COUNT = HP_TRANSFERS + 10 };
    struct hp_message *const messages = calloc(COUNT, sizeof *messages);
    uint8_t *const x = malloc(LONG);
    fill(x, LONG, 1, 0);
    for (int i = 0; box.rank == 0 && i < COUNT; i++)
        begin_send(&messages[i], &box, 1, i, x, LONG);
    for (int i = COUNT - 1; box.rank == 1 && i >= 0; i--) { /* the last one first */
        begin_receive(&messages[i], &box, 0, i);
    }
    for (int i = 0; i < COUNT; i++) {
        if (box.rank == 0)
            finish(&messages[i], 0);
        else {
            fetch(&messages[i], 0, x, LONG);
            expect(x, LONG, 1, 0);
        }
    }
    free(x);
    free(messages);
}

/* ---- which one arrives ------------------------------------------------------------------- */

static void body_matching(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY), other = open_box(rank, GROUP_KEY + 1);
    if (box.rank == 1) {
        send_number(&other, 0, 4, 1); /* of another group */
        for (uint64_t i = 0; i < 3; i++)
            send_number(&box, 0, 4, i);
        send_number(&box, 0, 6, 60);
        send_number(&box, 0, 9, 90);
        meet(rank);
        return;
    }
    struct hp_message any, first, second;
    begin_receive(&first, &box, 1, 4);
    begin_receive(&any, &box, ANY, ANY);
    begin_receive(&second, &box, 1, 4);
    CHECK(receive_number(&box, ANY, 6) == 60); /* overtakes what has another tag */
    meet(rank);
    uint64_t numbers[3];
    const struct hp_envelope found = fetch(&any, 0, (uint8_t *)&numbers[1], 8);
    CHECK(found.source == 1 && found.tag == 4);
    fetch(&second, 0, (uint8_t *)&numbers[2], 8);
    fetch(&first, 0, (uint8_t *)&numbers[0], 8);
    CHECK(numbers[0] == 0 && numbers[1] == 1 && numbers[2] == 2);
    char kind[8];
    struct hp_envelope next;
    struct hp_message asked = {.box = &box, .way = HP_RECEIVE, .peer = ANY, .tag = ANY};
    CHECK(hp_mail_probe(&asked, &next, kind, sizeof kind) == HP_FOUND);
    CHECK(next.source == 1 && next.tag == 9 && next.nbytes == 8 && next.kind_length == 5);
    asked.tag = 10;
    CHECK(hp_mail_probe(&asked, &next, kind, sizeof kind) == HP_PENDING);
    CHECK(receive_number(&box, 1, 9) == 90 && receive_number(&other, ANY, ANY) == 1);
}

/* Who gives up a receive loses no message; a send that is given up never arrives. */
static void body_cancel(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    struct hp_message m, n;
    uint64_t number = 0;
    uint8_t *const x = calloc(1, LONG);
    if (box.rank == 0) {
        begin_receive(&m, &box, 1, 1);
        CHECK(hp_mail_run(&m, 0, 5 * MS) == HP_PENDING);
        hp_mail_cancel(&m);
        begin_receive(&m, &box, 1, 2);
        begin_receive(&n, &box, 1, 2);
        meet(rank);
        CHECK(hp_mail_run(&m, 0, NEVER) == HP_FOUND);
        hp_mail_cancel(&m); /* so the next one gets it */
        fetch(&n, 0, (uint8_t *)&number, 8);
        CHECK(number == 22);
        meet(rank);
        CHECK(receive_number(&box, 1, 3) == 33); /* not the long one before it */
        begin_receive(&m, &box, 1, 4);
        CHECK(hp_mail_run(&m, 0, NEVER) == HP_FOUND);
        m.data = x;
        meet(rank);
        meet(rank); /* has given up by now */
        int rc = hp_mail_take(&m);
        CHECK(rc == -ECANCELED);
    } else {
        meet(rank);
        send_number(&box, 0, 2, 22);
        begin_send(&m, &box, 0, 3, x, LONG);
        CHECK(hp_mail_advance(&m) == HP_PENDING);
        hp_mail_cancel(&m);
        send_number(&box, 0, 3, 33);
        meet(rank);
        begin_send(&m, &box, 0, 4, x, LONG);
        CHECK(hp_mail_advance(&m) == HP_PENDING);
        meet(rank);
        hp_mail_cancel(&m);
        meet(rank);
    }
    meet(rank);
    free(x);
}

/* A receive whose message was withdrawn keeps its place in the line. */
static void body_order(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    struct hp_message m, first, second;
    uint8_t *const x = calloc(1, LONG);
    if (box.rank == 0) {
        begin_receive(&first, &box, 1, 1);
        begin_receive(&second, &box, 1, 1);
        meet(rank);
        meet(rank); /* the long one has come */
        hp_mail_stir(&rank->mail);
        CHECK(first.stage == HP_MATCHED && second.stage == HP_WAITING);
        meet(rank);
        meet(rank); /* and is withdrawn */
        uint64_t numbers[2];
        CHECK(hp_mail_advance(&first) != HP_DONE);
        fetch(&second, 0, (uint8_t *)&numbers[1], 8);
        fetch(&first, 0, (uint8_t *)&numbers[0], 8);
        CHECK(numbers[0] == 1 && numbers[1] == 2);
    } else {
        meet(rank);
        begin_send(&m, &box, 0, 1, x, LONG);
        CHECK(hp_mail_advance(&m) == HP_PENDING);
        meet(rank);
        meet(rank);
        hp_mail_cancel(&m);
        meet(rank);
        sleep_ns(20 * MS); /* the first one has looked */
        send_number(&box, 0, 1, 1);
        send_number(&box, 0, 1, 2);
    }
    meet(rank);
    free(x);
}

/* What came for a group goes with it, and long messages have their places back. */
static void body_empty(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    uint8_t *const x = calloc(1, LONG);
    for (int round = 0; round < 2 * HP_TRANSFERS; round++) {
        struct hp_message m;
        if (box.rank == 1) {
            begin_send(&m, &box, 0, 1, x, HP_MAIL_INLINE + 1);
            finish(&m, 0);
        }
        meet(rank);
        if (box.rank == 0)
            hp_box_empty(&box);
        meet(rank);
    }
    free(x);
}

/* ---- who is gone ------------------------------------------------------------------------- */

static void body_leaving(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    const int last = box.size - 1;
    struct hp_message m;
    uint8_t *const x = calloc(1, LONG);
    if (box.rank == last) {
        send_number(&box, 0, 1, 11);
        begin_send(&m, &box, 0, 2, x, HP_BUFFER_CHUNK);
        finish(&m, 0);
        hp_node_leave(&rank->node, HP_LEFT);
    }
    meet(rank);
    if (box.rank == 0) {
        CHECK(receive_number(&box, last, 1) == 11); /* it came before */
        begin_receive(&m, &box, last, 2);
        fetch(&m, 0, x, HP_BUFFER_CHUNK);
        begin_receive(&m, &box, last, ANY);
        CHECK(hp_mail_run(&m, 0, NEVER) == -EPIPE && m.blocked_on == last);
        hp_mail_cancel(&m);
        begin_send(&m, &box, last, 1, x, LONG);
        CHECK(hp_mail_run(&m, 0, NEVER) == -EPIPE && m.blocked_on == last);
        hp_mail_cancel(&m);
        begin_receive(&m, &box, ANY, ANY); /* others may still send */
        CHECK(hp_mail_run(&m, 0, 5 * MS) == (box.size == 2 ? -EPIPE : HP_PENDING));
        hp_mail_cancel(&m);
    }
    meet(rank);
    free(x);
}

/* A full machine is an error for who sends, and the next message goes out. */
static void body_no_memory(struct rank *rank)
{
    struct hp_box box = open_box(rank, GROUP_KEY);
    uint8_t *const x = calloc(1, LONG);
    const uint64_t short_and_long[] = {8, LONG};
    for (int i = 0; box.rank == 0 && i < 2; i++) {
        struct hp_message m;
        rank->node.fd = open("/dev/null", O_RDONLY);
        begin_send(&m, &box, 1, 1, x, short_and_long[i]);
        CHECK(hp_mail_run(&m, 0, NEVER) == -ENOMEM);
        close(rank->node.fd);
        rank->node.fd = -1;
        send_number(&box, 1, 1, 5);
    }
    for (int i = 0; box.rank == 1 && i < 2; i++)
        CHECK(receive_number(&box, 0, 1) == 5);
    free(x);
}

/* ---- threads of a rank ------------------------------------------------------------------- */

enum { ROUNDS = 100 };

static void exchange(struct rank *rank, struct hp_box *box, int lane, uint64_t random)
{
    const int peer = 1 - box->rank;
    uint8_t *const x = malloc(LONG), *const y = malloc(LONG);
    for (int i = 0; i < ROUNDS; i++) {
        struct hp_message in, out;
        const uint64_t nbytes = sizes[i % NUM_SIZES];
        fill(x, nbytes, box->rank, i);
        dawdle(&random);
        begin_receive(&in, box, peer, lane);
        begin_send(&out, box, peer, lane, x, nbytes);
        fetch(&in, lane, y, nbytes);
        expect(y, nbytes, peer, i);
        finish(&out, lane);
    }
    free(x);
    free(y);
    (void)rank;
}

static void *other_thread(void *arg)
{
    struct rank *const rank = arg;
    struct hp_box box = open_box(rank, GROUP_KEY);
    exchange(rank, &box, 1, 12345);
    return NULL;
}

static void body_threads(struct rank *rank)
{
    pthread_t other;
    struct hp_box box = open_box(rank, GROUP_KEY);
    CHECK(pthread_create(&other, NULL, other_thread, rank) == 0);
    exchange(rank, &box, 0, rank->random);
    CHECK(pthread_join(other, NULL) == 0);
}

static void run(int size, unsigned spins, enum in_heap in_heap, void (*body)(struct rank *))
{
    struct world world = {.size = size, .chunk = HP_SLOT_BYTES, .spins = spins, .in_heap = in_heap,
                          .body = body};
    run_world(&world);
}

/* Long arrays are read through the kernel, now and then in chunks. */
static void run_lent(int size, enum in_heap in_heap, void (*body)(struct rank *))
{
    struct world world = {.size = size, .chunk = HP_SLOT_BYTES, .in_heap = in_heap, .lends = true,
                          .body = body};
    run_world(&world);
}

int main(void)
{
    for (int size = 1; size <= 4; size++)
        for (unsigned spins = 0; spins <= 100; spins += 100) {
            run(size, spins, NOWHERE, body_sizes);
            run(size, spins, EVERYWHERE, body_sizes);
        }
    run(2, 0, NOWHERE, body_unasked);
    run(2, 0, NOWHERE, body_many);
    run(3, 100, NOWHERE, body_many);
    run(2, 0, NOWHERE, body_many_long);
    run(2, 0, NOWHERE, body_matching);
    run(2, 0, NOWHERE, body_cancel);
    run(2, 0, NOWHERE, body_order);
    run(2, 0, NOWHERE, body_empty);
    run(2, 0, NOWHERE, body_leaving);
    run(3, 100, NOWHERE, body_leaving);
    run(2, 0, NOWHERE, body_no_memory);
    run(2, 0, NOWHERE, body_threads);
    run(2, 100, NOWHERE, body_threads);
    for (int size = 1; size <= 4; size++)
        run_lent(size, NOWHERE, body_sizes);
    run_lent(3, BUT_FOR_ONE, body_sizes);
    run_lent(2, NOWHERE, body_many_long);
    run_lent(2, NOWHERE, body_cancel);
    run_lent(2, NOWHERE, body_leaving);
    run_lent(2, NOWHERE, body_threads);
    return 0;
}

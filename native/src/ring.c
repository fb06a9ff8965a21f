/*
 * A ring of messages between one writer and one reader. A frame is a length word and the
 * message, rounded up to the grain; a message never wraps: what does not fit before the end
 * starts at the beginning, behind a skip frame. Counters are seq_cst: who stores one looks at
 * sleepers next, who sleeps has looked at it last (bell.c).
 */
#include <errno.h>
#include <string.h>

#include "hp_atomic.h"
#include "hpcpar.h"

#define MAGIC 0x687072696e673032ull /* "hpring02": changes with the layout */
#define SKIP (1ull << 63)
#define MIN_CAPACITY 64

/* Bytes that a message takes with its header, in whole grains. */
static uint64_t frame_bytes(uint64_t nbytes)
{
    return HP_RING_FRAME + ((nbytes + HP_RING_FRAME - 1) & ~(uint64_t)(HP_RING_FRAME - 1));
}

/* Where a counter points; headers are always whole, for all sizes are multiples of 8. */
static uint8_t *at(struct hp_ring *ring, uint64_t counter)
{
    return ring->data + (counter & (ring->capacity - 1));
}

static void put_header(struct hp_ring *ring, uint64_t counter, uint64_t header)
{
    memcpy(at(ring, counter), &header, sizeof header);
}

static uint64_t get_header(struct hp_ring *ring, uint64_t counter)
{
    uint64_t header;
    memcpy(&header, at(ring, counter), sizeof header);
    return header;
}

int hp_ring_init(void *mem, size_t nbytes, uint64_t start)
{
    struct hp_ring *const ring = mem;
    if (nbytes < sizeof *ring + MIN_CAPACITY || (uintptr_t)mem % 8 || start % HP_RING_FRAME)
        return -EINVAL;
    uint64_t capacity = MIN_CAPACITY;
    /* A power of two: then counters modulo capacity stay right when they wrap at 2**64. */
    while (2 * capacity <= nbytes - sizeof *ring)
        capacity *= 2;
    memset(ring, 0, sizeof *ring);
    ring->capacity = capacity;
    ring->seen_read = ring->seen_written = start;
    atomic_init(&ring->written, start);
    atomic_init(&ring->read, start);
    ring->magic = MAGIC;
    return 0;
}

/* Counters are compared by difference: they wrap, and a ring is full at capacity. */
bool hp_ring_valid(const void *mem, size_t nbytes)
{
    const struct hp_ring *const ring = mem;
    if (nbytes < sizeof *ring + MIN_CAPACITY || (uintptr_t)mem % 8 || ring->magic != MAGIC)
        return false;
    const uint64_t capacity = ring->capacity;
    /* Both acquires pair with the releases in hp_ring_commit and hp_ring_release. */
    const uint64_t read = hp_load_acquire(&ring->read);
    const uint64_t used = hp_load_acquire(&ring->written) - read;
    return capacity >= MIN_CAPACITY && (capacity & (capacity - 1)) == 0 &&
           capacity <= nbytes - sizeof *ring && used <= capacity && used % HP_RING_FRAME == 0;
}

size_t hp_ring_max_message(const struct hp_ring *ring)
{
    /* A longer one may fit on neither side of an unlucky position. */
    return ring->capacity / 2 - HP_RING_FRAME;
}

int hp_ring_reserve(struct hp_ring *ring, size_t nbytes, void **where)
{
    if (ring->is_reserved)
        return -EBUSY;
    if (nbytes > hp_ring_max_message(ring))
        return -EMSGSIZE;
    const uint64_t written = hp_load_relaxed(&ring->written);
    const uint64_t to_end = ring->capacity - (written & (ring->capacity - 1));
    const uint64_t skip = to_end < frame_bytes(nbytes) ? to_end : 0;
    const uint64_t need = skip + frame_bytes(nbytes);
    if (ring->capacity - (written - ring->seen_read) < need) {
        ring->seen_read = hp_load_ordered(&ring->read); /* pairs with hp_ring_peek and _release */
        if (ring->capacity - (written - ring->seen_read) < need)
            return -EAGAIN;
    }
    if (skip)
        put_header(ring, written, SKIP | skip);
    ring->frame = written + skip;
    ring->reserved = nbytes;
    ring->is_reserved = 1;
    *where = at(ring, ring->frame) + HP_RING_FRAME;
    return 0;
}

int hp_ring_commit(struct hp_ring *ring, size_t nbytes)
{
    if (!ring->is_reserved || nbytes > ring->reserved)
        return -EINVAL;
    put_header(ring, ring->frame, nbytes); /* a skip frame before it is there already */
    ring->is_reserved = 0;
    hp_store_ordered(&ring->written, ring->frame + frame_bytes(nbytes));
    return 0;
}

int hp_ring_peek(struct hp_ring *ring, const void **where, size_t *nbytes)
{
    uint64_t read = hp_load_relaxed(&ring->read);
    if (read == ring->seen_written) {
        ring->seen_written = hp_load_ordered(&ring->written); /* pairs with hp_ring_commit */
        if (read == ring->seen_written)
            return -EAGAIN;
    }
    uint64_t header = get_header(ring, read);
    if (header & SKIP) { /* was published together with the message behind it */
        read += header & ~SKIP;
        hp_store_ordered(&ring->read, read);
        header = get_header(ring, read);
    }
    *where = at(ring, read) + HP_RING_FRAME;
    *nbytes = header;
    return 0;
}

int hp_ring_release(struct hp_ring *ring)
{
    const void *where;
    size_t nbytes;
    const int rc = hp_ring_peek(ring, &where, &nbytes);
    if (rc == 0)
        hp_store_ordered(&ring->read, hp_load_relaxed(&ring->read) + frame_bytes(nbytes));
    return rc;
}

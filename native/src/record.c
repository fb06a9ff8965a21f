/*
 * The flight record: the newest operations in a ring of fixed records, totals per group and verb
 * beside it, all in one buffer of the caller. A ticket carries slot and verb, so totals stay
 * right when an operation outlives its record.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "hp_atomic.h"
#include "hpcpar.h"

#define MAGIC 0x6870726563303031ull /* "hprec001": changes with the layout */
#define VERB_BITS 5
#define SLOT_BITS 12

_Static_assert(HP_MAX_VERBS == 1 << VERB_BITS, "a ticket holds any verb");
_Static_assert(HP_MAX_GROUPS == 1 << SLOT_BITS, "a ticket holds any slot");

struct hp_recorder {
    uint64_t magic;
    uint64_t capacity;
    uint64_t next; /* operations begun so far; the next one's index */
    uint32_t num_groups;
    uint8_t pad[HP_CACHE_LINE - 28];
    struct hp_group groups[HP_MAX_GROUPS];
    struct hp_total totals[HP_MAX_GROUPS][HP_MAX_VERBS];
    struct hp_record records[];
};

_Static_assert(sizeof(struct hp_recorder) % HP_CACHE_LINE == 0, "records start on a line");

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Index + 1, slot and verb, from the highest bit down: positive for 2**46 operations. */
static uint64_t make_ticket(uint64_t index, uint32_t slot, uint16_t verb)
{
    return (index + 1) << (SLOT_BITS + VERB_BITS) | (uint64_t)slot << VERB_BITS | verb;
}

static uint64_t index_of(uint64_t ticket)
{
    return (ticket >> (SLOT_BITS + VERB_BITS)) - 1;
}

size_t hp_recorder_bytes(size_t capacity)
{
    if (capacity == 0 || (capacity & (capacity - 1)) || capacity > (size_t)1 << 32)
        return 0;
    return sizeof(struct hp_recorder) + capacity * sizeof(struct hp_record);
}

int hp_recorder_init(void *zeroed, size_t capacity)
{
    struct hp_recorder *const r = zeroed;
    if (hp_recorder_bytes(capacity) == 0 || (uintptr_t)zeroed % HP_CACHE_LINE)
        return -EINVAL;
    r->capacity = capacity;
    r->magic = MAGIC;
    return 0;
}

bool hp_recorder_valid(const struct hp_recorder *r)
{
    return r->magic == MAGIC && hp_recorder_bytes(r->capacity) && r->num_groups <= HP_MAX_GROUPS;
}

int hp_recorder_add_group(struct hp_recorder *r, const char *name, int rank, int size)
{
    if (r->num_groups == HP_MAX_GROUPS)
        return -ENOSPC;
    struct hp_group *const g = &r->groups[r->num_groups];
    const size_t length = strlen(name);
    memset(g, 0, sizeof *g);
    memcpy(g->name, name, length < HP_NAME_BYTES ? length : HP_NAME_BYTES - 1);
    g->rank = rank;
    g->size = size;
    return (int)r->num_groups++;
}

/* The record of an index, whoever holds it now. */
static struct hp_record *place(struct hp_recorder *r, uint64_t index)
{
    return &r->records[index & (r->capacity - 1)];
}

int64_t hp_recorder_begin(struct hp_recorder *r, const struct hp_operation *op)
{
    if (op->slot >= r->num_groups || op->verb >= HP_MAX_VERBS)
        return -EINVAL;
    const uint64_t ticket = make_ticket(r->next, op->slot, op->verb);
    struct hp_record *const rec = place(r, r->next++);
    hp_store_release(&rec->ticket, 0); /* the old record ends here */
    rec->seq = r->groups[op->slot].seq++;
    rec->count = op->count;
    rec->end_ns = 0;
    rec->sent = rec->received = 0;
    rec->messages = 0;
    rec->peer = op->peer;
    rec->slot = op->slot;
    rec->itemsize = op->itemsize;
    rec->status = 0;
    rec->verb = op->verb;
    rec->dtype = op->dtype;
    rec->start_ns = now_ns(); /* last, so that it does not count our own work */
    hp_store_release(&rec->ticket, ticket);
    r->totals[op->slot][op->verb].ops++;
    return (int64_t)ticket;
}

/* Whether begin() can have given out this ticket. */
static bool issued(const struct hp_recorder *r, int64_t ticket)
{
    const uint64_t t = (uint64_t)ticket;
    return ticket > 0 && index_of(t) < r->next &&
           (t >> VERB_BITS & (HP_MAX_GROUPS - 1)) < r->num_groups;
}

/* The record of a ticket, or NULL if a newer operation has taken its place. */
static struct hp_record *find(struct hp_recorder *r, int64_t ticket)
{
    struct hp_record *const rec = place(r, index_of((uint64_t)ticket));
    /* A plain look: only the writing thread comes here. */
    return hp_load_relaxed(&rec->ticket) == (uint64_t)ticket ? rec : NULL;
}

int hp_recorder_sent(struct hp_recorder *r, int64_t ticket, const struct hp_total *delta)
{
    if (!issued(r, ticket))
        return -EINVAL;
    const uint64_t t = (uint64_t)ticket;
    struct hp_total *const total =
        &r->totals[t >> VERB_BITS & (HP_MAX_GROUPS - 1)][t & (HP_MAX_VERBS - 1)];
    total->sent += delta->sent;
    total->received += delta->received;
    total->messages += delta->messages;
    struct hp_record *const rec = find(r, ticket);
    if (rec) {
        rec->sent += delta->sent;
        rec->received += delta->received;
        rec->messages += (uint32_t)delta->messages;
    }
    return 0;
}

int hp_recorder_end(struct hp_recorder *r, int64_t ticket, int status)
{
    if (!issued(r, ticket))
        return -EINVAL;
    struct hp_record *const rec = find(r, ticket);
    if (rec) {
        rec->status = status;
        rec->end_ns = now_ns();
    }
    return 0;
}

int hp_recorder_withdraw(struct hp_recorder *r, int64_t ticket)
{
    if (!issued(r, ticket))
        return -EINVAL;
    const uint64_t t = (uint64_t)ticket, slot = t >> VERB_BITS & (HP_MAX_GROUPS - 1);
    struct hp_record *const rec = find(r, ticket);
    if (rec)
        hp_store_release(&rec->ticket, 0);
    r->groups[slot].seq--;
    r->totals[slot][t & (HP_MAX_VERBS - 1)].ops--;
    return 0;
}

size_t hp_recorder_last(struct hp_recorder *r, struct hp_record *out, size_t n)
{
    /* Before the first wrap the ring holds fewer records than it has room for. */
    const uint64_t held = r->next < r->capacity ? r->next : r->capacity;
    const uint64_t most = n < held ? n : held;
    size_t copied = 0;
    for (uint64_t i = r->next - most; i != r->next; i++) {
        const struct hp_record *const rec = place(r, i);
        if (hp_load_acquire(&rec->ticket)) /* pairs with the release in hp_recorder_begin */
            memcpy(&out[copied++], rec, sizeof *rec);
    }
    return copied;
}

bool hp_recorder_oldest_open(struct hp_recorder *r, struct hp_record *out)
{
    const struct hp_record *oldest = NULL;
    for (uint64_t i = 0; i < r->capacity && i < r->next; i++) {
        const struct hp_record *const rec = &r->records[i];
        /* The acquire pairs with the release in hp_recorder_begin. */
        if (hp_load_acquire(&rec->ticket) && rec->end_ns == 0 &&
            (!oldest || rec->start_ns < oldest->start_ns))
            oldest = rec;
    }
    if (oldest)
        memcpy(out, oldest, sizeof *out);
    return oldest != NULL;
}

const struct hp_group *hp_recorder_group(const struct hp_recorder *r, uint32_t slot)
{
    return slot < r->num_groups ? &r->groups[slot] : NULL;
}

const struct hp_total *hp_recorder_total(const struct hp_recorder *r, uint32_t slot,
                                         uint32_t verb)
{
    if (slot >= r->num_groups || verb >= HP_MAX_VERBS || r->totals[slot][verb].ops == 0)
        return NULL;
    return &r->totals[slot][verb];
}

uint32_t hp_recorder_num_groups(const struct hp_recorder *r)
{
    return r->num_groups;
}

size_t hp_recorder_capacity(const struct hp_recorder *r)
{
    return r->capacity;
}

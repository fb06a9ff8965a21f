/*
 * The flight record: the newest operations in a ring of fixed records, then the groups, each with
 * its totals per verb, so that memory is used from the front. A ticket carries slot and verb, so
 * totals stay right when an operation outlives its record.
 *
 * One thread writes; any may read meanwhile, in another process too. A record's ticket is 0 while
 * the others of its words change. These are stored with release and read with acquire: so who has
 * read a word of a newer operation sees, looking at the ticket again, that the old one is gone.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "hp_atomic.h"
#include "hpcpar.h"

#define MAGIC 0x6870726563303032ull /* "hprec002": changes with the layout */
#define VERB_BITS 5
#define SLOT_BITS 12
#define SITE_WORDS (HP_SITE_BYTES / sizeof(uint64_t))
#define TRIES 4 /* looks at a record that goes on being rewritten */

_Static_assert(HP_MAX_VERBS == 1 << VERB_BITS, "a ticket holds any verb");
_Static_assert(HP_MAX_GROUPS == 1 << SLOT_BITS, "a ticket holds any slot");

/* A record as it lies in memory. Slot and verb are in the ticket. */
struct cell {
    _Atomic uint64_t ticket;
    _Atomic uint64_t seq;
    _Atomic uint64_t count;
    _Atomic uint64_t start_ns;
    _Atomic uint64_t end_ns; /* stored when all else of the operation is known */
    _Atomic uint64_t sent;
    _Atomic uint64_t received;
    _Atomic uint64_t messages;
    _Atomic uint64_t peer_itemsize; /* two halves, the first one the lower */
    _Atomic uint64_t dtype;
    _Atomic uint64_t status; /* means something where the operation has ended */
    _Atomic uint64_t site[SITE_WORDS];
};

struct sum {
    _Atomic uint64_t ops;
    _Atomic uint64_t sent;
    _Atomic uint64_t received;
    _Atomic uint64_t messages;
};

struct entry {
    char name[HP_NAME_BYTES];
    int32_t rank;
    int32_t size;
    _Atomic uint64_t seq;
    struct sum totals[HP_MAX_VERBS];
};

struct memory {
    _Atomic uint64_t magic; /* stored last */
    uint64_t capacity;
    _Atomic uint64_t next;       /* operations begun so far; the next one's index */
    _Atomic uint64_t num_groups; /* stored when the group is there */
    uint8_t pad[HP_CACHE_LINE - 32];
    struct cell cells[];
};

_Static_assert(sizeof(struct memory) == HP_CACHE_LINE, "records start on a line");
_Static_assert(sizeof(struct cell) == 2 * HP_CACHE_LINE, "a record fills two lines");
_Static_assert(sizeof(struct entry) % HP_CACHE_LINE == 0, "a group begins on a line");

uint64_t hp_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t halves(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
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

static uint32_t slot_of(uint64_t ticket)
{
    return (uint32_t)(ticket >> VERB_BITS) & (HP_MAX_GROUPS - 1);
}

static uint32_t verb_of(uint64_t ticket)
{
    return (uint32_t)ticket & (HP_MAX_VERBS - 1);
}

static struct memory *memory_of(const struct hp_recorder *r)
{
    return r->memory;
}

/* The record of an index, whoever holds it now. */
static struct cell *cell_at(const struct hp_recorder *r, uint64_t index)
{
    return &memory_of(r)->cells[index & (r->capacity - 1)];
}

static struct entry *entry_at(const struct hp_recorder *r, uint32_t slot)
{
    return (struct entry *)(void *)(memory_of(r)->cells + r->capacity) + slot;
}

static uint32_t count_groups(const struct hp_recorder *r)
{
    /* Pairs with hp_recorder_add_group. */
    const uint64_t groups = hp_load_acquire(&memory_of(r)->num_groups);
    return groups <= HP_MAX_GROUPS ? (uint32_t)groups : 0; /* what I attached to may be anything */
}

/* ---- making ---------------------------------------------------------------------------- */

size_t hp_recorder_bytes(size_t capacity, uint32_t num_groups)
{
    if (capacity == 0 || (capacity & (capacity - 1)) || capacity > (size_t)1 << 32)
        return 0;
    return sizeof(struct memory) + capacity * sizeof(struct cell) +
           num_groups * sizeof(struct entry);
}

int hp_recorder_init(struct hp_recorder *r, void *zeroed, size_t capacity)
{
    if (hp_recorder_bytes(capacity, 0) == 0 || (uintptr_t)zeroed % HP_CACHE_LINE)
        return -EINVAL;
    *r = (struct hp_recorder){zeroed, capacity};
    memory_of(r)->capacity = capacity;
    hp_store_release(&memory_of(r)->magic, MAGIC);
    return 0;
}

int hp_recorder_attach(struct hp_recorder *r, const void *memory, size_t nbytes)
{
    if (nbytes < sizeof(struct memory) || (uintptr_t)memory % HP_CACHE_LINE)
        return -EINVAL;
    *r = (struct hp_recorder){(void *)memory, 0};
    /* The acquire pairs with the release in hp_recorder_init. */
    if (hp_load_acquire(&memory_of(r)->magic) != MAGIC)
        return -EBADMSG;
    r->capacity = memory_of(r)->capacity;
    const size_t needed = hp_recorder_bytes(r->capacity, HP_MAX_GROUPS);
    return needed == 0 ? -EBADMSG : nbytes < needed ? -EINVAL : 0;
}

/* Records that may be in the ring: before the first wrap it holds fewer than it has room for. */
static uint64_t held(const struct hp_recorder *r, uint64_t next)
{
    return next < r->capacity ? next : r->capacity;
}

void hp_recorder_move(struct hp_recorder *r, void *zeroed)
{
    const uint64_t used = held(r, hp_load_relaxed(&memory_of(r)->next)); /* the rest takes none */
    const struct entry *const groups = entry_at(r, 0);
    const uint32_t many = count_groups(r);
    memcpy(zeroed, r->memory, sizeof(struct memory) + used * sizeof(struct cell));
    r->memory = zeroed;
    memcpy(entry_at(r, 0), groups, many * sizeof(struct entry));
}

/* ---- writing --------------------------------------------------------------------------- */

int hp_recorder_add_group(struct hp_recorder *r, const char *name, int rank, int size)
{
    const uint32_t slot = count_groups(r);
    if (slot == HP_MAX_GROUPS)
        return -ENOSPC;
    struct entry *const entry = entry_at(r, slot);
    const size_t length = strlen(name);
    memcpy(entry->name, name, length < HP_NAME_BYTES ? length : HP_NAME_BYTES - 1);
    entry->rank = rank;
    entry->size = size;
    hp_store_release(&memory_of(r)->num_groups, slot + 1);
    return (int)slot;
}

/* Add to a sum that this thread alone writes. */
static void add(_Atomic uint64_t *word, uint64_t more)
{
    hp_store_relaxed(word, hp_load_relaxed(word) + more);
}

/* The same in a record, whose words are released. */
static void add_released(_Atomic uint64_t *word, uint64_t more)
{
    hp_store_release(word, hp_load_relaxed(word) + more);
}

static void fill_site(struct cell *cell, const char *site)
{
    uint64_t words[SITE_WORDS] = {0};
    if (site)
        memcpy(words, site, sizeof words);
    for (size_t i = 0; i < SITE_WORDS; i++)
        hp_store_release(&cell->site[i], words[i]);
}

static void fill(struct cell *cell, const struct hp_operation *op, uint64_t seq)
{
    fill_site(cell, op->site);
    hp_store_release(&cell->seq, seq);
    hp_store_release(&cell->count, (uint64_t)op->count);
    hp_store_release(&cell->end_ns, 0);
    hp_store_release(&cell->sent, 0);
    hp_store_release(&cell->received, 0);
    hp_store_release(&cell->messages, 0);
    hp_store_release(&cell->peer_itemsize, halves((uint32_t)op->peer, op->itemsize));
    hp_store_release(&cell->dtype, op->dtype);
    hp_store_release(&cell->start_ns, hp_now()); /* last, so that it does not count our own work */
}

int64_t hp_recorder_begin(struct hp_recorder *r, const struct hp_operation *op)
{
    if (op->slot >= count_groups(r) || op->verb >= HP_MAX_VERBS)
        return -EINVAL;
    const uint64_t index = hp_load_relaxed(&memory_of(r)->next);
    const uint64_t ticket = make_ticket(index, op->slot, op->verb);
    struct cell *const cell = cell_at(r, index);
    struct entry *const entry = entry_at(r, op->slot);
    const uint64_t seq = hp_load_relaxed(&entry->seq);
    hp_store_relaxed(&entry->seq, seq + 1);
    add(&entry->totals[op->verb].ops, 1);
    hp_store_release(&cell->ticket, 0); /* the old record ends here */
    fill(cell, op, seq);
    hp_store_release(&cell->ticket, ticket);
    hp_store_release(&memory_of(r)->next, index + 1);
    return (int64_t)ticket;
}

/* Whether begin() can have given out this ticket. */
static bool issued(const struct hp_recorder *r, int64_t ticket)
{
    const uint64_t t = (uint64_t)ticket;
    return ticket > 0 && index_of(t) < hp_load_relaxed(&memory_of(r)->next) &&
           slot_of(t) < count_groups(r);
}

/* The record of a ticket, or NULL if a newer operation has taken its place. */
static struct cell *find(const struct hp_recorder *r, int64_t ticket)
{
    struct cell *const cell = cell_at(r, index_of((uint64_t)ticket));
    /* A plain look: only the writing thread comes here. */
    return hp_load_relaxed(&cell->ticket) == (uint64_t)ticket ? cell : NULL;
}

int hp_recorder_sent(struct hp_recorder *r, int64_t ticket, const struct hp_total *delta)
{
    if (!issued(r, ticket))
        return -EINVAL;
    const uint64_t t = (uint64_t)ticket;
    struct sum *const total = &entry_at(r, slot_of(t))->totals[verb_of(t)];
    add(&total->sent, delta->sent);
    add(&total->received, delta->received);
    add(&total->messages, delta->messages);
    struct cell *const cell = find(r, ticket);
    if (cell) {
        add_released(&cell->sent, delta->sent);
        add_released(&cell->received, delta->received);
        add_released(&cell->messages, delta->messages);
    }
    return 0;
}

int hp_recorder_end(struct hp_recorder *r, int64_t ticket, int status)
{
    if (!issued(r, ticket))
        return -EINVAL;
    struct cell *const cell = find(r, ticket);
    if (cell) {
        hp_store_release(&cell->status, (uint32_t)status);
        hp_store_release(&cell->end_ns, hp_now());
    }
    return 0;
}

int hp_recorder_withdraw(struct hp_recorder *r, int64_t ticket)
{
    if (!issued(r, ticket))
        return -EINVAL;
    const uint64_t t = (uint64_t)ticket;
    struct cell *const cell = find(r, ticket);
    if (cell)
        hp_store_release(&cell->ticket, 0);
    struct entry *const entry = entry_at(r, slot_of(t));
    add(&entry->seq, (uint64_t)-1);
    add(&entry->totals[verb_of(t)].ops, (uint64_t)-1);
    return 0;
}

/* ---- reading --------------------------------------------------------------------------- */

/* Copy what the words say. The acquires pair with the releases in fill, sent and end. */
static void copy(const struct cell *cell, uint64_t ticket, struct hp_record *out)
{
    uint64_t site[SITE_WORDS];
    out->end_ns = hp_load_acquire(&cell->end_ns); /* first: what is there by then is all */
    const uint64_t status = hp_load_acquire(&cell->status);
    const uint64_t peer = hp_load_acquire(&cell->peer_itemsize);
    out->seq = hp_load_acquire(&cell->seq);
    out->count = (int64_t)hp_load_acquire(&cell->count);
    out->start_ns = hp_load_acquire(&cell->start_ns);
    out->sent = hp_load_acquire(&cell->sent);
    out->received = hp_load_acquire(&cell->received);
    out->messages = (uint32_t)hp_load_acquire(&cell->messages);
    out->peer = (int32_t)(uint32_t)peer;
    out->itemsize = (uint32_t)(peer >> 32);
    out->status = out->end_ns ? (int32_t)(uint32_t)status : 0;
    out->dtype = (uint16_t)hp_load_acquire(&cell->dtype);
    out->slot = slot_of(ticket);
    out->verb = (uint16_t)verb_of(ticket);
    for (size_t i = 0; i < SITE_WORDS; i++)
        site[i] = hp_load_acquire(&cell->site[i]);
    memcpy(out->site, site, sizeof out->site);
    out->site[HP_SITE_BYTES - 1] = 0; /* whatever I attached to */
}

/* Copy the record in a cell and return its ticket; 0 if there is none, or none that stays. */
static uint64_t look(const struct hp_recorder *r, const struct cell *cell, struct hp_record *out)
{
    for (int i = 0; i < TRIES; i++) {
        const uint64_t ticket = hp_load_acquire(&cell->ticket); /* pairs with hp_recorder_begin */
        if (ticket == 0)
            return 0;
        copy(cell, ticket, out);
        if (hp_load_relaxed(&cell->ticket) == ticket)
            return out->slot < count_groups(r) ? ticket : 0;
    }
    return 0;
}

/* Pairs with hp_recorder_begin. */
static uint64_t load_next(const struct hp_recorder *r)
{
    return hp_load_acquire(&memory_of(r)->next);
}

size_t hp_recorder_last(const struct hp_recorder *r, struct hp_record *out, size_t n)
{
    const uint64_t next = load_next(r);
    const uint64_t most = n < held(r, next) ? n : held(r, next);
    size_t copied = 0;
    for (uint64_t i = next - most; i != next; i++) {
        struct hp_record found;
        const uint64_t ticket = look(r, cell_at(r, i), &found);
        if (ticket && index_of(ticket) == i) /* else a newer one has come meanwhile */
            out[copied++] = found;
    }
    return copied;
}

bool hp_recorder_oldest_open(const struct hp_recorder *r, struct hp_record *out)
{
    const uint64_t many = held(r, load_next(r));
    bool is_found = false;
    for (uint64_t i = 0; i < many; i++) {
        struct hp_record found;
        const uint64_t ticket = look(r, cell_at(r, i), &found);
        if (ticket && found.end_ns == 0 && (!is_found || found.start_ns < out->start_ns)) {
            *out = found;
            is_found = true;
        }
    }
    return is_found;
}

uint32_t hp_recorder_num_groups(const struct hp_recorder *r)
{
    return count_groups(r);
}

bool hp_recorder_group(const struct hp_recorder *r, uint32_t slot, struct hp_group *out)
{
    if (slot >= count_groups(r))
        return false;
    const struct entry *const entry = entry_at(r, slot);
    memcpy(out->name, entry->name, sizeof out->name);
    out->name[sizeof out->name - 1] = 0;
    out->rank = entry->rank;
    out->size = entry->size;
    out->seq = hp_recorder_seq(r, slot);
    return true;
}

uint64_t hp_recorder_seq(const struct hp_recorder *r, uint32_t slot)
{
    return hp_load_relaxed(&entry_at(r, slot)->seq);
}

bool hp_recorder_total(const struct hp_recorder *r, uint32_t slot, uint32_t verb,
                       struct hp_total *out)
{
    if (slot >= count_groups(r) || verb >= HP_MAX_VERBS)
        return false;
    const struct sum *const total = &entry_at(r, slot)->totals[verb];
    out->ops = hp_load_relaxed(&total->ops);
    out->sent = hp_load_relaxed(&total->sent);
    out->received = hp_load_relaxed(&total->received);
    out->messages = hp_load_relaxed(&total->messages);
    return out->ops != 0;
}

/*
 * Long payloads. A transfer lies in the sender's window; the receiver counts in it what it has
 * taken, and when it has all the transfer is free again. A sender is done when all chunks lie in
 * slots; one whose array is read where it lies waits until that is over.
 */
#include <errno.h>

#include "hp_atomic.h"
#include "mail.h"

enum { NOTHING, HEAD, ALL }; /* what is reserved of a transfer */

static struct hp_transfer *transfer_of(const struct hp_node *node, int place, int index)
{
    char *const all = (char *)node->windows[place] + node->transfers;
    return (struct hp_transfer *)all + index;
}

static struct hp_transfer *mine(const struct hp_mail *mail, int index)
{
    return transfer_of(mail->node, mail->node->index, index);
}

static struct hp_transfer *its(const struct hp_mail *mail, const struct hp_letter *letter)
{
    return transfer_of(mail->node, letter->place, letter->head.transfer);
}

/* -EAGAIN: its last payload has not been fetched yet. */
static int claim(struct hp_mail *mail, int index, int need)
{
    struct hp_transfer *const transfer = mine(mail, index);
    if (mail->reserved[index] != NOTHING &&
        hp_load_ordered(&transfer->taken) != transfer->steps) /* pairs with hp_transfer_fetch */
        return -EAGAIN;
    const uint64_t nbytes = need == ALL ? sizeof *transfer : offsetof(struct hp_transfer, slots);
    if (mail->reserved[index] < need && hp_node_reserve(mail->node, transfer, nbytes) < 0)
        return -ENOMEM;
    if (mail->reserved[index] < need)
        mail->reserved[index] = (uint8_t)need;
    return 0;
}

int hp_transfer_open(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    const struct hp_place place = hp_node_place(mail->node, message->data, message->nbytes);
    int rc = -EAGAIN, index = -1;
    while (rc == -EAGAIN && ++index < mail->node->num_transfers)
        rc = claim(mail, index, place.at ? HEAD : ALL);
    if (rc < 0)
        return rc;
    struct hp_transfer *const transfer = mine(mail, index);
    const uint64_t chunks = (message->nbytes + HP_TRANSFER_CHUNK - 1) / HP_TRANSFER_CHUNK;
    transfer->place = place;
    transfer->steps = message->steps = place.at ? 1 : chunks;
    hp_store_release(&transfer->taken, 0);
    hp_store_release(&transfer->filled, place.at ? 1 : 0);
    message->transfer = index;
    message->moved = 0;
    return 0;
}

/* Whether the slot of a chunk is free; what has just come tells how far the receiver is. */
static bool has_room(struct hp_mail *mail, const struct hp_transfer *transfer, uint64_t chunk)
{
    const uint64_t began = hp_now();
    const uint64_t taken = hp_load_ordered(&transfer->taken); /* pairs with hp_transfer_fetch */
    const uint64_t took = hp_now() - began;
    if (taken + HP_TRANSFER_SLOTS <= chunk)
        return false;
    mail->line_ns = hp_line_after(mail->node, mail->line_ns, took);
    return true;
}

static void put(void *to, const void *from, uint64_t nbytes, bool past)
{
    if (past)
        hp_copy_streaming(to, from, nbytes);
    else
        hp_copy(to, from, nbytes);
}

static void fill_slot(struct hp_message *message, struct hp_transfer *transfer)
{
    const uint64_t at = message->moved * HP_TRANSFER_CHUNK, left = message->nbytes - at;
    const bool past = hp_line_is_far(message->box->mail->node, message->box->mail->line_ns);
    put(transfer->slots[message->moved % HP_TRANSFER_SLOTS], (const char *)message->data + at,
        left < HP_TRANSFER_CHUNK ? left : HP_TRANSFER_CHUNK, past);
    message->moved++;
}

bool hp_transfer_fill(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    struct hp_transfer *const transfer = mine(mail, message->transfer);
    if (transfer->place.at)
        return hp_load_ordered(&transfer->taken) == 1; /* pairs with hp_transfer_end */
    while (message->moved < message->steps) {
        if (message->moved >= HP_TRANSFER_SLOTS && !has_room(mail, transfer, message->moved))
            return false;
        fill_slot(message, transfer);
        hp_store_ordered(&transfer->filled, message->moved);
        hp_node_ring(mail->node, message->box->members[message->peer]);
    }
    return true;
}

void hp_transfer_close(struct hp_mail *mail, int index)
{
    hp_store_ordered(&mine(mail, index)->taken, mine(mail, index)->steps);
}

void hp_transfer_drop(struct hp_mail *mail, int index)
{
    struct hp_transfer *const transfer = mine(mail, index);
    hp_store_ordered(&transfer->filled, hp_load_relaxed(&transfer->filled) | HP_DROPPED);
}

bool hp_transfer_was_dropped(struct hp_mail *mail, const struct hp_letter *letter)
{
    /* pairs with hp_transfer_drop */
    return letter->head.transfer >= 0 && hp_load_ordered(&its(mail, letter)->filled) & HP_DROPPED;
}

void hp_transfer_begin(struct hp_message *message)
{
    message->steps = its(message->box->mail, message->letter)->steps;
    message->moved = 0;
}

static void count_taken(struct hp_mail *mail, const struct hp_letter *letter, uint64_t taken)
{
    hp_store_ordered(&its(mail, letter)->taken, taken);
    hp_node_ring(mail->node, letter->place);
}

void hp_transfer_end(struct hp_mail *mail, const struct hp_letter *letter)
{
    if (letter->head.transfer >= 0)
        count_taken(mail, letter, its(mail, letter)->steps);
}

/* The sender may have given up, and changed its array, while it was read. */
static int fetch_whole(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    const struct hp_letter *const letter = message->letter;
    const struct hp_place place = its(mail, letter)->place;
    const uint64_t nbytes = letter->head.nbytes;
    put(message->data, (const char *)mail->node->windows[place.window] + place.at, nbytes,
        nbytes >= mail->node->tuning.stream);
    return hp_transfer_was_dropped(mail, letter) ? -ECANCELED : HP_DONE;
}

int hp_transfer_fetch(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    const struct hp_letter *const letter = message->letter;
    struct hp_transfer *const transfer = its(mail, letter);
    const uint64_t filled = hp_load_ordered(&transfer->filled); /* pairs with _fill and _drop */
    if (filled & HP_DROPPED)
        return -ECANCELED;
    if (transfer->place.at)
        return fetch_whole(message);
    const uint64_t nbytes = letter->head.nbytes;
    for (; message->moved < filled; message->moved++) {
        const uint64_t at = message->moved * HP_TRANSFER_CHUNK, left = nbytes - at;
        put((char *)message->data + at, transfer->slots[message->moved % HP_TRANSFER_SLOTS],
            left < HP_TRANSFER_CHUNK ? left : HP_TRANSFER_CHUNK,
            nbytes >= mail->node->tuning.stream);
        if (message->moved + 1 < message->steps) /* the last is counted when the receive ends */
            count_taken(mail, letter, message->moved + 1);
    }
    return message->moved == message->steps ? HP_DONE : HP_PENDING;
}

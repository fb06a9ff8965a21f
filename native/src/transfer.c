/*
 * Long payloads. A transfer lies in the sender's window; the receiver counts in it what it has
 * taken, and when it has all the transfer is free again. A sender is done when all chunks lie in
 * slots; one whose array is read where it lies waits until that is over. Of an array that is lent
 * the receiver says which it shall be.
 */
#include <errno.h>

#include "hp_atomic.h"
#include "mail.h"

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

static struct hp_buffer *buffer_of(const struct hp_node *node, int place, int index)
{
    char *const all = (char *)node->windows[place] + node->buffers;
    return (struct hp_buffer *)all + index;
}

/* Whether both sides are through with a transfer. */
static bool is_free(const struct hp_mail *mail, int index)
{
    const struct hp_transfer *const transfer = mine(mail, index);
    return !mail->in_use[index] &&
           hp_load_ordered(&transfer->taken) == transfer->steps; /* pairs with hp_transfer_end */
}

static int reserve_all(struct hp_mail *mail)
{
    const uint64_t nbytes = HP_TRANSFERS * sizeof(struct hp_transfer);
    if (!mail->has_transfers && hp_node_reserve(mail->node, mine(mail, 0), nbytes) < 0)
        return -ENOMEM;
    mail->has_transfers = true;
    return 0;
}

static bool is_in_window(const struct hp_transfer *transfer)
{
    return transfer->place.at && !hp_place_is_lent(transfer->place);
}

/* Where an array lies in a window; a long one, of which a send must wait anyhow, is lent. */
static struct hp_place place_of(const struct hp_message *message)
{
    const struct hp_node *const node = message->box->mail->node;
    const struct hp_place place = hp_node_place(node, message->data, message->nbytes);
    const bool pays = message->nbytes >= node->tuning.lend &&
                      message->nbytes > sizeof(struct hp_buffer);
    return place.at || !pays ? place : hp_lend(node, message->data, message->nbytes);
}

int hp_transfer_open(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    int index = 0;
    if (reserve_all(mail) < 0)
        return -ENOMEM;
    while (index < HP_TRANSFERS && !is_free(mail, index))
        index++;
    if (index == HP_TRANSFERS)
        return -EAGAIN;
    struct hp_transfer *const transfer = mine(mail, index);
    const uint64_t chunks = (message->nbytes + HP_BUFFER_CHUNK - 1) / HP_BUFFER_CHUNK;
    transfer->place = place_of(message);
    transfer->buffer = -1;
    transfer->steps = message->steps = is_in_window(transfer) ? 1 : chunks;
    hp_store_release(&transfer->taken, 0);
    hp_store_release(&transfer->wanted, HP_NOT_YET);
    hp_store_release(&transfer->filled, is_in_window(transfer) ? 1 : 0);
    mail->in_use[index] = true;
    message->transfer = index;
    message->moved = 0;
    return 0;
}

/* The first buffer that nobody has; -1: there is none. */
static int find_buffer(const struct hp_mail *mail)
{
    for (int b = 0; b < mail->node->num_buffers; b++)
        if (!mail->has_buffer[b] || is_free(mail, mail->user_of[b]) ||
            mine(mail, mail->user_of[b])->buffer != b)
            return b;
    return -1;
}

/*
 * Give a transfer a buffer. The last one is kept for what a receive waits for: else messages that
 * are not received yet could keep one from being received first.
 */
static int take_buffer(struct hp_mail *mail, int index)
{
    struct hp_transfer *const transfer = mine(mail, index);
    const int b = find_buffer(mail);
    const bool is_last = b == mail->node->num_buffers - 1;
    if (b < 0 || (is_last && !hp_load_ordered(&transfer->wanted))) /* pairs with _begin */
        return -EAGAIN;
    struct hp_buffer *const buffer = buffer_of(mail->node, mail->node->index, b);
    if (!mail->has_buffer[b] && hp_node_reserve(mail->node, buffer, sizeof *buffer) < 0)
        return -ENOMEM;
    mail->has_buffer[b] = true;
    mail->user_of[b] = index;
    transfer->buffer = b;
    return 0;
}

/* Whether the slot of a chunk is free; what has just come tells how far the receiver is. */
static bool has_room(struct hp_mail *mail, const struct hp_transfer *transfer, uint64_t chunk)
{
    const uint64_t began = hp_now();
    const uint64_t taken = hp_load_ordered(&transfer->taken); /* pairs with hp_transfer_fetch */
    const uint64_t took = hp_now() - began;
    if (taken + HP_BUFFER_SLOTS <= chunk)
        return false;
    mail->line_ns = hp_line_after(mail->node, mail->line_ns, took);
    return true;
}

static void fill_slot(struct hp_message *message, const struct hp_transfer *transfer)
{
    const struct hp_mail *const mail = message->box->mail;
    struct hp_buffer *const buffer = buffer_of(mail->node, mail->node->index, transfer->buffer);
    const uint64_t step = message->moved++;
    hp_copy_or_stream(buffer->slots[step % HP_BUFFER_SLOTS],
                      (const char *)message->data + step * HP_BUFFER_CHUNK,
                      hp_step_bytes(message->nbytes, step, HP_BUFFER_CHUNK),
                      hp_line_is_far(mail->node, mail->line_ns));
}

int hp_transfer_fill(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    struct hp_transfer *const transfer = mine(mail, message->transfer);
    const bool in_chunks = hp_load_ordered(&transfer->wanted) == HP_IN_CHUNKS; /* pairs with want */
    if (is_in_window(transfer) || (hp_place_is_lent(transfer->place) && !in_chunks))
        /* pairs with hp_transfer_end; who does not want it has taken all, too */
        return hp_load_ordered(&transfer->taken) == transfer->steps ? 0 : -EAGAIN;
    const int rc = transfer->buffer < 0 ? take_buffer(mail, message->transfer) : 0;
    if (rc < 0)
        return rc;
    while (message->moved < message->steps) {
        if (message->moved >= HP_BUFFER_SLOTS && !has_room(mail, transfer, message->moved))
            return -EAGAIN;
        fill_slot(message, transfer);
        hp_store_ordered(&transfer->filled, message->moved);
        hp_node_ring(mail->node, message->box->members[message->peer]);
    }
    return 0;
}

void hp_transfer_leave(struct hp_mail *mail, int index)
{
    mail->in_use[index] = false;
}

void hp_transfer_close(struct hp_mail *mail, int index)
{
    hp_store_ordered(&mine(mail, index)->taken, mine(mail, index)->steps);
    hp_transfer_leave(mail, index);
}

void hp_transfer_drop(struct hp_mail *mail, int index)
{
    struct hp_transfer *const transfer = mine(mail, index);
    hp_store_ordered(&transfer->filled, hp_load_relaxed(&transfer->filled) | HP_DROPPED);
    hp_transfer_leave(mail, index);
}

bool hp_transfer_was_dropped(struct hp_mail *mail, const struct hp_letter *letter)
{
    /* pairs with hp_transfer_drop */
    return letter->head.transfer >= 0 && hp_load_ordered(&its(mail, letter)->filled) & HP_DROPPED;
}

static void want(struct hp_mail *mail, const struct hp_letter *letter, enum hp_wanted how)
{
    hp_store_ordered(&its(mail, letter)->wanted, how);
    hp_node_ring(mail->node, letter->place);
}

static struct hp_ways *ways_of(struct hp_mail *mail, const struct hp_letter *letter)
{
    return &mail->ways[hp_ways_class(mail->node, letter->head.nbytes)];
}

/* Which way to take for what is lent: threads that receive choose one after the other. */
static bool choose(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    if (!hp_node_reaches(mail->node, message->letter->place))
        return false;
    message->began_ns = hp_now();
    pthread_mutex_lock(&mail->lock);
    const enum hp_way_of way = hp_ways_choose(ways_of(mail, message->letter));
    pthread_mutex_unlock(&mail->lock);
    return way == HP_BY_LENDING;
}

static void tell(const struct hp_message *message, uint64_t took)
{
    struct hp_mail *const mail = message->box->mail;
    const struct hp_letter *const letter = message->letter;
    const enum hp_way_of way = message->is_lent ? HP_BY_LENDING : HP_BY_CHUNKS;
    pthread_mutex_lock(&mail->lock);
    hp_ways_tell(ways_of(mail, letter), way, letter->head.nbytes, took);
    pthread_mutex_unlock(&mail->lock);
}

/* What was lent has come: one way or the other. */
static int fetched(const struct hp_message *message)
{
    if (message->began_ns != 0)
        tell(message, hp_now() - message->began_ns);
    return HP_DONE;
}

void hp_transfer_begin(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    const struct hp_transfer *const transfer = its(mail, message->letter);
    message->steps = transfer->steps;
    message->moved = 0;
    message->began_ns = message->refused_ns = 0;
    message->is_lent = hp_place_is_lent(transfer->place) && choose(message);
    want(mail, message->letter, message->is_lent ? HP_AS_LENT : HP_IN_CHUNKS);
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

static bool leaves_caches(const struct hp_mail *mail, const struct hp_letter *letter)
{
    return letter->head.nbytes >= mail->node->tuning.stream;
}

/*
 * Whether the sender has given up, and may have changed its array, while it was read. In one step
 * with a store, so that no part of the array is read after it.
 */
static bool was_dropped(struct hp_transfer *transfer)
{
    return hp_add_ordered(&transfer->filled, 0) & HP_DROPPED;
}

static int fetch_whole(struct hp_message *message, struct hp_transfer *transfer)
{
    struct hp_mail *const mail = message->box->mail;
    const struct hp_letter *const letter = message->letter;
    hp_copy_or_stream(message->data, hp_node_address(mail->node, transfer->place),
                      letter->head.nbytes, leaves_caches(mail, letter));
    return was_dropped(transfer) ? -ECANCELED : HP_DONE;
}

/* A sender that has ended is found by others; what the kernel does not read comes in chunks. */
static int fetch_lent(struct hp_message *message, struct hp_transfer *transfer)
{
    const struct hp_node *const node = message->box->mail->node;
    int rc = hp_lend_read(node, transfer->place, 0, message->data, message->letter->head.nbytes);
    rc = rc == 0 ? hp_lend_confirm(node, message->letter->place) : rc;
    if (rc == 0)
        return was_dropped(transfer) ? -ECANCELED : fetched(message);
    if (rc != -ESRCH || hp_lend_is_lost(&message->refused_ns)) {
        tell(message, UINT64_MAX);
        message->is_lent = false;
        message->began_ns = 0;
        want(message->box->mail, message->letter, HP_IN_CHUNKS);
    }
    return HP_PENDING;
}

static void fetch_slot(const struct hp_message *message, const struct hp_buffer *buffer)
{
    const struct hp_letter *const letter = message->letter;
    const uint64_t step = message->moved;
    hp_copy_or_stream((char *)message->data + step * HP_BUFFER_CHUNK,
                      buffer->slots[step % HP_BUFFER_SLOTS],
                      hp_step_bytes(letter->head.nbytes, step, HP_BUFFER_CHUNK),
                      leaves_caches(message->box->mail, letter));
}

int hp_transfer_fetch(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    const struct hp_letter *const letter = message->letter;
    struct hp_transfer *const transfer = its(mail, letter);
    const uint64_t filled = hp_load_ordered(&transfer->filled); /* pairs with _fill and _drop */
    if (filled & HP_DROPPED)
        return -ECANCELED;
    if (is_in_window(transfer))
        return fetch_whole(message, transfer);
    if (message->is_lent)
        return fetch_lent(message, transfer);
    if (filled == 0)
        return HP_PENDING;
    const struct hp_buffer *const buffer = buffer_of(mail->node, letter->place, transfer->buffer);
    while (message->moved < filled) {
        fetch_slot(message, buffer);
        if (++message->moved < message->steps) /* the last is counted when the receive ends */
            count_taken(mail, letter, message->moved);
    }
    return message->moved == message->steps ? fetched(message) : HP_PENDING;
}

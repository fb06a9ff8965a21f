/*
 * Long payloads. A transfer lies in the sender's window; the receiver counts in it what it has
 * taken, and when it has all the transfer is free again. A sender is done when all chunks lie in
 * slots; one whose array is read where it lies waits until that is over.
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
    transfer->place = hp_node_place(mail->node, message->data, message->nbytes);
    transfer->buffer = -1;
    transfer->steps = message->steps = transfer->place.at ? 1 : chunks;
    hp_store_release(&transfer->taken, 0);
    hp_store_release(&transfer->wanted, 0);
    hp_store_release(&transfer->filled, transfer->place.at ? 1 : 0);
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
    if (transfer->place.at) /* pairs with hp_transfer_end */
        return hp_load_ordered(&transfer->taken) == 1 ? 0 : -EAGAIN;
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

void hp_transfer_begin(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    struct hp_transfer *const transfer = its(mail, message->letter);
    message->steps = transfer->steps;
    message->moved = 0;
    hp_store_ordered(&transfer->wanted, 1);
    hp_node_ring(mail->node, message->letter->place);
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

/* The sender may have given up, and changed its array, while it was read. */
static int fetch_whole(struct hp_message *message, struct hp_transfer *transfer)
{
    struct hp_mail *const mail = message->box->mail;
    const struct hp_letter *const letter = message->letter;
    hp_copy_or_stream(message->data, hp_node_address(mail->node, transfer->place),
                      letter->head.nbytes, leaves_caches(mail, letter));
    /* In one step with a store, so that no part of the array is read after it. */
    return hp_add_ordered(&transfer->filled, 0) & HP_DROPPED ? -ECANCELED : HP_DONE;
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
    if (transfer->place.at)
        return fetch_whole(message, transfer);
    if (filled == 0)
        return HP_PENDING;
    const struct hp_buffer *const buffer = buffer_of(mail->node, letter->place, transfer->buffer);
    while (message->moved < filled) {
        fetch_slot(message, buffer);
        if (++message->moved < message->steps) /* the last is counted when the receive ends */
            count_taken(mail, letter, message->moved);
    }
    return message->moved == message->steps ? HP_DONE : HP_PENDING;
}

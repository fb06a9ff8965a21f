/* Messages between two ranks: out into rings, in from rings, and waits for either. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hp_atomic.h"
#include "mail.h"

#define LOOK_AT_ALL 16 /* one look in so many at one ring looks at all */

void hp_mail_init(struct hp_mail *mail, struct hp_node *node)
{
    memset(mail, 0, sizeof *mail);
    mail->node = node;
    node->mail = mail;
    pthread_mutex_init(&mail->lock, NULL);
}

static void drop_letters(struct hp_mail *mail, const struct hp_box *box)
{
    struct hp_letter *before = NULL, *letter = mail->letters;
    while (letter) {
        if (letter->head.key != box->key) {
            before = letter;
        } else {
            hp_match_drop(mail, before);
            hp_transfer_end(mail, letter);
            free(letter);
        }
        letter = before ? before->next : mail->letters;
    }
}

void hp_mail_end(struct hp_mail *mail)
{
    struct hp_letter *letter;
    while ((letter = mail->letters)) { /* their senders' windows may be gone */
        mail->letters = letter->next;
        free(letter);
    }
    pthread_mutex_destroy(&mail->lock);
}

/* ---- rings ------------------------------------------------------------------------------ */

static struct hp_ring *ring_of(const struct hp_node *node, int from, int to)
{
    char *const rings = (char *)node->windows[from] + node->rings;
    return (struct hp_ring *)(rings + (size_t)to * HP_MAIL_RING);
}

/* Whether a place has sent messages to another. */
static bool has_ring(const struct hp_node *node, int from, int to)
{
    /* pairs with make_ring */
    return hp_load_acquire(&node->windows[from]->rings[to / 64]) >> (to % 64) & 1;
}

static int make_ring(struct hp_node *node, int to)
{
    struct hp_ring *const ring = ring_of(node, node->index, to);
    if (hp_node_reserve(node, ring, HP_MAIL_RING) < 0)
        return -ENOMEM;
    if (hp_ring_init(ring, HP_MAIL_RING, 0) < 0)
        return -EINVAL;
    _Atomic uint64_t *const bits = &node->windows[node->index]->rings[to / 64];
    hp_store_release(bits, hp_load_relaxed(bits) | UINT64_C(1) << (to % 64));
    return 0;
}

/* ---- in ---------------------------------------------------------------------------------- */

/* Whether a receive knows where to put what has this kind, and may have it at once. */
static bool takes_unasked(const struct hp_message *message, const struct hp_head *head,
                          const char *kind)
{
    return message->kind && message->nbytes == head->nbytes &&
           message->kind_length == head->kind_length &&
           memcmp(message->kind, kind, head->kind_length) == 0;
}

/* A short payload goes to a receive that waits for it without a stop. */
static bool deliver(struct hp_mail *mail, const struct hp_head *head, const char *rest)
{
    struct hp_message *const message = hp_match_find(mail, head);
    if (!message || head->transfer >= 0 || !takes_unasked(message, head, rest))
        return false;
    hp_match_remove(&mail->receives, message);
    if (head->nbytes > 0)
        memcpy(message->data, rest + head->kind_length, head->nbytes);
    message->stage = HP_FINISHED;
    return true;
}

static int take_in(struct hp_mail *mail, int place, const void *frame, uint64_t nbytes)
{
    struct hp_head head;
    memcpy(&head, frame, sizeof head);
    const char *const rest = (const char *)frame + sizeof head;
    if (deliver(mail, &head, rest))
        return 0;
    struct hp_letter *const letter = malloc(sizeof *letter + nbytes - sizeof head);
    if (!letter)
        return -ENOMEM;
    letter->number = ++mail->number;
    letter->head = head;
    letter->place = place;
    memcpy(letter->data, rest, nbytes - sizeof head);
    hp_match_letter(mail, letter);
    return 0;
}

/* Take all heads out of the ring from a place. */
static int drain(struct hp_mail *mail, int place)
{
    const struct hp_node *const node = mail->node;
    const void *frame;
    size_t nbytes;
    bool any = false;
    if (!has_ring(node, place, node->index))
        return 0;
    struct hp_ring *const ring = ring_of(node, place, node->index);
    while (hp_ring_peek(ring, &frame, &nbytes) == 0) {
        const int rc = take_in(mail, place, frame, nbytes);
        if (rc < 0)
            return rc;
        hp_ring_release(ring);
        any = true;
    }
    if (any)
        hp_node_ring(mail->node, place); /* it may wait for room */
    return 0;
}

static int drain_all(struct hp_mail *mail)
{
    for (int place = 0; place < mail->node->size; place++) {
        const int rc = drain(mail, place);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- out --------------------------------------------------------------------------------- */

static int place_of(const struct hp_message *message)
{
    return message->box->members[message->peer];
}

static bool is_short(const struct hp_message *message)
{
    return message->nbytes <= HP_MAIL_INLINE;
}

static void write_frame(const struct hp_message *message, char *to)
{
    const struct hp_head head = {.key = message->box->key, .rank = message->box->rank,
                                 .transfer = message->transfer, .tag = message->tag,
                                 .nbytes = message->nbytes, .kind_length = message->kind_length};
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, message->kind, message->kind_length);
    if (is_short(message) && message->nbytes > 0)
        memcpy(to + sizeof head + message->kind_length, message->data, message->nbytes);
}

static int open_ring(const struct hp_message *message, struct hp_ring **ring)
{
    struct hp_node *const node = message->box->mail->node;
    const int to = place_of(message);
    *ring = ring_of(node, node->index, to);
    return has_ring(node, node->index, to) ? 0 : make_ring(node, to);
}

/* Write the head, with what is short. -EAGAIN: no room, no transfer; -ENOMEM. */
static int post(struct hp_message *message)
{
    struct hp_ring *ring;
    void *frame;
    const uint64_t inside = is_short(message) ? message->nbytes : 0;
    const uint64_t nbytes = sizeof(struct hp_head) + message->kind_length + inside;
    int rc = open_ring(message, &ring);
    if (rc == 0 && !is_short(message) && message->transfer < 0)
        rc = hp_transfer_open(message);
    if (rc == 0)
        rc = hp_ring_reserve(ring, nbytes, &frame);
    if (rc < 0)
        return rc;
    write_frame(message, frame);
    hp_ring_commit(ring, nbytes);
    hp_node_ring(message->box->mail->node, place_of(message));
    return 0;
}

/* Whether an earlier message for the same rank is not out yet: this one must not overtake it. */
static bool must_wait(const struct hp_message *message)
{
    for (const struct hp_message *m = message->box->mail->sends; m != message; m = m->next)
        if (m->stage == HP_WAITING && place_of(m) == place_of(message))
            return true;
    return false;
}

/* A send that is out cannot be called back; its receiver learns that there is nothing to fetch. */
static void call_back(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    if (message->stage == HP_CARRYING)
        hp_transfer_drop(mail, message->transfer);
    else if (message->stage == HP_WAITING && message->transfer >= 0)
        hp_transfer_close(mail, message->transfer);
}

/* Move a send on, to HP_FINISHED at best. */
static void push(struct hp_message *message)
{
    int rc = -EAGAIN;
    if (message->stage == HP_WAITING && !must_wait(message)) {
        rc = post(message);
        if (rc == 0 && !is_short(message)) {
            message->stage = HP_CARRYING;
            rc = -EAGAIN;
        }
    }
    if (message->stage == HP_CARRYING)
        rc = hp_transfer_fill(message);
    if (rc == -EAGAIN)
        return;
    if (rc < 0)
        call_back(message);
    else if (message->transfer >= 0)
        hp_transfer_leave(message->box->mail, message->transfer);
    message->failure = rc;
    message->stage = HP_FINISHED;
}

static void push_all(struct hp_mail *mail)
{
    for (struct hp_message *m = mail->sends; m; m = m->next) {
        push(m);
        if (m->stage == HP_FINISHED)
            hp_match_remove(&mail->sends, m); /* it still knows the next one */
    }
}

/* ---- on the way -------------------------------------------------------------------------- */

void hp_mail_begin(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    message->transfer = -1;
    message->failure = 0;
    message->letter = NULL;
    message->blocked_on = message->peer;
    message->stage = HP_WAITING;
    pthread_mutex_lock(&mail->lock);
    message->turn = ++mail->number;
    if (message->way == HP_RECEIVE)
        hp_match_receive(mail, message);
    else
        hp_match_wait(&mail->sends, message);
    pthread_mutex_unlock(&mail->lock);
}

/* Look into all rings, where others may wait for room, and move all sends on. */
static int stir_all(struct hp_mail *mail)
{
    const int rc = drain_all(mail);
    push_all(mail);
    return rc;
}

/* In most looks of a receive that waits for one rank, only into that one's. */
static int stir(struct hp_mail *mail, const struct hp_message *message)
{
    const bool one = message->way == HP_RECEIVE && message->peer >= 0;
    if (!one || ++mail->looks % LOOK_AT_ALL == 0)
        return stir_all(mail);
    const int rc = message->stage == HP_WAITING ? drain(mail, place_of(message)) : 0;
    push_all(mail);
    return rc;
}

void hp_mail_stir(struct hp_mail *mail)
{
    pthread_mutex_lock(&mail->lock);
    stir_all(mail); /* a lack of memory is said to who asks for a message */
    pthread_mutex_unlock(&mail->lock);
}

/* What was found is here, or will not come. */
static int end(struct hp_message *message, int rc)
{
    struct hp_mail *const mail = message->box->mail;
    hp_transfer_end(mail, message->letter);
    free(message->letter);
    message->letter = NULL;
    message->stage = HP_FINISHED;
    return rc;
}

/* Fetch to where the receive wants it. */
static int carry(struct hp_message *message)
{
    const struct hp_letter *const letter = message->letter;
    if (letter->head.transfer < 0) {
        if (letter->head.nbytes > 0)
            memcpy(message->data, letter->data + letter->head.kind_length, letter->head.nbytes);
        return end(message, HP_DONE);
    }
    const int rc = hp_transfer_fetch(message);
    return rc == HP_PENDING ? rc : end(message, rc);
}

int hp_mail_take(struct hp_message *message)
{
    if (message->letter->head.transfer >= 0)
        hp_transfer_begin(message);
    message->stage = HP_CARRYING;
    return carry(message);
}

/* Wait for another letter if the one that was matched is void by now. */
static bool is_void(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    pthread_mutex_lock(&mail->lock);
    const bool found = hp_match_is_void(mail, message->letter);
    if (found) {
        message->letter = NULL;
        message->blocked_on = message->peer;
        message->stage = HP_WAITING;
        hp_match_receive(mail, message);
    }
    pthread_mutex_unlock(&mail->lock);
    return found;
}

/* What a receive that is matched does: fetch what it can have unasked, or say what there is. */
static int find(struct hp_message *message)
{
    if (is_void(message))
        return HP_PENDING;
    const struct hp_letter *const letter = message->letter;
    message->blocked_on = letter->head.rank;
    return takes_unasked(message, &letter->head, letter->data) ? hp_mail_take(message) : HP_FOUND;
}

int hp_mail_advance(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    pthread_mutex_lock(&mail->lock);
    const int rc = stir(mail, message);
    const enum hp_stage stage = message->stage;
    pthread_mutex_unlock(&mail->lock);
    if (stage == HP_FINISHED)
        return message->failure < 0 ? message->failure : HP_DONE;
    if (message->way == HP_RECEIVE && stage == HP_MATCHED)
        return find(message);
    if (message->way == HP_RECEIVE && stage == HP_CARRYING)
        return carry(message);
    return rc < 0 ? rc : HP_PENDING;
}

struct hp_envelope hp_mail_found(const struct hp_message *message)
{
    const struct hp_letter *const letter = message->letter;
    return (struct hp_envelope){.source = letter->head.rank, .tag = letter->head.tag,
                                .nbytes = letter->head.nbytes, .kind = letter->data,
                                .kind_length = letter->head.kind_length};
}

void hp_mail_cancel(struct hp_message *message)
{
    struct hp_mail *const mail = message->box->mail;
    pthread_mutex_lock(&mail->lock);
    if (message->way == HP_SEND) {
        hp_match_remove(&mail->sends, message);
        call_back(message);
    } else if (message->stage == HP_WAITING) {
        hp_match_remove(&mail->receives, message);
    } else if (message->stage == HP_MATCHED) {
        hp_match_letter(mail, message->letter);
    } else if (message->stage == HP_CARRYING) {
        end(message, 0);
    }
    message->stage = HP_FINISHED;
    pthread_mutex_unlock(&mail->lock);
    hp_node_ring(mail->node, mail->node->index); /* another thread may go on now */
}

int hp_mail_probe(struct hp_message *message, struct hp_envelope *found, char *kind, size_t room)
{
    struct hp_mail *const mail = message->box->mail;
    pthread_mutex_lock(&mail->lock);
    const int rc = stir_all(mail);
    const struct hp_letter *const letter = hp_match_look(mail, message);
    if (letter) {
        const size_t length = letter->head.kind_length;
        *found = (struct hp_envelope){.source = letter->head.rank, .tag = letter->head.tag,
                                      .nbytes = letter->head.nbytes, .kind = kind,
                                      .kind_length = length < room ? length : room};
        memcpy(kind, letter->data, found->kind_length);
    }
    pthread_mutex_unlock(&mail->lock);
    return rc < 0 ? rc : letter ? HP_FOUND : HP_PENDING;
}

void hp_box_empty(struct hp_box *box)
{
    pthread_mutex_lock(&box->mail->lock);
    drain_all(box->mail);
    drop_letters(box->mail, box);
    pthread_mutex_unlock(&box->mail->lock);
}

/* ---- waits ------------------------------------------------------------------------------- */

static bool is_alive(const struct hp_message *message, int rank)
{
    return hp_node_is_alive(message->box->mail->node, message->box->members[rank]);
}

static bool has_failed(const struct hp_message *message, int rank)
{
    const int place = message->box->members[rank];
    /* pairs with hp_node_leave */
    return hp_load_ordered(&message->box->mail->node->windows[place]->state) == HP_FAILED;
}

int hp_mail_look(const struct hp_message *message)
{
    const struct hp_box *const box = message->box;
    if (message->blocked_on >= 0)
        return is_alive(message, message->blocked_on) ? -1 : message->blocked_on;
    int gone = -1;
    bool any = false;
    for (int r = box->size - 1; r >= 0; r--) {
        if (r == box->rank)
            continue;
        if (has_failed(message, r))
            return r; /* nobody knows whether it was the one that should have sent */
        any = any || is_alive(message, r);
        gone = r;
    }
    return any ? -1 : gone;
}

static int advance_message(void *message)
{
    return hp_mail_advance(message);
}

/* What came before its sender left is there when that is seen. */
static int settle_message(void *waiter)
{
    struct hp_message *const message = waiter;
    const int gone = hp_mail_look(message), rc = hp_mail_advance(message);
    if (rc != HP_PENDING || gone < 0)
        return rc;
    message->blocked_on = gone;
    return -EPIPE;
}

static const struct hp_waits how_messages_wait = {advance_message, settle_message};

int hp_mail_run(struct hp_message *message, int lane, uint64_t nanoseconds)
{
    const struct hp_node *const node = message->box->mail->node;
    return hp_bell_wait(node, lane, &how_messages_wait, message, nanoseconds);
}

int hp_mail_doze(struct hp_message *message, int lane, uint64_t nanoseconds)
{
    const struct hp_node *const node = message->box->mail->node;
    return hp_bell_doze(node, lane, &how_messages_wait, message, nanoseconds);
}

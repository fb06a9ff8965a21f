/* mail.h - what mail.c, matching.c and transfer.c share. */
#ifndef HP_MAIL_INTERN_H
#define HP_MAIL_INTERN_H

#include "engine.h"
#include "hp_mail.h"

struct hp_letter {
    struct hp_letter *next;
    uint64_t number; /* in the order of their coming */
    struct hp_head head;
    int place; /* of the sender, on the node */
    char data[]; /* kind, then an inline payload */
};

/* ---- matching.c: which letter goes to which receive. The lock is held. ------------------- */

/* Whether the sender of a letter has given up; then the letter is gone. */
bool hp_match_is_void(struct hp_mail *mail, struct hp_letter *letter);
/* Give a letter to the first receive that fits, else keep it. */
void hp_match_letter(struct hp_mail *mail, struct hp_letter *letter);
/* Give a receive the first letter that fits, else keep it in the line. */
void hp_match_receive(struct hp_mail *mail, struct hp_message *message);
/* Take out the letter behind one, or the first. */
struct hp_letter *hp_match_drop(struct hp_mail *mail, struct hp_letter *before);
/* The first letter that a receive would get, left where it is; or NULL. */
const struct hp_letter *hp_match_look(struct hp_mail *mail, const struct hp_message *message);
/* The first receive in the line for a message with this head. */
struct hp_message *hp_match_find(struct hp_mail *mail, const struct hp_head *head);
/* Put a message into a line, where its turn is: a receive may come back to it. */
void hp_match_wait(struct hp_message **line, struct hp_message *message);
/* Take a message out of a line. */
void hp_match_remove(struct hp_message **line, const struct hp_message *message);
/* Whether a message waits for what has this head. */
bool hp_match_fits(const struct hp_message *message, const struct hp_head *head);

/* ---- transfer.c: long payloads ------------------------------------------------------------ */

/* Take a transfer for a long message; it says where the payload lies. -EAGAIN, -ENOMEM. */
int hp_transfer_open(struct hp_message *message);
/* Fill all slots that are free. 0: the sender has done its part; -EAGAIN, -ENOMEM. */
int hp_transfer_fill(struct hp_message *message);
/* Need it no more as its sender: it is free when the receiver has all. */
void hp_transfer_leave(struct hp_mail *mail, int transfer);
/* Give it back, when nobody has heard of it yet. */
void hp_transfer_close(struct hp_mail *mail, int transfer);
/* Give up as its sender. */
void hp_transfer_drop(struct hp_mail *mail, int transfer);
/* Whether the sender of a letter has given up. */
bool hp_transfer_was_dropped(struct hp_mail *mail, const struct hp_letter *letter);
/* Begin to fetch what a matched receive has found. */
void hp_transfer_begin(struct hp_message *message);
/* Fetch what there is. HP_DONE, HP_PENDING, -ECANCELED. */
int hp_transfer_fetch(struct hp_message *message);
/* Want no more of it. */
void hp_transfer_end(struct hp_mail *mail, const struct hp_letter *letter);

#endif

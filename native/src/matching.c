/*
 * Which message goes to which receive: each letter to the first receive that fits, each receive to
 * the first letter, in the order of the calls and of the coming.
 */
#include <stdlib.h>

#include "mail.h"

bool hp_match_fits(const struct hp_message *message, const struct hp_head *head)
{
    return message->box->key == head->key &&
           (message->peer < 0 || message->peer == head->rank) &&
           (message->tag < 0 || message->tag == head->tag);
}

void hp_match_remove(struct hp_message **line, const struct hp_message *message)
{
    while (*line && *line != message)
        line = &(*line)->next;
    if (*line)
        *line = message->next;
}

void hp_match_wait(struct hp_message **line, struct hp_message *message)
{
    while (*line && (*line)->turn < message->turn)
        line = &(*line)->next;
    message->next = *line;
    *line = message;
}

struct hp_message *hp_match_find(struct hp_mail *mail, const struct hp_head *head)
{
    struct hp_message *message = mail->receives;
    while (message && !hp_match_fits(message, head))
        message = message->next;
    return message;
}

static void join(struct hp_message *message, struct hp_letter *letter)
{
    message->letter = letter;
    message->stage = HP_MATCHED;
}

/* One that was matched before comes back to its place. */
static void keep(struct hp_mail *mail, struct hp_letter *letter)
{
    const bool is_last = mail->letters && mail->newest->number < letter->number;
    struct hp_letter **at = is_last ? &mail->newest->next : &mail->letters;
    while (*at && (*at)->number < letter->number)
        at = &(*at)->next;
    letter->next = *at;
    *at = letter;
    if (!letter->next)
        mail->newest = letter;
}

struct hp_letter *hp_match_drop(struct hp_mail *mail, struct hp_letter *before)
{
    struct hp_letter **const at = before ? &before->next : &mail->letters;
    struct hp_letter *const letter = *at;
    *at = letter->next;
    if (mail->newest == letter)
        mail->newest = before;
    return letter;
}

bool hp_match_is_void(struct hp_mail *mail, struct hp_letter *letter)
{
    if (!hp_transfer_was_dropped(mail, letter))
        return false;
    hp_transfer_end(mail, letter);
    free(letter);
    return true;
}

void hp_match_letter(struct hp_mail *mail, struct hp_letter *letter)
{
    if (hp_match_is_void(mail, letter))
        return;
    struct hp_message *const message = hp_match_find(mail, &letter->head);
    if (!message) {
        keep(mail, letter);
        return;
    }
    hp_match_remove(&mail->receives, message);
    join(message, letter);
}

/* The letter behind one, or the first, that fits; `before` comes to be the one before it. */
static struct hp_letter *next_fit(struct hp_mail *mail, const struct hp_message *message,
                                  struct hp_letter **before)
{
    struct hp_letter *letter = *before ? (*before)->next : mail->letters;
    while (letter && !hp_match_fits(message, &letter->head)) {
        *before = letter;
        letter = letter->next;
    }
    return letter;
}

/* The first letter for a receive, taken out; letters that are void go on the way. */
static struct hp_letter *take_letter(struct hp_mail *mail, const struct hp_message *message)
{
    struct hp_letter *before = NULL, *letter;
    while ((letter = next_fit(mail, message, &before))) {
        hp_match_drop(mail, before);
        if (!hp_match_is_void(mail, letter))
            return letter;
    }
    return NULL;
}

const struct hp_letter *hp_match_look(struct hp_mail *mail, const struct hp_message *message)
{
    struct hp_letter *const letter = take_letter(mail, message);
    if (letter)
        keep(mail, letter);
    return letter;
}

void hp_match_receive(struct hp_mail *mail, struct hp_message *message)
{
    struct hp_letter *const letter = take_letter(mail, message);
    if (letter)
        join(message, letter);
    else
        hp_match_wait(&mail->receives, message);
}

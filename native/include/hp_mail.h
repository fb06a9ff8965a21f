/*
 * hp_mail.h - messages between two ranks of a node.
 *
 * A sender writes into a ring in its own window, one for each receiver, made by the first message.
 * Short payloads go with the head; of a long one the head names a transfer, which says where it
 * lies or will lie: in the sender's array, if that is symmetric, else chunk by chunk in a buffer;
 * or the receiver reads the array through the kernel, if it likes that better.
 * Heads are taken from rings whenever a rank waits for anything, and wait in the process for a
 * receive.
 *
 * One mail serves all groups and threads of a rank: a lock is held while heads move and chunks are
 * filled. Payloads are taken without it.
 */
#ifndef HP_MAIL_H
#define HP_MAIL_H

#include <pthread.h>

#include "hp_node.h"

#define HP_MAIL_RING 36864         /* bytes of a ring; 32 KiB of them hold messages */
#define HP_MAIL_INLINE (8u << 10)  /* payloads up to this go with their heads */
#define HP_MAIL_KIND (7u << 10)    /* bytes of the words that say what a message is */
#define HP_TRANSFERS 1024          /* long messages of a rank that were not received yet */
#define HP_BUFFERS 64              /* that a rank has, at most */
#define HP_BUFFER_SLOTS 8
#define HP_BUFFER_CHUNK (128u << 10)
#define HP_DROPPED (UINT64_C(1) << 63) /* added to filled: the sender has given up */

/* What a ring holds of a message; its kind and its payload follow, if that is short. */
struct hp_head {
    uint64_t key;     /* of the group */
    int32_t rank;     /* of the sender, in the group */
    int32_t transfer; /* where the payload is; -1: it follows */
    int64_t tag;
    uint64_t nbytes;
    uint64_t kind_length;
};

/* A payload that its receiver fetches; in the sender's window. */
struct hp_transfer {
    _Atomic uint64_t filled; /* chunks that lie in slots, since the message began */
    uint8_t pad_filled[56];
    _Atomic uint64_t taken; /* by the receiver; the transfer is free when it has them all */
    uint8_t pad_taken[56];
    _Atomic uint64_t wanted; /* a receive has begun to fetch it: enum hp_wanted */
    uint8_t pad_wanted[56];
    uint64_t steps;
    struct hp_place place; /* of the sender's array, if it lies in a window (one step) or is lent */
    int32_t buffer;        /* where the chunks go; before the first one is filled: none */
    uint8_t pad_line[36];
};

enum hp_wanted { HP_NOT_YET, HP_IN_CHUNKS, HP_AS_LENT };

struct hp_buffer {
    uint8_t slots[HP_BUFFER_SLOTS][HP_BUFFER_CHUNK];
};

_Static_assert(sizeof(struct hp_head) == 40, "heads are copied whole");
_Static_assert(sizeof(struct hp_transfer) == 4 * HP_CACHE_LINE, "a line for each who writes");
_Static_assert(HP_TRANSFERS * sizeof(struct hp_transfer) % 4096 == 0, "buffers lie on pages");
_Static_assert(HP_MAIL_RING % 4096 == 0, "rings lie on pages");

struct hp_letter;  /* a head that was taken from its ring */
struct hp_message; /* a send or a receive on its way */

/* A rank's messages. */
struct hp_mail {
    struct hp_node *node;
    pthread_mutex_t lock;
    struct hp_letter *letters;     /* that no receive fits, oldest first */
    struct hp_letter *newest;      /* of them */
    struct hp_message *receives;   /* that no letter fits, oldest first */
    struct hp_message *sends;      /* that are on their way, oldest first */
    uint64_t number;                /* of letters so far */
    unsigned looks;                 /* at one ring; now and then all are looked at */
    bool has_transfers;             /* their memory is reserved */
    bool in_use[HP_TRANSFERS];      /* by a send on its way, whatever its receiver has taken */
    bool has_buffer[HP_BUFFERS];    /* its memory is reserved */
    int user_of[HP_BUFFERS];        /* the transfer that has a buffer, or had it last */
    int line_ns; /* what a line of another rank's cache takes to come, about */
    struct hp_ways ways[HP_WAY_SIZES]; /* of what was received */
};

void hp_mail_init(struct hp_mail *mail, struct hp_node *node);
/* Drop all letters. No message may be on its way. */
void hp_mail_end(struct hp_mail *mail);

/* Take in what has come, and move all sends on: for who waits for something else. */
void hp_mail_stir(struct hp_mail *mail);

/* A group's box: who its members are, and which of them has it. */
struct hp_box {
    struct hp_mail *mail;
    uint64_t key;
    int size, rank;
    int members[HP_MAX_LOCAL]; /* their places on the node */
};

/* Drop what came for the group and was not taken. */
void hp_box_empty(struct hp_box *box);

enum hp_way { HP_SEND, HP_RECEIVE };
enum hp_stage { HP_IDLE, HP_WAITING, HP_MATCHED, HP_CARRYING, HP_FINISHED };

struct hp_message {
    struct hp_box *box;
    enum hp_way way;
    int peer;    /* rank in the group; -1: any */
    int64_t tag; /* -1: any */
    const char *kind;  /* of what is sent; of what a receive can take without being asked */
    uint64_t kind_length;
    void *data; /* to read from, or to write to; of a receive known when it is matched, at latest */
    uint64_t nbytes;

    enum hp_stage stage;
    struct hp_message *next;
    uint64_t turn; /* its place in the line */
    struct hp_letter *letter; /* of a receive that is matched */
    int transfer;             /* of a send that has one, else -1 */
    uint64_t steps, moved;
    bool is_lent;      /* a receive reads what the sender lends */
    uint64_t began_ns; /* a receive of what is lent has begun; else 0 */
    uint64_t refused_ns; /* the kernel does not find its sender since then; 0: it does */
    int failure;    /* of a send: what it ended with */
    int blocked_on; /* rank that is waited for; -1: any */
};

/* What hp_mail_advance returns besides HP_PENDING, HP_DONE and errors. */
enum { HP_FOUND = 3 };

/* What a letter says. */
struct hp_envelope {
    int source;
    int64_t tag;
    uint64_t nbytes, kind_length;
    const char *kind;
};

/* Begin: take a place in the line. The message must stay where it is until it has ended. */
void hp_mail_begin(struct hp_message *message);
/*
 * Move on without blocking, and move all sends on. HP_FOUND: a message for a receive is there, that
 * says in its kind what it is: set data, and call hp_mail_take. -ENOMEM: no memory for a ring or a
 * transfer, or for a letter; -ECANCELED: the sender gave up in the middle.
 */
int hp_mail_advance(struct hp_message *message);
/* The same, but wait up to `nanoseconds`, asleep on the bell of `lane`. */
int hp_mail_run(struct hp_message *message, int lane, uint64_t nanoseconds);
/* The same for who has just done so: it sleeps at once. */
int hp_mail_doze(struct hp_message *message, int lane, uint64_t nanoseconds);
/* Fetch what was found to data, which has room for all of it. */
int hp_mail_take(struct hp_message *message);
/* What was found. */
struct hp_envelope hp_mail_found(const struct hp_message *message);
/* Leave the line, or give up in the middle; a message that was found waits for another receive. */
void hp_mail_cancel(struct hp_message *message);
/*
 * Say what the first message is that would fit a receive like this, which has not begun, and that
 * no receive waits for: HP_FOUND, with the beginning of its kind; HP_PENDING: there is none.
 */
int hp_mail_probe(struct hp_message *message, struct hp_envelope *found, char *kind, size_t room);
/* The rank, which has left or failed, that the message waits for; -1: there is none. */
int hp_mail_look(const struct hp_message *message);

#endif

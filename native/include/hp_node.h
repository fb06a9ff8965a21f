/*
 * hp_node.h - the node engine: collectives of ranks that share one machine's memory.
 *
 * Each rank has a window that all ranks of the node have mapped, wherever: the sources hold
 * offsets and indices in it, never pointers, but for addresses that only the kernel reads at. Only
 * the owner writes to its window, but for the bell, for what readers of messages count, and for
 * symmetric arrays. Nothing here is process-wide, so ranks may be processes or threads.
 */
#ifndef HP_NODE_H
#define HP_NODE_H

#include "hpcpar.h"

#define HP_WINDOW_MAGIC "hpcparW1"
#define HP_WINDOW_VERSION 5
#define HP_MAX_LOCAL 256 /* ranks on a node */
#define HP_MAX_TEAMS 4096
#define HP_LANES 2 /* blocking calls, and the communication thread's */
#define HP_SLOTS 4 /* chunks on their way */
#define HP_SLOT_BYTES (512u << 10)
#define HP_POST_HEADER 256
#define HP_HEADER_SEQ 32 /* where a header has the number of the operation, 8 bytes */
#define HP_POST_DATA 3776
#define HP_WITHDRAWN (UINT64_C(1) << 63) /* in a post's number: who made it has given up */

#define HP_MAX_CYCLE 16 /* ranks in a cycle that is looked for */

/* What a rank says that it waits for, after a while. Written between an odd and an even turn. */
struct hp_wait {
    _Atomic uint64_t turn;
    _Atomic uint64_t key; /* of the group; 0: it waits for nothing */
    _Atomic uint64_t seq; /* of the collective */
    _Atomic uint64_t on;  /* the place of the rank whose post is missing */
};

/* What the threads of a rank sleep on that wait on one lane. */
struct hp_bell {
    _Atomic uint32_t rings; /* rung by anybody */
    uint8_t pad_rings[60];
    _Atomic uint32_t sleepers; /* threads that sleep or are about to */
    uint8_t pad_sleepers[60];
};

enum hp_state { HP_ALIVE, HP_LEFT, HP_FAILED };

/* The first page of a window. The 64 bytes in front are written before any peer maps it. */
struct hp_window {
    char magic[8];
    uint32_t version;
    int32_t rank;
    uint8_t job[16];
    uint64_t length;
    uint64_t pid; /* of the owner, in the PID namespace with this inode */
    uint64_t pid_namespace;
    uint8_t pad_identity[8];
    struct hp_bell bells[HP_LANES]; /* one each: blocking calls need not wake the other thread */
    _Atomic uint64_t state; /* enum hp_state */
    uint8_t pad_state[56];
    struct hp_wait wait;
    _Atomic uint64_t process; /* its owner's number, as the owner sees it */
    _Atomic uint64_t address; /* where the owner has it mapped; 0: not yet */
    uint8_t pad_wait[16];
    _Atomic uint64_t rings[HP_MAX_LOCAL / 64]; /* bits of places to which I have sent messages */
    uint8_t pad_rings[32];
    uint8_t pad_page[4096 - (4 + 2 * HP_LANES) * HP_CACHE_LINE];
    _Atomic uint64_t keys[HP_MAX_TEAMS]; /* 0: the area of this index is free */
};

/* A place in the window of a rank, or an address in its process; at 0: it is in no window. */
struct hp_place {
    uint64_t at;
    uint32_t window;
    uint32_t is_lent; /* an address: others read there through the kernel */
};

/* What a rank says when it begins a collective; written anew every second time. */
struct hp_post {
    _Atomic uint64_t seq; /* of the collective, from 1; stored last; HP_WITHDRAWN may be added */
    uint64_t print;       /* what must be equal on all ranks, in 64 bits */
    uint32_t flags;
    uint32_t stride; /* of the parts in `data`, where they differ by receiver */
    uint64_t steps;  /* chunks that I need */
    struct hp_place send_in, recv_in; /* where what I send, and the result, lie */
    uint8_t header[HP_POST_HEADER];
    uint8_t data[HP_POST_DATA];
};

/* One lane of a group in a member's window. A line each for what its owner counts. */
struct hp_lane {
    _Atomic uint64_t filled; /* chunks that lie in my slots, since ever */
    uint8_t pad_filled[56];
    _Atomic uint64_t reduced; /* chunks whose slice I have reduced */
    uint8_t pad_reduced[56];
    _Atomic uint64_t taken; /* chunks that I need no more of anybody */
    uint8_t pad_taken[56];
    _Atomic uint64_t gone; /* why I shall not come here any more: enum hp_gone */
    uint8_t pad_gone[56];
    struct hp_post posts[2];
    uint8_t pad_page[16384 - 4 * HP_CACHE_LINE - 2 * 4096];
    uint8_t slots[HP_SLOTS][HP_SLOT_BYTES];
};

struct hp_area {
    struct hp_lane lanes[HP_LANES];
};

_Static_assert(offsetof(struct hp_window, bells) == HP_CACHE_LINE, "identity fills a line");
_Static_assert(offsetof(struct hp_window, state) == 320, "readers know this layout");
_Static_assert(offsetof(struct hp_window, keys) == 4096, "the first page is one page");
_Static_assert(sizeof(struct hp_post) == 4096, "a post is a page, its head a line");
_Static_assert(offsetof(struct hp_post, header) == HP_CACHE_LINE, "the head of a post is a line");
_Static_assert(offsetof(struct hp_lane, slots) == 16384, "slots lie on pages");

enum hp_gone { HP_HERE, HP_GAVE_UP, HP_TIMED_OUT, HP_CLOSED = 4 /* beside the others */ };

/* The flight record follows what is above, so that one reservation holds what all ranks need. */
#define HP_RECORD_OFFSET (36u << 10)
#define HP_RECORD_CAPACITY 1024
#define HP_AREAS_OFFSET (8u << 20)
#define HP_WINDOW_MIN (HP_AREAS_OFFSET + sizeof(struct hp_area))

_Static_assert(sizeof(struct hp_window) == HP_RECORD_OFFSET, "nothing lies between");

/* Where one way becomes faster than another. Results do not depend on it. */
struct hp_tuning {
    unsigned chunk;      /* bytes of a chunk, at most HP_SLOT_BYTES; equal on all ranks */
    unsigned copy_chunk; /* of verbs that only copy; equal on all ranks */
    unsigned far_ns;     /* lines that take longer had better wait in memory */
    uint64_t stream;     /* bytes of a result that leaves the caches anyhow */
    uint64_t lend;       /* bytes from which on arrays may be read where they lie */
};

/* How long two ways took lately; who chooses between them keeps it. */
#define HP_WAYS_KEPT 4
struct hp_ways {
    uint32_t choices;
    uint32_t told[2]; /* how often */
    uint32_t took[2][HP_WAYS_KEPT]; /* nanoseconds for 64 KiB */
};
#define HP_WAY_SIZES 8 /* classes of sizes, of 4 times each other */

/* One rank's view of its node. */
struct hp_node {
    int size, index;
    struct hp_window *windows[HP_MAX_LOCAL];
    const struct hp_kernels *kernels;
    uint64_t length; /* bytes of every window */
    uint64_t rings;  /* where in it those of messages begin */
    uint64_t transfers; /* where long messages are described */
    uint64_t buffers;   /* what they go through */
    int num_buffers;
    uint64_t heap;        /* where symmetric arrays begin */
    struct hp_mail *mail; /* who waits for anything takes messages in; NULL: there are none */
    int fd;          /* my window's, to reserve memory in; -1: it is memory already */
    unsigned spins;  /* looks before a wait sleeps; 0 on all ranks or on none */
    struct hp_tuning tuning;
    uint64_t clock_ns; /* what two looks at the clock take */
    _Atomic uint64_t reach[HP_MAX_LOCAL]; /* whose memory I can read; see lend.c */
};

/* Check the windows. -EINVAL: sizes or alignment; -EBADMSG: not windows of this layout. */
int hp_node_init(struct hp_node *node, void *const *windows, int size, int index,
                 uint64_t length);
/* Where in windows an array lies, if it is all in the heap of one. */
struct hp_place hp_node_place(const struct hp_node *node, const void *begin, uint64_t nbytes);
/* Say how this rank leaves, and wake everybody. */
void hp_node_leave(struct hp_node *node, enum hp_state how);
/* Whether a peer has left in order. */
bool hp_node_has_left(const struct hp_node *node, int peer);
/* Whether a peer has said nothing of an end; its process may be gone all the same. */
bool hp_node_is_alive(const struct hp_node *node, int peer);

/* Whether the kernel lets me read a peer's memory; tried once, after it has made its node. */
bool hp_node_reaches(struct hp_node *node, int peer);

/* Take an area of my window for the group of `key` (not 0). Its index, -ENOSPC, -ENOMEM. */
int hp_node_claim(struct hp_node *node, uint64_t key);
/* The index of a peer's area for `key`, or -EAGAIN. */
int hp_node_find(const struct hp_node *node, int peer, uint64_t key);
/* Give my area back. Peers may still read it: see hp_node_is_left. */
void hp_node_release(struct hp_node *node, int area);
/* Mark my area as closed: I read nobody's area of this group any more. */
void hp_node_close(struct hp_node *node, int area);
/* Whether a peer has closed its area of `key`, or uses it for something else by now. */
bool hp_node_is_closed(const struct hp_node *node, int peer, int area, uint64_t key);

/* The number of a peer's post for the group of `key` on lane 0, where `seq` would stand; or 0. */
uint64_t hp_node_posted(const struct hp_node *node, int peer, uint64_t key, uint64_t seq);
/* The header of that post; NULL where there is none. */
const void *hp_node_post_header(const struct hp_node *node, int peer, uint64_t key, uint64_t seq);

/* One rank of a cycle: at its place on the node it waits in a call of a group for another. */
struct hp_link {
    int place, on;
    uint64_t turn, key, seq;
};

enum hp_verb {
    HP_BARRIER,
    HP_EXCHANGE, /* only the headers */
    HP_ALL_REDUCE,
    HP_REDUCE,
    HP_SCAN,
    HP_EXSCAN,
    HP_BROADCAST,
    HP_ALL_GATHER, /* with a root: only it receives */
    HP_REDUCE_SCATTER,
    HP_ALL_TO_ALL,
    HP_NUM_NODE_VERBS
};

/* A group on a lane, as one member sees it. */
struct hp_team {
    struct hp_node *node;
    int size, rank, lane;
    int members[HP_MAX_LOCAL]; /* their places on the node */
    struct hp_lane *lanes[HP_MAX_LOCAL];
    uint64_t seq;      /* of the last collective that I began */
    uint64_t steps;    /* chunks that all collectives so far took */
    bool has_slots;    /* their memory is reserved */
    bool wakes_all;    /* peers may wait on the bells of all lanes */
    uint64_t known[3][HP_MAX_LOCAL]; /* last looks at filled, reduced, taken */
    int line_ns; /* what a line of another rank's cache takes to come, about */
    uint64_t key;                    /* of the group; set by who made it, 0: look for no cycle */
    struct hp_link cycle[HP_MAX_CYCLE];
    int cycle_length;
    bool reaches_all; /* I can read what any member lends */
    struct hp_ways ways[HP_NUM_NODE_VERBS][2][HP_WAY_SIZES]; /* of rank 0: it chooses for all */
};

/* `areas` and `members` by rank in the group. */
void hp_team_init(struct hp_team *team, struct hp_node *node, const int *members,
                  const int *areas, int size, int rank, int lane);

/* A collective: what it is. Counts are in bytes, by rank; arrays are contiguous. */
struct hp_request {
    enum hp_verb verb;
    int dtype, op, root; /* root -1: none */
    const void *send;
    void *recv;
    uint64_t nbytes; /* of send, or of what broadcast brings */
    const uint64_t *send_counts, *recv_counts;
    const double *factors, *divisor;
    uint64_t print; /* must be equal on all ranks */
    bool is_ready;  /* go on with the data if all ranks say so; else it is an exchange */
    const void *header;
};

enum hp_phase { HP_NEW, HP_POSTED, HP_MOVING, HP_ENDED };

/* A collective on its way. */
struct hp_call {
    struct hp_team *team;
    struct hp_request request;
    enum hp_phase phase;
    uint64_t seq, base, steps;
    uint64_t produced, reduced, consumed;
    int come;       /* so many ranks have come, from 0 on */
    int blocked_on; /* the rank that a pending call waits for */
    bool inline_data;
    bool is_direct; /* arrays are read, and written, where they lie */
    bool may_lend;  /* others may read mine through the kernel */
    bool is_lent;   /* they do, and I read theirs */
    uint64_t moved_ns;   /* when data began to move */
    uint64_t refused_ns; /* when the kernel first found no such process; 0: never */
    uint64_t cycle_ns; /* when a cycle was found */
};

/* What hp_call_advance returns besides errors. */
enum { HP_PENDING, HP_DONE, HP_HEADERS };

void hp_call_begin(struct hp_call *call, struct hp_team *team, const struct hp_request *request);
/*
 * Move on without blocking. HP_HEADERS: not all ranks are ready or their prints differ: no data was
 * moved, the headers can be read. -EPIPE: blocked_on has left or failed; -ECANCELED: it gave up;
 * -ENOMEM: no memory for slots; else what hp_reduce returns.
 */
int hp_call_advance(struct hp_call *call);
/* The same, but wait up to `nanoseconds` for the end; HP_PENDING if that was too short. */
int hp_call_run(struct hp_call *call, uint64_t nanoseconds);
/* The same for who has just done so: it sleeps at once. */
int hp_call_doze(struct hp_call *call, uint64_t nanoseconds);
/* Why a pending call can never end: -EPIPE, -ECANCELED, -EDEADLK; HP_PENDING: nothing is known. */
int hp_call_look(struct hp_call *call);
/* Say in my window what a pending call waits for. For threads that do nothing else meanwhile. */
void hp_call_tell_wait(const struct hp_call *call);
/* Say that I wait no more. */
void hp_team_end_wait(const struct hp_team *team);
/*
 * -EDEADLK: the waits of ranks lead from this one back to it, which team->cycle holds, and the
 * others have had the time to see it too. Else HP_PENDING. After hp_call_tell_wait.
 */
int hp_call_find_cycle(struct hp_call *call);
/* Whether members may be reading my arrays, or writing to them, where they lie. */
bool hp_call_shares_arrays(const struct hp_call *call);
/* Where a member's header of the call lies; valid until the next but one collective. */
const void *hp_call_header(const struct hp_call *call, int rank);
/* Whether a member has come. */
bool hp_call_has_come(const struct hp_call *call, int rank);
/* Whether the call waits, or would wait, for a member; not for one that came and gave up. */
bool hp_call_is_missing(const struct hp_call *call, int rank);
/* Whether the call cannot end without more of a member. */
bool hp_call_needs(const struct hp_call *call, int rank);
/* Whether a member has neither given up here nor closed the group. */
bool hp_team_has(const struct hp_team *team, int rank);
/* Tell those who come late that this rank waits no more. */
void hp_team_give_up(struct hp_team *team);
/* The same at a deadline: who waits for the same rank waits on, and names it at its own. */
void hp_team_time_out(struct hp_team *team);

/* Wake who sleeps on a bell, after a store_ordered of what it may wait for. */
void hp_bell_ring(struct hp_bell *bell);
/*
 * To sleep on one's own bell: say so and keep what is returned, look once more at what is waited
 * for, then sleep or leave. Who rings in between keeps the sleep from beginning.
 */
uint32_t hp_bell_enter(struct hp_bell *bell);
void hp_bell_sleep(struct hp_bell *bell, uint32_t heard, uint64_t nanoseconds);
void hp_bell_leave(struct hp_bell *bell);
/* Ring all members but me. */
void hp_team_ring(const struct hp_team *team);

/* Numbers of symmetric arrays that other ranks change, after what they have put before. */
enum hp_compare { HP_EQ, HP_NE, HP_GE, HP_GT, HP_LE, HP_LT };
uint64_t hp_word_add(void *word, uint64_t value);
void hp_word_store(void *word, uint64_t value);
/* Sleep on my bell until the word compares so, `nanoseconds` at most; whether what is seen does. */
bool hp_word_wait(const struct hp_node *node, const void *word, enum hp_compare compare,
                  uint64_t value, bool is_signed, uint64_t nanoseconds, uint64_t *seen);

/* dst = src, past the caches where that pays; disjoint. */
void hp_copy(void *dst, const void *src, size_t nbytes);
void hp_copy_streaming(void *dst, const void *src, size_t nbytes);
/* near = src through the caches, or past them too, and far = src past them, in one pass. */
void hp_copy_twice(void *near, void *far, const void *src, size_t nbytes, bool past);

#endif

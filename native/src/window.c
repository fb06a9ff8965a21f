/* Windows: whose they are, and the areas of groups in them. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "engine.h"
#include "hp_atomic.h"
#include "hp_mail.h"

#define RESERVE_STEP (64 << 20) /* a signal takes back what one call has got so far */

static int check(const struct hp_window *window, uint64_t length)
{
    if (!window || (uintptr_t)window % 4096)
        return -EINVAL;
    if (memcmp(window->magic, HP_WINDOW_MAGIC, sizeof window->magic) != 0 ||
        window->version != HP_WINDOW_VERSION || window->length != length)
        return -EBADMSG;
    return 0;
}

/* At best: some clocks are slow. */
static uint64_t time_clock(void)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 4; i++) {
        const uint64_t began = hp_now(), took = hp_now() - began;
        best = took < best ? took : best;
    }
    return best;
}

/*
 * Groups may take half of a short window; of a long one, what as many as there may be need. Long
 * messages get a part of the rest, symmetric arrays what is left.
 */
static int lay_out(struct hp_node *node)
{
    const uint64_t half = (node->length - HP_AREAS_OFFSET) / 2 / sizeof(struct hp_area);
    const uint64_t areas = half < 1 ? 1 : half > HP_MAX_TEAMS ? HP_MAX_TEAMS : half;
    node->rings = HP_AREAS_OFFSET + areas * sizeof(struct hp_area);
    node->transfers = node->rings + (uint64_t)node->size * HP_MAIL_RING;
    node->buffers = node->transfers + HP_TRANSFERS * sizeof(struct hp_transfer);
    if (node->buffers + sizeof(struct hp_buffer) > node->length)
        return -EINVAL;
    const uint64_t part = (node->length - node->buffers) / 4 / sizeof(struct hp_buffer);
    node->num_buffers = part < 1 ? 1 : part > HP_BUFFERS ? HP_BUFFERS : (int)part;
    node->heap = node->buffers + (uint64_t)node->num_buffers * sizeof(struct hp_buffer);
    return 0;
}

int hp_node_init(struct hp_node *node, void *const *windows, int size, int index, uint64_t length)
{
    if (size < 1 || size > HP_MAX_LOCAL || index < 0 || index >= size || length < HP_WINDOW_MIN)
        return -EINVAL;
    memset(node, 0, sizeof *node);
    for (int i = 0; i < size; i++) {
        const int rc = check(windows[i], length);
        if (rc < 0)
            return rc;
        node->windows[i] = windows[i];
    }
    node->size = size;
    node->index = index;
    node->length = length;
    node->fd = -1;
    node->tuning = (struct hp_tuning){.chunk = HP_SLOT_BYTES, .copy_chunk = HP_SLOT_BYTES / 4,
                                      .far_ns = 100, .stream = 2u << 20,
                                      .lend = 512u << 10};
    node->clock_ns = time_clock();
    hp_lend_begin(node);
    return lay_out(node);
}

static bool lies_in(const struct hp_node *node, int window, const void *begin, uint64_t nbytes,
                    struct hp_place *place)
{
    place->at = (uintptr_t)begin - (uintptr_t)node->windows[window];
    place->window = (uint32_t)window;
    return place->at >= node->heap && place->at <= node->length &&
           nbytes <= node->length - place->at;
}

struct hp_place hp_node_place(const struct hp_node *node, const void *begin, uint64_t nbytes)
{
    struct hp_place place = {0};
    if (lies_in(node, node->index, begin, nbytes, &place))
        return place;
    for (int w = 0; w < node->size; w++)
        if (lies_in(node, w, begin, nbytes, &place))
            return place;
    return (struct hp_place){0};
}

void *hp_node_address(const struct hp_node *node, struct hp_place place)
{
    return (char *)node->windows[place.window] + place.at;
}

static void ring_all(const struct hp_node *node)
{
    for (int i = 0; i < node->size; i++)
        hp_node_ring(node, i);
}

void hp_node_leave(struct hp_node *node, enum hp_state how)
{
    _Atomic uint64_t *const state = &node->windows[node->index]->state;
    if (hp_load_relaxed(state) != HP_FAILED) /* who fails leaves afterwards, too */
        hp_store_ordered(state, how);
    ring_all(node);
}

bool hp_node_has_left(const struct hp_node *node, int peer)
{
    return hp_load_ordered(&node->windows[peer]->state) == HP_LEFT; /* pairs with hp_node_leave */
}

bool hp_node_is_alive(const struct hp_node *node, int peer)
{
    return hp_load_ordered(&node->windows[peer]->state) == HP_ALIVE; /* pairs with hp_node_leave */
}

static struct hp_area *area_of(struct hp_window *window, int index)
{
    char *const areas = (char *)window + HP_AREAS_OFFSET;
    return (struct hp_area *)areas + index;
}

int hp_node_reserve(const struct hp_node *node, const void *begin, uint64_t nbytes)
{
    const char *const base = (const char *)node->windows[node->index];
    off_t at = (off_t)((const char *)begin - base);
    const off_t end = at + (off_t)nbytes;
    while (node->fd >= 0 && at < end) {
        const off_t now = end - at < RESERVE_STEP ? end - at : RESERVE_STEP;
        const int rc = posix_fallocate(node->fd, at, now);
        if (rc != 0 && rc != EINTR)
            return -ENOMEM;
        at += rc == 0 ? now : 0;
    }
    return 0;
}

/* Others may still look for the group that was here: at `gone`, and at the numbers of posts. */
static void clear(struct hp_lane *lane)
{
    memset(lane, 0, offsetof(struct hp_lane, gone));
    for (int i = 0; i < 2; i++) {
        struct hp_post *const post = &lane->posts[i];
        hp_store_release(&post->seq, 0);
        memset(&post->print, 0, sizeof *post - offsetof(struct hp_post, print));
    }
    hp_store_release(&lane->gone, HP_HERE);
}

int hp_node_claim(struct hp_node *node, uint64_t key)
{
    struct hp_window *const mine = node->windows[node->index];
    const uint64_t room = (node->rings - HP_AREAS_OFFSET) / sizeof(struct hp_area);
    int i = 0;
    while (i < HP_MAX_TEAMS && hp_load_relaxed(&mine->keys[i]) != 0)
        i++;
    if (i == HP_MAX_TEAMS || (uint64_t)i >= room)
        return -ENOSPC;
    struct hp_area *const area = area_of(mine, i);
    for (int l = 0; l < HP_LANES; l++) {
        struct hp_lane *const lane = &area->lanes[l];
        if (hp_node_reserve(node, lane, offsetof(struct hp_lane, slots)) < 0)
            return -ENOMEM;
        clear(lane);
    }
    hp_store_ordered(&mine->keys[i], key);
    ring_all(node);
    return i;
}

int hp_node_find(const struct hp_node *node, int peer, uint64_t key)
{
    const struct hp_window *const window = node->windows[peer];
    for (int i = 0; i < HP_MAX_TEAMS; i++)
        if (hp_load_acquire(&window->keys[i]) == key) /* pairs with hp_node_claim */
            return i;
    return -EAGAIN;
}

void hp_node_release(struct hp_node *node, int area)
{
    hp_store_ordered(&node->windows[node->index]->keys[area], 0);
}

void hp_node_close(struct hp_node *node, int area)
{
    struct hp_area *const mine = area_of(node->windows[node->index], area);
    for (int l = 0; l < HP_LANES; l++) {
        _Atomic uint64_t *const gone = &mine->lanes[l].gone;
        hp_store_ordered(gone, hp_load_relaxed(gone) | HP_CLOSED);
    }
    ring_all(node);
}

bool hp_node_is_closed(const struct hp_node *node, int peer, int area, uint64_t key)
{
    struct hp_window *const window = node->windows[peer];
    /* The acquires pair with hp_node_close and hp_node_claim; the key is looked at last. */
    return hp_load_acquire(&area_of(window, area)->lanes[0].gone) & HP_CLOSED ||
           hp_load_acquire(&window->keys[area]) != key ||
           hp_load_acquire(&window->state) != HP_ALIVE;
}

/* The post where number `seq` stands, in a peer's area for `key`. */
static const struct hp_post *find_post(const struct hp_node *node, int peer, uint64_t key,
                                       uint64_t seq)
{
    const int area = hp_node_find(node, peer, key);
    return area < 0 ? NULL : &area_of(node->windows[peer], area)->lanes[0].posts[seq & 1];
}

uint64_t hp_node_posted(const struct hp_node *node, int peer, uint64_t key, uint64_t seq)
{
    const struct hp_post *const post = find_post(node, peer, key, seq);
    return post ? hp_load_ordered(&post->seq) : 0; /* pairs with post() */
}

const void *hp_node_post_header(const struct hp_node *node, int peer, uint64_t key, uint64_t seq)
{
    const struct hp_post *const post = find_post(node, peer, key, seq);
    return post ? post->header : NULL;
}

void hp_team_init(struct hp_team *team, struct hp_node *node, const int *members, const int *areas,
                  int size, int rank, int lane)
{
    memset(team, 0, sizeof *team);
    team->node = node;
    team->size = size;
    team->rank = rank;
    team->lane = lane;
    team->reaches_all = size > 1;
    for (int r = 0; r < size; r++) {
        team->members[r] = members[r];
        team->reaches_all = team->reaches_all && hp_node_reaches(node, members[r]);
        team->lanes[r] = &area_of(node->windows[members[r]], areas[r])->lanes[lane];
    }
}

/* The slots' memory comes with the first call that needs it: most groups move little. */
int hp_team_reserve(struct hp_team *team)
{
    const struct hp_lane *const mine = team->lanes[team->rank];
    if (!team->has_slots && hp_node_reserve(team->node, mine->slots, sizeof mine->slots) < 0)
        return -ENOMEM;
    team->has_slots = true;
    return 0;
}

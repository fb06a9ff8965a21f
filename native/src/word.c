/* Numbers that ranks change in each other's windows, and wait for. */
#include "engine.h"
#include "hp_atomic.h"

uint64_t hp_word_add(void *word, uint64_t value)
{
    return hp_add_ordered(word, value);
}

void hp_word_store(void *word, uint64_t value)
{
    hp_store_ordered(word, value);
}

static bool compares(uint64_t now, enum hp_compare compare, uint64_t value, bool is_signed)
{
    const bool less = is_signed ? (int64_t)now < (int64_t)value : now < value;
    switch (compare) {
    case HP_EQ: return now == value;
    case HP_NE: return now != value;
    case HP_GE: return !less;
    case HP_GT: return !less && now != value;
    case HP_LE: return less || now == value;
    default: return less;
    }
}

struct waiter {
    const void *word;
    enum hp_compare compare;
    bool is_signed;
    uint64_t value, seen;
};

static int look(void *asked)
{
    struct waiter *const w = asked;
    w->seen = hp_load_ordered(w->word); /* pairs with hp_word_store and hp_word_add */
    return compares(w->seen, w->compare, w->value, w->is_signed) ? HP_DONE : HP_PENDING;
}

bool hp_word_wait(const struct hp_node *node, const void *word, enum hp_compare compare,
                  uint64_t value, bool is_signed, uint64_t nanoseconds, uint64_t *seen)
{
    static const struct hp_waits how = {look, look};
    struct waiter asked = {word, compare, is_signed, value, 0};
    const int rc = hp_bell_wait(node, 0, &how, &asked, nanoseconds);
    *seen = asked.seen;
    return rc == HP_DONE;
}

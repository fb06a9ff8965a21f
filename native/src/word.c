/* Numbers that ranks change in each other's windows, and wait for. */
#include "hp_atomic.h"
#include "hp_mail.h"

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

bool hp_word_wait(const struct hp_node *node, const void *word, enum hp_compare compare,
                  uint64_t value, bool is_signed, uint64_t nanoseconds, uint64_t *seen)
{
    struct hp_bell *const mine = &node->windows[node->index]->bells[0];
    for (unsigned i = 0; i <= node->spins; i++) {
        *seen = hp_load_ordered(word); /* pairs with hp_word_store and hp_word_add */
        if (compares(*seen, compare, value, is_signed))
            return true;
    }
    const uint32_t heard = hp_bell_enter(mine);
    if (node->mail)
        hp_mail_stir(node->mail);
    *seen = hp_load_ordered(word);
    if (!compares(*seen, compare, value, is_signed)) {
        hp_bell_sleep(mine, heard, nanoseconds);
        *seen = hp_load_ordered(word);
    }
    hp_bell_leave(mine);
    return compares(*seen, compare, value, is_signed);
}

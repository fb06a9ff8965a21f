/*
 * hp_atomic.h - the only file with atomics.
 *
 * store_release: what this thread wrote before is visible to whoever reads the stored value with
 * load_acquire. load_relaxed: for a word that this thread alone writes, or that means nothing
 * beyond itself; store_relaxed: only for the latter. Every acquire in the sources names the release
 * that it pairs with. The seq_cst calls are for the one store-load pair
 * of the house: a publisher stores progress and then looks at the sleepers, a waiter counts itself
 * among the sleepers and then looks at the progress (bell.c).
 */
#ifndef HP_ATOMIC_H
#define HP_ATOMIC_H

#include <stdatomic.h>
#include <stdint.h>

static inline uint64_t hp_load_acquire(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

static inline uint64_t hp_load_relaxed(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void hp_store_release(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

static inline void hp_store_relaxed(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static inline uint64_t hp_load_ordered(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_seq_cst);
}

static inline void hp_store_ordered(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_seq_cst);
}

static inline uint64_t hp_add_ordered(_Atomic uint64_t *word, uint64_t value)
{
    return atomic_fetch_add_explicit(word, value, memory_order_seq_cst);
}

static inline uint32_t hp_load32_ordered(const _Atomic uint32_t *word)
{
    return atomic_load_explicit(word, memory_order_seq_cst);
}

static inline void hp_add32_ordered(_Atomic uint32_t *word, uint32_t value)
{
    atomic_fetch_add_explicit(word, value, memory_order_seq_cst);
}

#endif

/*
 * The pipeline of a reduction: each rank reduces its slice of every chunk. Two ranks, two slots
 * each. A rank fills the peer's slice of slot t % SLOTS when the peer's `taken` > t - SLOTS and
 * publishes `filled`; reads that slice in the peer's slot when the peer's `filled` > t, writes its
 * result to its own slice of its own slot and publishes `reduced`; reads the peer's result when the
 * peer's `reduced` > t and publishes `taken`. Nothing may be overwritten before it was read.
 *
 * Mutants that must fail: REDUCED_FIRST (published before the result is written), TAKEN_FIRST
 * (before the result is read), TAKEN_EARLY (room is made by `reduced`, which the other slice
 * outlives), and those of doorbell.inc.
 */
#define RANKS 2
#define LANES 1
#define SLOTS 2
#ifndef CHUNKS
#define CHUNKS 3
#endif
#ifndef INTERRUPTS
#define INTERRUPTS 0
#endif
#define THREADS RANKS
#define THREAD(whose, lane) (whose)

#define WINDOW(whose) ((whose) * (5 + 2 * SLOTS))
#define SLEEPERS(whose) (WINDOW(whose))
#define BELL(whose) (WINDOW(whose) + 1)
#define FILLED(whose) (WINDOW(whose) + 2)
#define REDUCED(whose) (WINDOW(whose) + 3)
#define TAKEN(whose) (WINDOW(whose) + 4)
#define GIVEN(whose, t) (WINDOW(whose) + 5 + (t) % SLOTS)
#define RESULT(whose, t) (WINDOW(whose) + 5 + SLOTS + (t) % SLOTS)
#define WORDS WINDOW(RANKS)

#ifdef TAKEN_EARLY
#define ROOM(whose) REDUCED(whose)
#else
#define ROOM(whose) TAKEN(whose)
#endif

#include "memory.inc"

#define peer (1 - rank)

/* What may be done now; the rest waits for the next look. */
inline test(order)
{
	load(ROOM(peer), order, seen);
	can_fill = (filled < CHUNKS && seen + SLOTS > filled);
	load(FILLED(peer), order, seen);
	can_reduce = (reduced < filled && seen > reduced);
	load(REDUCED(peer), order, seen);
	can_take = (taken < reduced && seen > taken);
	seen = 0;
	is_ready = can_fill || can_reduce || can_take
}

#include "doorbell.inc"

inline fill()
{
	store(GIVEN(rank, filled), 1 + filled, RELAXED);
	publish(FILLED(rank), filled + 1, peer);
	filled++
}

inline reduce()
{
	load(GIVEN(peer, reduced), RELAXED, seen);
	assert(seen == 1 + reduced);
	seen = 0;
#ifdef REDUCED_FIRST
	publish(REDUCED(rank), reduced + 1, peer);
	store(RESULT(rank, reduced), 1 + reduced, RELAXED);
#else
	store(RESULT(rank, reduced), 1 + reduced, RELAXED);
	publish(REDUCED(rank), reduced + 1, peer);
#endif
	reduced++
}

inline read_result()
{
	load(RESULT(peer, taken), RELAXED, seen);
	assert(seen == 1 + taken);
	seen = 0
}

inline take()
{
#ifndef TAKEN_FIRST
	read_result();
#endif
	publish(TAKEN(rank), taken + 1, peer);
#ifdef TAKEN_FIRST
	read_result();
#endif
	taken++
}

proctype member(byte rank)
{
	byte filled, reduced, taken, seen, bell, me = rank;
	bool is_ready, can_fill, can_reduce, can_take;
	do
	:: filled < CHUNKS || taken < CHUNKS ->
		await();
		if
		:: d_step { can_fill -> can_fill = false; can_reduce = false; can_take = false }; fill()
		:: d_step { can_reduce -> can_fill = false; can_reduce = false; can_take = false }; reduce()
		:: d_step { can_take -> can_fill = false; can_reduce = false; can_take = false }; take()
		fi
	:: else -> break
	od
}

init {
	byte rank;
	atomic {
		for (rank : 0 .. RANKS - 1) {
			run member(rank);
			run drain(rank)
		}
	}
}

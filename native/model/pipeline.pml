/*
 * The pipeline of chunks: two ranks, two slots each, three chunks. A rank fills slot t % SLOTS of
 * its own window when the peer's `done` > t - SLOTS, publishes `filled`, reads the peer's slot when
 * the peer's `filled` > t, publishes `done`; in any order that these rules allow, and sleeps on its
 * doorbell when they allow nothing. A slot must never be overwritten before it was read: the value
 * read would be another chunk's. No tick: a lost wake-up is an invalid end state.
 *
 * Mutants that must fail: SLOT_REUSE (`done` is not looked at), OFF_BY_ONE (done >= t - SLOTS),
 * DONE_FIRST (published before reading), FILLED_FIRST (before writing), and those of doorbell.inc.
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

#define WINDOW(whose) ((whose) * (4 + SLOTS))
#define SLEEPERS(whose) (WINDOW(whose))
#define BELL(whose) (WINDOW(whose) + 1)
#define FILLED(whose) (WINDOW(whose) + 2)
#define DONE(whose) (WINDOW(whose) + 3)
#define SLOT(whose, t) (WINDOW(whose) + 4 + (t) % SLOTS)
#define WORDS WINDOW(RANKS)

#if defined(SLOT_REUSE)
#define ROOM CHUNKS
#elif defined(OFF_BY_ONE)
#define ROOM (SLOTS + 1)
#else
#define ROOM SLOTS
#endif

#include "memory.inc"

#define peer (1 - rank)

/* What may be done now; the rest waits for the next look. */
inline test(order)
{
	load(DONE(peer), order, seen);
	can_fill = (filled < CHUNKS && seen + ROOM > filled);
	load(FILLED(peer), order, seen);
	can_read = (done < CHUNKS && seen > done);
	seen = 0;
	is_ready = can_fill || can_read
}

#include "doorbell.inc"

inline fill()
{
	can_fill = false;
	can_read = false;
#ifdef FILLED_FIRST
	publish(FILLED(rank), filled + 1, peer);
	store(SLOT(rank, filled), 1 + filled, RELAXED);
#else
	store(SLOT(rank, filled), 1 + filled, RELAXED);
	publish(FILLED(rank), filled + 1, peer);
#endif
	filled++
}

inline read_slot()
{
	load(SLOT(peer, done), RELAXED, seen);
	assert(seen == 1 + done);
	seen = 0
}

inline consume()
{
	can_fill = false;
	can_read = false;
#ifndef DONE_FIRST
	read_slot();
#endif
	publish(DONE(rank), done + 1, peer);
#ifdef DONE_FIRST
	read_slot();
#endif
	done++
}

proctype member(byte rank)
{
	byte filled, done, seen, bell, me = rank;
	bool is_ready, can_fill, can_read;
	do
	:: filled < CHUNKS || done < CHUNKS ->
		await();
		if
		:: can_fill -> fill()
		:: can_read -> consume()
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

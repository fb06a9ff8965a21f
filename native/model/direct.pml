/*
 * Symmetric arrays: two ranks reduce where the arrays lie. A rank writes its array, posts, waits for
 * the peer's post, reads its slice of both arrays and writes the sum to both, publishes `taken`, and
 * waits until the peer has: only then does it read its result, or write its array for the next call.
 * No operand may be overwritten before it was read, no result be read before it is there. No tick: a
 * lost wake-up is an invalid end state.
 *
 * Mutants that must fail: POST_FIRST (before the array is written), TAKEN_FIRST (before the results
 * are), NO_WAIT (for the peer's `taken`), and those of doorbell.inc.
 */
#define RANKS 2
#define LANES 1
#ifndef CALLS
#define CALLS 2
#endif
#ifndef INTERRUPTS
#define INTERRUPTS 0
#endif
#define THREADS RANKS
#define THREAD(whose, lane) (whose)

#define WINDOW(whose) ((whose) * 6)
#define SLEEPERS(whose) (WINDOW(whose))
#define BELL(whose) (WINDOW(whose) + 1)
#define POST(whose) (WINDOW(whose) + 2)
#define TAKEN(whose) (WINDOW(whose) + 3)
#define ARRAY(whose, slice) (WINDOW(whose) + 4 + (slice))
#define WORDS WINDOW(RANKS)

#define OPERAND(whose, call) (10 * (call) + (whose) + 1)
#define RESULT(call) (100 + (call))

#include "memory.inc"

#define peer (1 - rank)

/* What is waited for now. */
inline test(order)
{
	if
	:: is_posting -> load(POST(peer), order, seen)
	:: else -> load(TAKEN(peer), order, seen)
	fi;
	is_ready = (seen >= call);
	seen = 0
}

#include "doorbell.inc"

inline write_array()
{
	store(ARRAY(rank, 0), OPERAND(rank, call), RELAXED);
	store(ARRAY(rank, 1), OPERAND(rank, call), RELAXED)
}

inline begin()
{
#ifdef POST_FIRST
	publish(POST(rank), call, peer);
	write_array();
#else
	write_array();
	publish(POST(rank), call, peer);
#endif
	is_posting = true;
	await();
	is_posting = false
}

inline read_operand(whose)
{
	load(ARRAY(whose, rank), RELAXED, seen);
	assert(seen == OPERAND(whose, call));
	seen = 0
}

inline write_results()
{
	store(ARRAY(rank, rank), RESULT(call), RELAXED);
	store(ARRAY(peer, rank), RESULT(call), RELAXED)
}

inline reduce()
{
	read_operand(rank);
	read_operand(peer);
#ifdef TAKEN_FIRST
	publish(TAKEN(rank), call, peer);
	write_results();
#else
	write_results();
	publish(TAKEN(rank), call, peer);
#endif
#ifndef NO_WAIT
	await()
#endif
}

inline read_result(part)
{
	load(ARRAY(rank, part), RELAXED, seen);
	assert(seen == RESULT(call));
	seen = 0
}

proctype member(byte rank)
{
	byte call = 1, seen, bell, me = rank;
	bool is_ready, is_posting;
	do
	:: call <= CALLS ->
		begin();
		reduce();
		read_result(rank);
		read_result(peer);
		call++
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

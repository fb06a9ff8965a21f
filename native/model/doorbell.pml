/*
 * The doorbell: two ranks in lockstep, as every collective begins. Each writes its line of the
 * operation (two lines, alternating), publishes `posted`, waits for the peer's and reads the peer's
 * line. There is no tick here: a lost wake-up is an invalid end state, someone asleep for ever.
 *
 * With LANES = 2 every rank has two threads, with counters and lines of their own, that sleep on
 * the rank's one doorbell.
 *
 * Mutants that must fail: PUBLISH_RELEASE, LOOK_ACQUIRE, SLEEPERS_RELEASE, RETEST_ACQUIRE,
 * BELL_LATE, RING_FIRST, NO_BELL (doorbell.inc), ONE_LINE, and WAKE_ONE with two lanes.
 */
#define RANKS 2
#ifndef LANES
#define LANES 1
#endif
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifdef ONE_LINE
#define LINES 1
#else
#define LINES 2
#endif
#ifndef INTERRUPTS
#define INTERRUPTS 1
#endif
#define THREADS (RANKS * LANES)
#define THREAD(whose, number) ((whose) * LANES + (number))

/* A window: sleepers, bell, and for each lane a counter and its lines. */
#define SLEEPERS(whose) (2 * (whose))
#define BELL(whose) (2 * (whose) + 1)
#define POSTED(thread) (2 * RANKS + (thread))
#define LINE(thread, k) (2 * RANKS + THREADS + (thread) * LINES + (k) % LINES)
#define WORDS (2 * RANKS + THREADS * (1 + LINES))

#include "memory.inc"

inline test(order)
{
	load(POSTED(peer), order, seen);
	is_ready = (seen >= k);
	seen = 0
}

#include "doorbell.inc"

proctype member(byte rank, lane)
{
	byte k = 1, seen, bell, me = THREAD(rank, lane), peer = THREAD(1 - rank, lane);
	bool is_ready;
	do
	:: k <= MESSAGES ->
		store(LINE(me, k), k, RELAXED);
		publish(POSTED(me), k, 1 - rank);
		await();
		load(LINE(peer, k), RELAXED, seen);
		assert(seen == k);
		seen = 0;
		k++
	:: else -> break
	od
}

init {
	byte rank, lane;
	atomic {
		for (rank : 0 .. RANKS - 1) {
			for (lane : 0 .. LANES - 1) {
				run member(rank, lane);
				run drain(THREAD(rank, lane))
			}
		}
	}
}

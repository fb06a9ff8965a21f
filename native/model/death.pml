/*
 * Death: the lockstep of doorbell.pml, but rank 1 leaves between two operations or is killed at any
 * moment, half way through a store, a ring or a sleep (what its stores have put into the buffer
 * still reaches memory). Who leaves in order publishes `left` and then closes its socket; the
 * kernel closes the socket of the dead. A sleep may end in a tick at any time, and only a tick
 * looks at the socket.
 *
 * Rank 0 must end: `ends`, under weak fairness (everyone who can go on does, in the end). It must
 * end by data when the peer had published the operation, and by RankFailed only when not.
 *
 * NO_KILL and NO_TICK together must hold: a rank that leaves in order is seen without any tick.
 * Mutants that must fail: NO_TICK (killed before it could ring), NO_LOOK (the tick looks at no
 * socket), LEFT_SILENTLY with NO_KILL and NO_TICK (`left` rings no bell), TEST_FIRST (`posted` is
 * looked at before `left` and the socket: what came between is called a failure).
 */
#define RANKS 2
#define LANES 1
#define LINES 2
#ifndef MESSAGES
#define MESSAGES 3
#endif
#define INTERRUPTS 0
#define THREADS RANKS
#define THREAD(whose, lane) (whose)
#ifndef NO_TICK
#define TICK
#endif

#define WINDOW(whose) ((whose) * (4 + LINES))
#define SLEEPERS(whose) (WINDOW(whose))
#define BELL(whose) (WINDOW(whose) + 1)
#define POSTED(whose) (WINDOW(whose) + 2)
#define STATE(whose) (WINDOW(whose) + 3)
#define LINE(whose, k) (WINDOW(whose) + 4 + (k) % LINES)
#define WORDS WINDOW(RANKS)
#define ALIVE 0
#define LEFT 1

#include "memory.inc"

#define peer (1 - rank)

bool is_killed;         /* rank 1 */
bool is_hung_up[RANKS]; /* the kernel has closed this rank's end of the socket */
bool has_ended;         /* rank 0, by data or by RankFailed */

inline look_at_state(order)
{
	load(STATE(peer), order, seen);
	is_gone = is_gone || seen == LEFT;
	seen = 0
}

inline look_at_posted(order)
{
	load(POSTED(peer), order, seen);
	is_posted = (seen >= k);
	seen = 0
}

/* Ready: the peer's line is there, or will never be. The order matters: what is known to be gone
 * publishes no more, so the look at `posted` after it is the last word. */
inline test(order)
{
#ifdef TEST_FIRST
	look_at_posted(order);
	look_at_state(order);
#else
	look_at_state(order);
	look_at_posted(order);
#endif
	is_ready = is_posted || is_gone
}

inline tick()
{
#ifndef NO_LOOK
	is_gone = is_gone || is_hung_up[peer]
#else
	skip
#endif
}

#include "doorbell.inc"

inline end_by_data()
{
	load(LINE(peer, k), RELAXED, seen);
	assert(seen == k);
	seen = 0
}

inline end_by_failure()
{
	assert(memory[POSTED(peer)] < k);
	has_failed = true
}

inline exchange()
{
	store(LINE(rank, k), k, RELAXED);
	publish(POSTED(rank), k, peer);
	await();
	if
	:: is_posted -> end_by_data()
	:: else -> end_by_failure()
	fi
}

proctype survivor(byte rank)
{
	byte k = 1, seen, bell, me = rank;
	bool is_ready, is_posted, is_gone, has_failed;
	do
	:: k <= MESSAGES && !has_failed -> exchange(); k++
	:: else -> break
	od;
	has_ended = true
}

inline leave_in_order()
{
	store(STATE(rank), LEFT, SEQ_CST);
#ifndef LEFT_SILENTLY
	ring(peer)
#endif
}

proctype mortal(byte rank)
{
	byte k = 1, seen, bell, me = rank;
	bool is_ready, is_posted, is_gone, has_failed;
	{
		do
		:: k <= MESSAGES -> exchange(); k++
		:: break
		od;
		leave_in_order()
	} unless {
		is_killed
	};
	atomic { buffer[me].used == 0 -> asleep[me] = false; is_hung_up[rank] = true }
}

ltl ends { <> has_ended }

init {
	atomic {
		run survivor(0);
		run mortal(1);
		run drain(0);
		run drain(1)
	};
#ifndef NO_KILL
	if
	:: is_killed = true
	:: true
	fi
#endif
}

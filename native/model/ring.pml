/*
 * The ring of native/src/ring.c: one writer, one reader, three messages of any length the ring
 * takes, in place on both sides. A word is a grain; a frame is a header word and at most one word
 * of message, so two of the longest fit (two slots). What does not fit before the end goes to the
 * beginning behind a skip frame. Counters begin at every place, and wrap at 256.
 *
 * A try that finds nothing changes nothing that the next try uses, so -EAGAIN is a wait for the
 * other's counter in memory; one that never comes is an invalid end state.
 *
 * Mutants that must fail: PUBLISH_FIRST, PUBLISH_RELAXED (no release in hp_ring_commit),
 * NO_ROOM_CHECK, RELEASE_FIRST (a slot given back before it is read).
 */
#define THREADS 2
#define RANKS 2
#define INTERRUPTS 0
#ifndef MESSAGES
#define MESSAGES 3
#endif
#define CAPACITY 4
#define SKIP 128

#define DATA(counter) ((counter) & (CAPACITY - 1))
#define WRITTEN CAPACITY
#define READ (CAPACITY + 1)
#define WORDS (CAPACITY + 2)
#define LESS(a, b) (((a) - (b)) & 255) /* counters are compared by difference */

#ifdef PUBLISH_RELAXED
#define COMMIT RELAXED
#else
#define COMMIT RELEASE
#endif

#include "memory.inc"

byte length[MESSAGES + 1]; /* what the writer chose: for the reader's checks only */

/* Room for `need` words behind `written`; the writer's last look at `read` may do. */
inline await_room()
{
	if
	:: CAPACITY - LESS(written, seen_read) >= need
	:: else ->
		d_step {
			CAPACITY - LESS(written, memory[READ]) >= need -> seen_read = memory[READ]
		}
	fi
}

inline write_frame()
{
	if
	:: gap > 0 -> store(DATA(written), SKIP | gap, RELAXED)
	:: else
	fi;
	if
	:: length[k] > 0 -> store(DATA(written + gap) + 1, k, RELAXED)
	:: else
	fi;
	store(DATA(written + gap), length[k], RELAXED)
}

proctype writer(byte start)
{
	byte me = 0, written = start, seen_read = start, k = 1, gap, need;
	do
	:: k <= MESSAGES ->
		if
		:: length[k] = 0
		:: length[k] = 1
		fi;
		d_step {
			need = CAPACITY - DATA(written); /* to the end */
			gap = (need < 1 + length[k] -> need : 0);
			need = gap + 1 + length[k]
		};
#ifndef NO_ROOM_CHECK
		await_room();
#endif
#ifdef PUBLISH_FIRST
		store(WRITTEN, (written + need) & 255, COMMIT);
		write_frame();
#else
		write_frame();
		store(WRITTEN, (written + need) & 255, COMMIT);
#endif
		d_step {
			written = (written + need) & 255;
			gap = 0;
			need = 0;
			k++
		}
	:: else -> break
	od
}

/* hp_ring_peek: wait for a message and step over a skip frame; leaves its length in `header`. */
inline peek()
{
	if
	:: read != seen_written
	:: else -> d_step { read != memory[WRITTEN] -> seen_written = memory[WRITTEN] }
	fi;
	load(DATA(read), RELAXED, header);
	if
	:: header & SKIP ->
		read = (read + (header & ~SKIP)) & 255;
		store(READ, read, RELEASE);
		load(DATA(read), RELAXED, header)
	:: else
	fi
}

inline check()
{
	assert(header == length[k]);
	if
	:: header > 0 -> load(DATA(read) + 1, RELAXED, header); assert(header == k)
	:: else
	fi
}

proctype reader(byte start)
{
	byte me = 1, read = start, seen_written = start, k = 1, header;
	do
	:: k <= MESSAGES ->
		peek();
#ifdef RELEASE_FIRST
		store(READ, (read + 1 + length[k]) & 255, RELEASE);
		check();
#else
		check();
		store(READ, (read + 1 + length[k]) & 255, RELEASE);
#endif
		d_step {
			read = (read + 1 + length[k]) & 255;
			header = 0;
			k++
		}
	:: else -> break
	od;
	(buffer[0].used == 0 && buffer[1].used == 0);
	assert(memory[READ] == memory[WRITTEN])
}

init {
	byte start;
	atomic {
		select(start : 252 .. 255);
		memory[WRITTEN] = start;
		memory[READ] = start;
		run writer(start);
		run reader(start);
		run drain(0);
		run drain(1)
	}
}

"""Ranks as threads of one process, for tests, laptops and a world of one: memory, messages, ends.

The collectives are the node engine's, on windows that are memory of this process.
"""

from __future__ import annotations

import contextvars
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GroupFailed, RankFailed
from .backend import Arrived, Backend, Operation
from .matching import Matching, counterparts
from .node import NodeBackend
from .node_place import NodePlace

__all__ = ["MAX_RANKS", "Seat", "Shared", "start_ranks"]

MAX_RANKS = 256  # the engine's, of one node
_LOOK = 0.05  # seconds between two looks at signals while asleep


class Shared:
    """What all ranks of one run share: memory, mail, who has left, why it failed."""

    def __init__(self, size: int) -> None:
        from .window import map_private  # not what importing hpcpar must open

        self.size = size
        self.cond = threading.Condition()
        self.version = 0
        self.failure: tuple[int, BaseException] | None = None
        self.left: set[int] = set()
        self.windows = map_private(size)
        self._offices: dict[tuple[tuple[int, ...], int], _Office] = {}

    def open_office(self, ranks: tuple[int, ...], number: int) -> _Office:
        """Return where the `number`-th group of these global ranks has its mail."""
        with self.cond:
            return self._offices.setdefault((ranks, number), _Office(len(ranks)))

    def close_office(self, ranks: tuple[int, ...], number: int) -> None:
        """Drop it when all its ranks have said so."""
        with self.cond:
            office = self._offices[ranks, number]
            office.closed += 1
            if office.closed == len(ranks):
                del self._offices[ranks, number]

    def changed(self) -> None:
        """Wake everybody; the caller holds the condition."""
        self.version += 1
        self.cond.notify_all()

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and wake everybody who waits for a message."""
        with self.cond:
            if self.failure is None:
                self.failure = (rank, error)
            self.changed()

    def leave(self, rank: int) -> None:
        """Record that `rank` will not take part in anything any more."""
        with self.cond:
            self.left.add(rank)
            if len(self.left) == self.size:
                self.windows = ()
            self.changed()

    def loss(self, rank: int) -> GroupFailed | RankFailed:
        """Return the error of who waits for member `rank` of a group, which is gone."""
        if self.failure is None:
            return RankFailed(f"rank {rank} has left and is missing here.")
        first, cause = self.failure
        error = GroupFailed(f"rank {first} failed: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error


class Seat:
    """One rank of a run: its place among the others, and how it ends.

    Attributes
    ----------
    rank, size : int
    bell : Node
        What its communication thread sleeps on.
    recorder : Recorder
        Its flight record.
    undo : list of callable
        What is to be called when the rank ends, before it leaves.
    """

    def __init__(self, shared: Shared, rank: int) -> None:
        self.rank, self.size = rank, shared.size
        self.undo: list[Callable[[], None]] = []
        self._shared = shared
        self._place = NodePlace(_ThreadWindows(shared, rank), len(os.sched_getaffinity(0)))
        self.bell, self.recorder = self._place.core, self._place.recorder

    def backend(self, timeout: float | None) -> Backend:
        """Return who carries the group of all ranks; collective over them."""
        ranks = tuple(range(self.size))
        mail = _Messages(self._shared, ranks, self.rank, {})
        return NodeBackend(self._place, ranks, self.rank, lambda: mail, timeout)

    def fail(self, error: BaseException) -> None:
        """Let all who wait for this rank raise because of `error`."""
        self._place.fail(error)

    def leave(self) -> None:
        """Say that this rank begins nothing any more: to have closed a group says less."""
        self._place.leave()

    def close(self) -> None:
        """Leave in order. Local; a second call does nothing."""
        try:
            for undo in self.undo:
                undo()
        finally:
            self._place.close()


class _ThreadWindows:
    """The windows of all ranks of a run, as one of them has them."""

    backend = "threads"
    in_threads = True
    fds = ()

    def __init__(self, shared: Shared, rank: int) -> None:
        self.ranks, self.index, self.pid = tuple(range(shared.size)), rank, os.getpid()
        self._shared = shared

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        """The window of each rank; none when all have left."""
        return self._shared.windows

    def fileno(self) -> int:
        """There is no file: all memory is there."""
        return -1

    def grow(self, nbytes: int) -> None:
        """All of it is there."""

    def reserve(self, at: int, nbytes: int) -> None:
        """All of it is there."""

    def touch(self, place: int, at: int, nbytes: int) -> None:
        """All of it is there."""

    def give_back(self, at: int, nbytes: int) -> None:
        """Let the pages of a part of my window go."""
        window = self.buffers[self.index]
        assert isinstance(window.obj, mmap.mmap)
        window.obj.madvise(mmap.MADV_DONTNEED, self.index * len(window) + at, nbytes)

    def fail(self, reason: BaseException) -> None:
        """Keep why, and wake who waits for a message."""
        self._shared.fail(self.index, reason)

    def loss(self, rank: int) -> GroupFailed | RankFailed:
        """Return the error of who waits for a rank that is gone."""
        return self._shared.loss(rank)

    def close(self) -> None:
        """Leave; the memory goes with the last rank's reference to it."""
        self._shared.leave(self.index)


class _Office:
    """The mail of one group: a box, and those who wait at it, per rank."""

    def __init__(self, size: int) -> None:
        self.boxes: list[list[Arrived]] = [[] for _ in range(size)]
        self.matching = [Matching() for _ in range(size)]
        self.closed = 0


class _Messages(Backend):
    """Carries the messages of one group: what is sent is copied into the receiver's box.

    Parameters
    ----------
    shared : Shared
    ranks : tuple of int
        Global ranks of the group.
    rank : int
        My place in `ranks`.
    made : dict
        How often this rank has made a group, by its global ranks.
    """

    name = "threads"

    def __init__(
        self, shared: Shared, ranks: tuple[int, ...], rank: int, made: dict[tuple[int, ...], int]
    ) -> None:
        self.rank, self.size = rank, len(ranks)
        self._shared, self._ranks, self._made = shared, ranks, made
        self._number = made[ranks] = made.get(ranks, 0) + 1
        self._office = shared.open_office(ranks, self._number)

    def supports(self, op: Operation) -> str | None:
        """Every message runs natively."""
        return None

    def subgroup(self, ranks: Sequence[int]) -> _Messages:
        """Return who carries the messages of these ranks of this group."""
        chosen = tuple(self._ranks[r] for r in ranks)
        mine = chosen.index(self._ranks[self.rank])
        return _Messages(self._shared, chosen, mine, self._made)

    def close(self) -> None:
        """Drop the mail that nobody took when all ranks are through."""
        self._shared.close_office(self._ranks, self._number)

    def missing(self, op: Operation) -> list[int] | None:
        """Return the rank that was to send, if it is only one."""
        return None if op.root is None else [op.root]

    def start(self, op: Operation) -> None:
        """Take a place in the line, or deliver."""
        if op.verb == "recv":
            with self._shared.cond:
                self._office.matching[self.rank].post(op)
        if op.verb != "send":
            return
        assert op.root is not None
        assert op.tag is not None
        assert op.send is not None
        arrived = Arrived(self.rank, op.tag, op.kind, op.send.copy())
        with self._shared.cond:
            self._office.boxes[op.root].append(arrived)
            self._shared.changed()

    def test(self, op: Operation) -> bool:
        """Look into my box."""
        if op.verb == "send" or op.result is not None:
            return True
        box, matching = self._office.boxes[self.rank], self._office.matching[self.rank]
        with self._shared.cond:
            if op.verb == "probe":
                place = matching.find(op, box)
                op.result = None if place is None else box[place]
                return True
            place = matching.take(op, box)
            if place is None:
                self._check_senders(op)
                return False
            found = box.pop(place)
        assert op.accept is not None
        op.accept(found.kind)[...] = found.data
        op.result = found
        return True

    def _check_senders(self, op: Operation) -> None:
        """Raise if nobody is left who could send what `op` waits for, or if the run has failed."""
        possible = counterparts(op, self.rank, self.size)
        gone = [r for r in possible if self._ranks[r] in self._shared.left]
        if self._shared.failure is not None or (gone and len(gone) == len(possible)):
            raise self._shared.loss(gone[0] if gone else self.rank)

    def wait(self, op: Operation) -> bool:
        """Sleep until something changes; look at signals in between."""
        shared = self._shared
        while True:
            seen = shared.version
            if self.test(op):
                return True
            if op.deadline is not None and time.monotonic() > op.deadline:
                return False
            with shared.cond:
                if shared.version == seen:
                    shared.cond.wait(_LOOK)


def start_ranks(size: int, body: Callable[[Seat], Any]) -> list[tuple[Any, BaseException | None]]:
    """Run ``body(seat)`` on `size` threads; return each one's result or error."""
    outcomes: list[tuple[Any, BaseException | None]] = [(None, None)] * size
    shared = Shared(size)
    seats = [Seat(shared, rank) for rank in range(size)]

    def run(seat: Seat) -> None:
        """Play one rank and keep its outcome."""
        try:
            outcomes[seat.rank] = (body(seat), None)
        except BaseException as error:  # handed to the caller's thread
            outcomes[seat.rank] = (None, error)
            seat.fail(error)
        seat.close()

    try:
        _join([_start(run, seat) for seat in seats])
    except BaseException as error:  # Ctrl-C: the ranks stop at their next wait
        for seat in seats:
            seat.fail(error)
        raise
    return outcomes


def _start(run: Callable[[Seat], None], seat: Seat) -> threading.Thread:
    context = contextvars.copy_context()
    name = f"hpcpar-rank-{seat.rank}"
    thread = threading.Thread(target=context.run, args=(run, seat), name=name, daemon=True)
    thread.start()
    return thread


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(_LOOK)  # signals are seen in between

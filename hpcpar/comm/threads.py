"""Ranks as threads of one process, for tests, laptops and a world of one: memory, ends.

Collectives and messages are the node engine's, on windows that are memory of this process.
"""

from __future__ import annotations

import contextvars
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GroupFailed, RankFailed
from .backend import Backend
from .node import NodeBackend
from .node_place import NodePlace
from .tuning_file import load

__all__ = ["MAX_RANKS", "Seat", "Shared", "start_ranks"]

MAX_RANKS = 256  # the engine's, of one node
_LOOK = 0.05  # seconds between two looks at signals while asleep


class Shared:
    """What all ranks of one run share: memory, who has left, why it failed."""

    def __init__(self, size: int) -> None:
        from .window import map_private  # not what importing hpcpar must open

        self.size = size
        self.failure: tuple[int, BaseException] | None = None
        self.tuning = load(os.environ)
        self.windows = map_private(size)
        self._lock = threading.Lock()
        self._left: set[int] = set()

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure."""
        with self._lock:
            if self.failure is None:
                self.failure = (rank, error)

    def leave(self, rank: int) -> None:
        """Record that `rank` will not take part in anything any more."""
        with self._lock:
            self._left.add(rank)
            if len(self._left) == self.size:
                self.windows = ()

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
        self._place = NodePlace(
            _ThreadWindows(shared, rank), len(os.sched_getaffinity(0)), shared.tuning
        )
        self.bell, self.recorder = self._place.core, self._place.recorder

    def backend(self, timeout: float | None) -> Backend:
        """Return who carries the group of all ranks; collective over them."""
        ranks = tuple(range(self.size))
        return NodeBackend(self._place, ranks, self.rank, timeout)

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

"""A rank's place among those whose memory it shares: its windows, and the areas of its groups."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .._core import Box, Node, Recorder, RecordReader, node_sizes
from ..errors import CollectiveTimeout, HpcparError
from . import record, where
from .agree import Header, describe_call
from .heap import Heap
from .tuning import Tuning

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["NodePlace", "Windows"]

_SPINS = 30_000  # looks before a wait sleeps: some 300 us, more than it takes to wake a sleeper
_RECORD = slice(node_sizes()["record"], node_sizes()["areas"])  # of a window


class Windows(Protocol):
    """The memory of ranks that share it, as one of them has it: of processes, or of threads.

    Attributes
    ----------
    backend : str
        Name of the backend that it makes.
    in_threads : bool
        Whether the ranks are threads of one process.
    ranks : tuple of int
        Global ranks, in order.
    index : int
        My place among them.
    pid : int
        The process that may use it.
    """

    backend: str
    in_threads: bool
    ranks: tuple[int, ...]
    index: int
    pid: int

    @property
    def buffers(self) -> tuple[mmap | memoryview, ...]:
        """The window of each of them, writable."""

    @property
    def fds(self) -> tuple[int, ...]:
        """What tells of each rank's death, as `Node` takes it; may be empty."""

    def fileno(self) -> int:
        """Return the file of my window, where memory must be reserved; -1: it is there."""

    def grow(self, nbytes: int) -> None:
        """Reserve the first bytes of my window."""

    def reserve(self, at: int, nbytes: int) -> None:
        """Reserve any part of my window."""

    def touch(self, place: int, at: int, nbytes: int) -> None:
        """Get memory for pages of anybody's window, near me where that can be."""

    def give_back(self, at: int, nbytes: int) -> None:
        """Give memory of my window back."""

    def fail(self, reason: BaseException) -> None:
        """Keep why this rank takes part in nothing any more, for those who ask."""

    def loss(self, rank: int) -> HpcparError:
        """Return the error of who waits for member `rank` of a group, which is gone."""

    def close(self) -> None:
        """Let go of the memory. Local; a second call does nothing."""


class NodePlace:
    """My rank on its node: the windows, and the areas of groups in its own.

    Parameters
    ----------
    windows : Windows
    cores : int
        That its ranks may run on, all together: if they do not fit, waits do not spin.
    tuning : Tuning
        Switch points; equal on all ranks.

    Attributes
    ----------
    backend : str
        Name of the backend that it makes.
    recorder : Recorder
        In my window, where the other ranks and `hpcpar inspect` read it.
    """

    def __init__(self, windows: Windows, cores: int, tuning: Tuning) -> None:
        arrays = tuple(np.frombuffer(b, np.uint8) for b in windows.buffers)
        # Who is awaited may need the core, or the GIL that a spinning thread takes from it.
        spins = _SPINS if len(arrays) <= cores and not windows.in_threads else 0
        fd = windows.fileno()
        shared = (windows.fds, spins, tuning.as_tuple(), windows.in_threads)
        self._core: Node | None = Node(arrays, windows.index, fd, *shared)
        self.backend, self._windows = windows.backend, windows
        self.recorder = _make_recorder(windows)
        self._records = tuple(a[_RECORD] for a in arrays)
        self._heap: Heap | None = Heap(windows, self._core, arrays)
        # Also at the end of the process, for programs that do not call shutdown().
        self._let_go = weakref.finalize(self, _part, self._core, windows)
        self._index = {rank: i for i, rank in enumerate(windows.ranks)}
        self._has_lost = False
        self._made: dict[tuple[int, ...], int] = {}
        self._open: dict[int, tuple[int, ...]] = {}
        self._closed: list[tuple[int, int, tuple[tuple[int, int], ...], Box]] = []

    @property
    def core(self) -> Node:
        """The windows as the core sees them, until the place is closed."""
        assert self._core is not None
        return self._core

    @property
    def heap(self) -> Heap | None:
        """The memory of symmetric arrays; None when the place is closed."""
        return self._heap

    def last_of(self, place: int) -> str | None:
        """Return what the rank at a place did last, also when it has died; None: nothing known."""
        try:
            reader = RecordReader(self._records[place])
        except (IndexError, ValueError):  # closed; nothing there yet
            return None
        return record.describe_newest(reader, time.monotonic_ns())

    def members(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the places of global ranks on the node."""
        return tuple(self._index[rank] for rank in ranks)

    def enter(self, ranks: tuple[int, ...], deadline: float | None) -> tuple[int, tuple[int, ...]]:
        """Take an area for the group of `ranks`; return its key and all members' areas.

        Collective over them.

        Raises
        ------
        CollectiveTimeout, RankFailed, GroupFailed
            A member does not come.
        """
        self._sweep()
        key = self._key(ranks)
        members = self.members(ranks)
        self.core.claim(key)
        areas = [self._await(rank, place, key, deadline) for rank, place in enumerate(members)]
        self._open[key] = ranks
        return key, tuple(areas)

    def _key(self, ranks: tuple[int, ...]) -> int:
        """Return the same number, never 0, on all members; another each time a group is made."""
        count = self._made[ranks] = self._made.get(ranks, 0) + 1
        if len(ranks) == 1:  # nobody else looks for it
            return count
        from hashlib import blake2b

        text = f"{ranks} {count}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") or 1

    def _await(self, rank: int, place: int, key: int, deadline: float | None) -> int:
        pause = 0.0
        while (area := self.core.find(place, key)) is None:
            if self.core.is_gone(place) and self.core.find(place, key) is None:
                raise self._with_last(self._windows.loss(rank), rank, place)
            if deadline is not None and time.monotonic() > deadline:
                text = f"subgroup: missing: [{rank}]."
                raise self._with_last(CollectiveTimeout(text), rank, place)
            time.sleep(pause)
            pause = min(pause + 1e-5, 1e-3)
        return area

    def _with_last(self, error: HpcparError, rank: int, place: int) -> HpcparError:
        where.add_last(error, (rank,), lambda _: self.last_of(place))
        return error

    def retire(
        self, key: int, members: tuple[int, ...], areas: tuple[int, ...], mine: int, box: Box
    ) -> None:
        """Let go of a group's area; it is used again when every member has let go.

        Then nobody sends to its box any more.
        """
        self.core.close(mine)
        self._open.pop(key, None)
        self._closed.append((mine, key, tuple(zip(members, areas, strict=True)), box))

    def describe_cycle(self, links: Sequence[tuple[int, int, int, bytes]]) -> str:
        """Return who waits where for whom, in words."""
        ranks = list(self._index)
        words = []
        for place, on, key, header in links:
            group = f"ranks {list(self._open[key])}" if key in self._open else "another group"
            call = describe_call(Header.unpack(header))
            words.append(f"rank {ranks[place]} waits in {call} of {group} for rank {ranks[on]}")
        return ", ".join(words)

    def _sweep(self) -> None:
        kept = []
        for mine, key, others, box in self._closed:
            if all(self.core.is_closed(place, area, key) for place, area in others):
                box.empty()
                self.core.release(mine)
            else:
                kept.append((mine, key, others, box))
        self._closed = kept

    def has_lost(self) -> bool:
        """Whether some process of the node is gone that did not leave in order."""
        if self._let_go.alive and not self._has_lost:
            self._has_lost = any(map(self.is_lost, range(len(self._index))))
        return self._has_lost

    def is_lost(self, place: int) -> bool:
        """Whether a process of the node is gone that did not leave in order."""
        core = self._core  # another thread may close the place
        return core is not None and core.is_dead(place) and not core.has_left(place)

    def fail(self, reason: BaseException) -> None:
        """Tell the node's other ranks that this one takes part in nothing any more."""
        core = self._core  # another thread may close the place
        if core is not None:
            self._windows.fail(reason)
            core.leave(True)

    def loss(self, rank: int) -> HpcparError:
        """Return the error of who waits for member `rank` of a group, which is gone."""
        return self._windows.loss(rank)

    def leave(self) -> None:
        """Say that this rank begins nothing any more. Local; before its groups are closed."""
        self.core.leave(False)

    def close(self) -> None:
        """Leave in order, and hang up. Local; a second call does nothing."""
        self.has_lost()  # it cannot be seen later
        self.recorder.detach()  # errors still tell of it
        self._closed = []  # boxes hold the windows
        self._let_go()
        # The windows go with the last call that uses them.
        self._core, self._heap, self._records = None, None, ()


def _make_recorder(windows: Windows) -> Recorder:
    """Return a record in my window; a group takes memory for its part when it is made."""
    memory = memoryview(windows.buffers[windows.index])[_RECORD]
    return Recorder(
        memory=memory,
        reserve=lambda nbytes: windows.grow(_RECORD.start + nbytes),
        own=record.OWN,
    )


def _part(core: Node, windows: Windows) -> None:
    if os.getpid() == windows.pid:  # a forked child is no rank
        core.leave(False)
        core.untie()
        windows.close()

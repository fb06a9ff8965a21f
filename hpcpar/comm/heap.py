"""Symmetric memory: blocks that lie at the same place of the window of every rank of a group.

Each member's copy of a block begins with a page that says whose block it is; letting go clears it.
So every rank sees who still has a block, and its place is taken again when nobody has.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .._arrays import Array
    from .._core import Node
    from .node_place import Windows

__all__ = ["PAGE", "Heap", "find_gap", "whole_pages"]

PAGE = max(4096, mmap.PAGESIZE)  # in front of each block
_Span = tuple[int, int]


def whole_pages(nbytes: int) -> int:
    """Return the bytes of the pages that hold so many."""
    return -(-nbytes // PAGE) * PAGE


def find_gap(taken: Iterable[_Span], nbytes: int, begin: int, end: int) -> int | None:
    """Return the lowest place in [begin, end) for `nbytes` that overlaps no span; None: nowhere.

    Examples
    --------
    >>> find_gap([(10, 20), (0, 5), (24, 30)], 4, 0, 40)
    5
    >>> find_gap([(10, 20), (0, 5), (24, 30)], 6, 0, 40), find_gap([(0, 5)], 36, 0, 40)
    (30, None)
    """
    at = begin
    for first, last in sorted(taken):
        if first - at >= nbytes:
            break
        at = max(at, last)
    return at if end - at >= nbytes else None


class _Block(NamedTuple):
    """A block that some member still has.

    Attributes
    ----------
    at, end : int
        Where it lies in each member's window, with the page in front.
    key : int
        Of the block, never 0, the same on all members.
    members : tuple of int
        Places on the node.
    home : int or None
        The place whose window has it for all; None: each has a copy.
    """

    at: int
    end: int
    key: int
    members: tuple[int, ...]
    home: int | None


class _Owner:
    """What all views of a block refer to; the block is let go of with it."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory
        self.__array_interface__ = memory.__array_interface__


class Heap:
    """The symmetric memory of a node, as one of its ranks has it.

    Parameters
    ----------
    windows : Windows
    core : Node
        The windows, as the core sees them.
    memory : sequence of array
        The bytes of each window.

    Attributes
    ----------
    core : Node
    begin, end : int
        Where it lies in each window.
    """

    def __init__(self, windows: Windows, core: Node, memory: Sequence[Array]) -> None:
        self._windows, self.core, self._memory = windows, core, tuple(memory)
        self.begin = whole_pages(core.heap())
        self.end = min(len(window) for window in memory) // PAGE * PAGE
        self._blocks: list[_Block] = []
        self._claims: list[_Span] = []
        self._mutex = threading.Lock()  # groups of one rank may make arrays on several threads

    def spans(self) -> list[_Span]:
        """Return where blocks lie that a member still has, as far as this rank knows. Local."""
        with self._mutex:
            kept = [block for block in self._blocks if self._is_kept(block)]
            for block in self._blocks:
                if block not in kept:
                    self._windows.give_back(block.at, block.end - block.at)
            self._blocks = kept
            return self._taken()

    def _taken(self) -> list[_Span]:
        return [(block.at, block.end) for block in self._blocks] + self._claims

    def _is_kept(self, block: _Block) -> bool:
        has = (p for p in block.members if self._key(p, block.at) == block.key)
        return any(place == self._windows.index or not self.core.is_gone(place) for place in has)

    def claim(self, at: int, nbytes: int) -> bool:
        """Keep a place, with the page in front, until `take` or `give_back`. Local.

        Returns whether it is still free here: another thread may have claimed it meanwhile.
        """
        end = at + PAGE + nbytes
        with self._mutex:
            is_free = all(end <= first or last <= at for first, last in self._taken())
            if is_free:
                self._claims.append((at, end))
            return is_free

    def unclaim(self, at: int, nbytes: int) -> None:
        """Let a claim go. Local."""
        with self._mutex:
            self._claims.remove((at, at + PAGE + nbytes))

    def reserve(self, at: int, nbytes: int) -> None:
        """Get memory for my copy of a block, with the page in front. Local.

        Raises
        ------
        MemoryError
            There is not that much.
        """
        self._windows.reserve(at, PAGE + nbytes)

    def touch(self, home: int, at: int, nbytes: int) -> None:
        """Be the first to write to whole pages of another rank's window: they lie near me. Local.

        Raises
        ------
        MemoryError
            There is not that much.
        """
        first, end = whole_pages(at), (at + nbytes) // PAGE * PAGE
        if first < end:
            self._windows.touch(home, first, end - first)

    def give_back(self, at: int, nbytes: int) -> None:
        """Give back what was claimed and reserved for a block that is not made. Local."""
        with self._mutex:
            self._windows.give_back(at, PAGE + nbytes)
            self._claims.remove((at, at + PAGE + nbytes))

    def take(
        self, at: int, nbytes: int, key: int, members: Sequence[int], home: int | None = None
    ) -> Array:
        """Return the bytes of a block, which is let go of with their last view. Local.

        `nbytes` is a multiple of the page. They are those of my own copy, or of the one that
        `home`, a place on the node, has for all.
        """
        mine = self._windows.index
        end = at + PAGE + nbytes
        with self._mutex:
            self._words(mine, at)[0] = key
            self._claims.remove((at, end))
            self._blocks.append(_Block(at, end, key, tuple(members), home))
        owner = _Owner(self._memory[mine if home is None else home][at + PAGE : end])
        weakref.finalize(owner, self._let_go, at).atexit = False
        return np.asarray(owner)

    def copy_of(self, mine: Array, place: int) -> Array | None:
        """Return the same part of another rank's copy; None: that rank has none. Local."""
        at = self._offset(mine)
        if any(b.home is not None and b.at <= at < b.end for b in self._blocks):
            return None  # there is one for all
        found = (b for b in self._blocks if b.at + PAGE <= at and at + mine.nbytes <= b.end)
        block = next(found, None)
        if block is None or place not in block.members or self._key(place, block.at) != block.key:
            return None
        theirs = self._memory[place][at : at + mine.nbytes]
        return theirs.view(mine.dtype).reshape(mine.shape)

    def check_alive(self, places: Sequence[int], rank: int) -> None:
        """Raise if a member of a group has died or failed, or all but me have left. Local."""
        others = [(r, place) for r, place in enumerate(places) if r != rank]
        left = [r for r, place in others if self.core.is_gone(place)]
        dead = [r for r in left if not self.core.has_left(places[r])]  # or failed
        if dead or len(left) == len(others) > 0:
            raise self._windows.loss((dead or left)[0])

    def holds(self, x: Array) -> bool:
        """Whether the memory of an array lies in it, in any window. Local."""
        address = x.__array_interface__["data"][0]
        starts = (memory.__array_interface__["data"][0] for memory in self._memory)
        return any(self.begin <= address - start < self.end for start in starts)

    def _offset(self, x: Array) -> int:
        base = self._memory[self._windows.index].__array_interface__["data"][0]
        return int(x.__array_interface__["data"][0] - base)

    def _let_go(self, at: int) -> None:
        if os.getpid() == self._windows.pid:  # a forked child drops what its parent still has
            self._words(self._windows.index, at)[0] = 0

    def _key(self, place: int, at: int) -> int:
        return int(self._words(place, at)[0])

    def _words(self, place: int, at: int) -> Array:
        return self._memory[place][at : at + 8].view(np.uint64)

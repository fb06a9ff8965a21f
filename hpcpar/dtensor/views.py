"""Basic indices: views of a distributed array without traffic. Pure."""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..mesh.partition import Cuts, Partition

__all__ = ["Key", "View", "as_basic", "view_of"]

#: An int, a (start, stop, step) or None for a new axis; one for each axis that is there or made.
Key: TypeAlias = tuple[int | tuple[int | None, int | None, int | None] | None, ...]


class View(NamedTuple):
    """What an index gives: how it lies, and where in this rank's part; None: there is nothing."""

    partition: Partition
    at: tuple[Any, ...] | None


def as_basic(index: Any, ndim: int) -> Key | None:
    """Return an index as a key, with an entry for each axis; None if it is no basic one.

    Raises
    ------
    IndexError
        Too many entries, or several ellipses.

    Examples
    --------
    >>> as_basic((0, ..., slice(None, 2)), 3)
    (0, (None, None, None), (None, 2, None))
    """
    if type(index) is int and ndim:
        return (index,) + _ALL * (ndim - 1)
    found: list[Any] = []
    at = made = -1
    for entry in index if isinstance(index, tuple) else (index,):
        kind = type(entry)
        if kind is slice:
            found.append(_ends(entry))
        elif kind is int:
            found.append(entry)
        elif entry is None:
            found.append(None)
            made += 1
        elif entry is ...:
            if at >= 0:
                raise IndexError("an index can only have a single ellipsis ('...')")
            at = len(found)
        elif isinstance(entry, np.integer):
            found.append(int(entry))
        else:
            return None
    missing = ndim - len(found) + made + 1
    if missing < 0:
        raise IndexError(f"too many indices: {ndim - missing} for an array of {ndim} axes")
    if missing or at >= 0:
        at = len(found) if at < 0 else at
        return (*found[:at], *_ALL * missing, *found[at:])
    return tuple(found)


_ALL: Key = ((None, None, None),)


def _ends(entry: slice) -> tuple[int | None, int | None, int | None]:
    start, stop, step = entry.start, entry.stop, entry.step
    if not ({type(start), type(stop), type(step)} <= _PLAIN):  # 1.0 equals 1, and is none
        return _bound(start), _bound(stop), _bound(step)
    return start, stop, step


def _bound(n: Any) -> int | None:
    return None if n is None else operator.index(n)


_PLAIN = {int, type(None)}


@lru_cache(8192)
def view_of(held: Partition, place: tuple[int, ...], key: Key, neutral: str) -> View:
    """Return the view of a basic index.

    An axis that an integer takes away was split over ranks of which one holds the view: there the
    first of the other axes is all of its part and empty elsewhere. A view without axes is Partial,
    with what changes nothing on the others: by `neutral`, or what it is Partial by already.

    Raises
    ------
    IndexError
        An integer out of range.
    """
    made, axis = _Made([], [], []), 0
    lost: list[tuple[int, int]] = []
    at: list[Any] = []
    for entry in key:
        if entry is None:
            made.add(1, (), (0, 1))
            at.append(None)
            continue
        n, bounds = held.shape[axis], held.bounds(axis, place)
        if isinstance(entry, int):
            index = _checked(entry, n, axis)
            lost.append((axis, index))
            at.append(index - bounds[0] if bounds[0] <= index < bounds[1] else _NOWHERE)
        else:
            steps = range(*slice(*entry).indices(n))
            cuts = tuple(_before(cut, steps) for cut in held.cuts[axis])
            made.add(len(steps), held.splits[axis], cuts if len(cuts) > 2 else (0, len(steps)))
            at.append(_within(bounds, steps))
        axis += 1
    is_here = all(entry is not _NOWHERE for entry in at)
    return View(_with_lost(held, made, lost, neutral), (*at, ...) if is_here else None)


_NOWHERE = object()


class _Made(NamedTuple):
    """The axes of a view."""

    shape: list[int]
    splits: list[tuple[int, ...]]
    cuts: list[Cuts]

    def add(self, length: int, split: tuple[int, ...], cuts: Cuts) -> None:
        self.shape.append(length)
        self.splits.append(split)
        self.cuts.append(cuts)


def _with_lost(
    held: Partition, made: _Made, lost: list[tuple[int, int]], neutral: str
) -> Partition:
    """Return how the view lies: the ranks that held the lost axes' parts split its first axis."""
    split = tuple(m for axis, _ in lost for m in held.splits[axis])
    partial = held.partial
    if split and not made.shape:
        op = next(("sum" if op == "mean" else op for _, op in partial), neutral)
        partial = tuple(sorted((*partial, *((m, op) for m in split))))
    elif split:
        owner = 0
        for axis, index in lost:
            parts = len(held.cuts[axis]) - 1
            owner = owner * parts + _part_of(index, held.cuts[axis])
        num, cuts = math.prod(held.grid[m] for m in split), made.cuts[0]
        inner = len(cuts) - 1
        before, after = (cuts[0],) * (owner * inner), (cuts[-1],) * ((num - 1 - owner) * inner)
        made.splits[0] = (*split, *made.splits[0])
        made.cuts[0] = (*before, *cuts, *after)
    return Partition(held.grid, tuple(made.shape), tuple(made.splits), tuple(made.cuts), partial)


def _part_of(index: int, cuts: Cuts) -> int:
    return next(
        part for part, (a, b) in enumerate(pairwise(cuts)) if min(a, b) <= index < max(a, b)
    )


def _checked(index: int, n: int, axis: int) -> int:
    if not -n <= index < n:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {n}")
    return index % n


def _before(cut: int, steps: range) -> int:
    """Return how many of the steps come before a boundary, counted in their direction.

    Examples
    --------
    >>> [_before(cut, range(1, 10, 3)) for cut in (0, 4, 5, 10)]  # 1, 4, 7
    [0, 1, 2, 3]
    >>> [_before(cut, range(9, -1, -1)) for cut in (0, 5, 10)]
    [10, 5, 0]
    """
    if steps.step > 0:
        found = -((steps.start - cut) // steps.step)
    else:
        found = (steps.start - cut) // -steps.step + 1
    return max(0, min(len(steps), found))


def _within(bounds: tuple[int, int], steps: range) -> slice:
    """Return where the steps between two boundaries are in what lies between them.

    Examples
    --------
    >>> _within((4, 8), range(1, 10, 3)), _within((4, 8), range(9, -1, -1))
    (slice(0, 4, 3), slice(3, None, -1))
    """
    first, last = sorted(_before(cut, steps) for cut in bounds)
    if first == last:
        return slice(0, 0)
    start, stop = steps[first] - bounds[0], steps[last - 1] - bounds[0]
    stop += 1 if steps.step > 0 else -1
    return slice(start, None if stop < 0 else stop, steps.step)

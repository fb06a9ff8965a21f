"""The steps from one partition of an array to another: a search over placements. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count as numbers
from typing import NamedTuple

from ..errors import UnsupportedError
from .boxes import Box, count, intersect
from .costs import Costs
from .partition import Partition, commute, cuts_of, places

__all__ = ["Step", "lacks", "moved_axes", "plan_steps", "seconds_of"]


class Step(NamedTuple):
    """One step of a redistribution, along some mesh axes.

    `kind` is "slice", "fill" (both without traffic), "all_gather", "all_reduce", "reduce_scatter"
    or "exchange"; `axis` that of the array which is gathered or scattered.
    """

    kind: str
    mesh_axes: tuple[int, ...]
    axis: int
    src: Partition
    dst: Partition


def plan_steps(
    src: Partition, dst: Partition, itemsize: int, costs: tuple[Costs, ...]
) -> tuple[Step, ...]:
    """Return the cheapest steps from `src` to `dst`, of the same grid and shape.

    `costs` are those of the mesh axes, one for each.

    Raises
    ------
    UnsupportedError
        There is no way.

    Examples
    --------
    >>> from hpcpar.mesh.costs import Costs
    >>> from hpcpar.mesh.partition import make_partition
    >>> from hpcpar.mesh.placement import Partial, Replicate, Shard
    >>> def kinds(src, dst):
    ...     ends = (make_partition((2, 4), (64, 64), each) for each in (src, dst))
    ...     return [step.kind for step in plan_steps(*ends, 8, (Costs(), Costs()))]
    >>> kinds([Shard(0), Shard(1)], [Shard(0), Replicate()])
    ['all_gather']
    >>> kinds([Partial(), Replicate()], [Shard(0), Shard(1)])
    ['slice', 'reduce_scatter']
    """
    return _shortest(src, dst, itemsize, costs)[0]


def seconds_of(src: Partition, dst: Partition, itemsize: int, costs: tuple[Costs, ...]) -> float:
    """Return how long the cheapest steps take, by the costs of the mesh axes."""
    return _shortest(src, dst, itemsize, costs)[1]


@lru_cache(4096)
def _shortest(
    src: Partition, dst: Partition, itemsize: int, costs: tuple[Costs, ...]
) -> tuple[tuple[Step, ...], float]:
    """Return the cheapest steps and their seconds: Dijkstra's search."""
    search = _Search(src, dst, itemsize, costs)
    best: dict[Partition, float] = {src: 0.0}
    came: dict[Partition, Step] = {}
    ticket = numbers()  # of equally long ways the one found first
    heap = [(0.0, next(ticket), src)]
    while heap:
        spent, _, here = heapq.heappop(heap)
        if here == dst:
            return _back(came, src, dst), spent
        if spent > best[here]:
            continue
        for step, seconds in search.steps(here):
            total = spent + seconds
            if total < best.get(step.dst, math.inf):
                best[step.dst], came[step.dst] = total, step
                heapq.heappush(heap, (total, next(ticket), step.dst))
    raise UnsupportedError(f"redistribute: no way from {src} to {dst}.")


def _back(came: dict[Partition, Step], src: Partition, dst: Partition) -> tuple[Step, ...]:
    found: list[Step] = []
    here = dst
    while here != src:
        found.append(came[here])
        here = came[here].src
    return tuple(reversed(found))


class _Search:
    """What can be done next, and how long it takes."""

    def __init__(
        self, src: Partition, dst: Partition, itemsize: int, costs: tuple[Costs, ...]
    ) -> None:
        self._src, self._dst, self._itemsize, self._costs = src, dst, itemsize, costs
        self._wanted = dict(dst.partial)
        self._goal = {m: axis for axis, split in enumerate(dst.splits) for m in split}

    def steps(self, here: Partition) -> Iterator[tuple[Step, float]]:
        """Yield the steps from a partition with their seconds."""
        for m, num in enumerate(here.grid):
            ops = dict(here.partial)
            if m in here.replicated:
                yield from self._from_replicated(here, m, num)
            elif m in ops:
                if self._wanted.get(m) != ops[m]:
                    yield from self._from_partial(here, m, num)
            else:
                yield from self._from_shard(here, m, num)
        if set(here.partial) <= set(self._dst.partial):
            yield from self._at_once(here)

    # -- along one mesh axis -------------------------------------------------------------------

    def _from_replicated(self, here: Partition, m: int, num: int) -> Iterator[tuple[Step, float]]:
        for there, axis in self._sharded(here, m):
            if _refines(there, here, axis, num):
                yield Step("slice", (m,), axis, here, there), self._copied(there)
        if self._can_fill(here, m):
            filled = _with_partial(here, {**dict(here.partial), m: self._wanted[m]})
            yield Step("fill", (m,), -1, here, filled), self._copied(filled)

    def _from_partial(self, here: Partition, m: int, num: int) -> Iterator[tuple[Step, float]]:
        there = _with_partial(here, {axis: op for axis, op in here.partial if axis != m})
        moved = 2 * self._nbytes(here) * (num - 1) / num
        yield Step("all_reduce", (m,), -1, here, there), self._seconds(here, (m,), moved)
        for scattered, axis in self._sharded(there, m):
            if _refines(scattered, here, axis, num) and scattered.rises(axis):
                step = Step("reduce_scatter", (m,), axis, here, scattered)
                yield step, self._seconds(here, (m,), moved / 2)

    def _from_shard(self, here: Partition, m: int, num: int) -> Iterator[tuple[Step, float]]:
        axis = next(axis for axis, split in enumerate(here.splits) if m in split)
        if here.splits[axis][-1] != m:
            return
        there = self._with_split(here, axis, here.splits[axis][:-1])
        if not _refines(here, there, axis, num):
            return
        moved = self._nbytes(here) * (num - 1)
        if here.rises(axis):
            yield Step("all_gather", (m,), axis, here, there), self._seconds(here, (m,), moved)
        if self._can_fill(here, m) and self._wanted[m] != "mean":
            filled = _with_partial(there, {**dict(here.partial), m: self._wanted[m]})
            yield Step("fill", (m,), axis, here, filled), self._copied(filled)
        for moved_to, other in self._sharded(there, m):
            if other != axis and _refines(moved_to, there, other, num):
                yield self._exchange(here, moved_to, (m,))

    def _can_fill(self, here: Partition, m: int) -> bool:
        """Whether it shall be partial along a mesh axis, and all that it is already commutes."""
        return m in self._wanted and commute({self._wanted[m], *dict(here.partial).values()})

    def _sharded(self, here: Partition, m: int) -> Iterator[tuple[Partition, int]]:
        """Yield it with a mesh axis that splits an axis of the array, besides those that do."""
        for axis in range(here.ndim):
            yield self._with_split(here, axis, (*here.splits[axis], m)), axis

    # -- at once -------------------------------------------------------------------------------

    def _at_once(self, here: Partition) -> Iterator[tuple[Step, float]]:
        """Yield the exchange to the boxes that are wanted; what is partial there can be filled."""
        goal = self._dst
        there = Partition(goal.grid, goal.shape, goal.splits, goal.cuts, here.partial)
        moved = moved_axes(here, there)
        if moved:
            yield self._exchange(here, there, moved)

    def _exchange(
        self, here: Partition, there: Partition, mesh_axes: tuple[int, ...]
    ) -> tuple[Step, float]:
        step = Step("exchange", mesh_axes, -1, here, there)
        received = _most_received(here, there, mesh_axes) * self._itemsize
        if received == 0:
            return step, self._copied(there)
        packed = 2 * received * self._costs[0].copy  # and unpacked
        return step, self._seconds(here, mesh_axes, received) + packed

    # -- costs ---------------------------------------------------------------------------------

    def _nbytes(self, held: Partition) -> float:
        return held.most * self._itemsize

    def _copied(self, there: Partition) -> float:
        return self._nbytes(there) * self._costs[0].copy

    def _seconds(self, here: Partition, mesh_axes: Sequence[int], nbytes: float) -> float:
        """Return the time of a collective, which the slowest of its mesh axes decides."""
        calls = sum(self._costs[m].latency * math.log2(here.grid[m]) for m in mesh_axes)
        return calls + nbytes * max(self._costs[m].per_byte for m in mesh_axes)

    # -- partitions on the way -------------------------------------------------------------------

    def _with_split(self, here: Partition, axis: int, split: tuple[int, ...]) -> Partition:
        """Return it with an axis of the array split anew, cut as the source or target has it."""
        cuts = self._cuts(axis, split) if split else (0, here.shape[axis])
        return Partition(
            here.grid,
            here.shape,
            (*here.splits[:axis], split, *here.splits[axis + 1 :]),
            (*here.cuts[:axis], cuts, *here.cuts[axis + 1 :]),
            here.partial,
        )

    def _cuts(self, axis: int, split: tuple[int, ...]) -> tuple[int, ...]:
        for known in (self._src, self._dst):
            if known.splits[axis][: len(split)] == split:
                return _first(known, axis, len(split))[1]
        num = self._src.grid[split[-1]]
        levels: list[tuple[int, tuple[int, ...] | str | None]] = [(num, None)]
        if len(split) > 1:
            before = self._cuts(axis, split[:-1])
            levels.insert(0, (len(before) - 1, before))
        return cuts_of(self._src.shape[axis], levels)


def _with_partial(here: Partition, partial: dict[int, str]) -> Partition:
    return Partition(here.grid, here.shape, here.splits, here.cuts, tuple(sorted(partial.items())))


def _refines(fine: Partition, coarse: Partition, axis: int, num: int) -> bool:
    """Whether the parts along an axis are those of `coarse`, each cut into `num`."""
    return fine.cuts[axis][::num] == coarse.cuts[axis]


def moved_axes(src: Partition, dst: Partition) -> tuple[int, ...]:
    """Return the mesh axes along which ranks must talk to each other."""
    moved: set[int] = set()
    for axis, (before, after) in enumerate(zip(src.splits, dst.splits, strict=True)):
        kept = _common(src, dst, axis)
        moved |= {*before[kept:], *after[kept:]}
    return tuple(sorted(moved))


def _common(src: Partition, dst: Partition, axis: int) -> int:
    """Return how many of the first mesh axes split an axis of the array alike."""
    kept = 0
    for depth in range(1, 1 + min(len(src.splits[axis]), len(dst.splits[axis]))):
        if _first(src, axis, depth) != _first(dst, axis, depth):
            break
        kept = depth
    return kept


def _first(held: Partition, axis: int, depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first mesh axes that split an axis of the array, and the cuts that they make."""
    split = held.splits[axis]
    return split[:depth], held.cuts[axis][:: math.prod(held.grid[m] for m in split[depth:])]


def _most_received(src: Partition, dst: Partition, mesh_axes: Sequence[int]) -> int:
    """Return the most elements that a rank lacks; along other mesh axes they are alike."""
    return max(lacks(src.box(place), dst.box(place)) for place in places(src.grid, mesh_axes))


def lacks(held: Box, wanted: Box) -> int:
    """Return how many elements of a box another one does not have."""
    shared = intersect(held, wanted)
    return count(wanted) - (0 if shared is None else count(shared))

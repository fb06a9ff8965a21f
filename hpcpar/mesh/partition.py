"""How an array is cut over the places of a grid: pure index arithmetic, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise, product

from ..comm.sizes import starts, uneven
from ..errors import ArgumentError
from .boxes import Box
from .placement import Partial, Placement, Replicate, Shard

__all__ = [
    "Partition",
    "Splits",
    "balanced",
    "commute",
    "cuts_of",
    "make_partition",
    "places",
    "rule_cuts",
]

Cuts = tuple[int, ...]
Splits = tuple[tuple[int, ...], ...]


class Partition:
    """Which box of an array each place of a grid holds; a value.

    Parameters
    ----------
    grid : tuple of int
        Sizes of the mesh axes.
    shape : tuple of int
        Of the array.
    splits : tuple of tuple of int
        For each axis of the array the mesh axes that split it, the slowest first.
    cuts : tuple of tuple of int
        For each axis of the array the boundaries of its parts, rising or falling.
    partial : tuple of (int, str)
        Mesh axes along which the array is what a reduction gives, and the operation.

    Examples
    --------
    Rows over both mesh axes, five of them over four places:

    >>> rows = make_partition((2, 2), (5, 3), [Shard(0), Shard(0)])
    >>> rows.box((0, 1)), rows.box((1, 1))
    (((2, 3), (0, 3)), ((4, 5), (0, 3)))
    """

    def __init__(
        self,
        grid: tuple[int, ...],
        shape: tuple[int, ...],
        splits: Splits,
        cuts: tuple[Cuts, ...],
        partial: tuple[tuple[int, str], ...],
    ) -> None:
        self.grid, self.shape, self.splits, self.cuts = grid, shape, splits, cuts
        self.partial = partial
        self._key = (grid, shape, splits, cuts, partial)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Partition) and self._key == other._key)

    def __repr__(self) -> str:
        return f"Partition(grid={self.grid}, shape={self.shape}, {self.splits}, {self.partial})"

    @property
    def ndim(self) -> int:
        """Number of axes of the array."""
        return len(self.shape)

    @cached_property
    def replicated(self) -> tuple[int, ...]:
        """Mesh axes along which all places hold the same."""
        used = {m for split in self.splits for m in split} | {m for m, _ in self.partial}
        return tuple(m for m in range(len(self.grid)) if m not in used)

    def part(self, axis: int, place: Sequence[int]) -> int:
        """Return which of the parts along an axis of the array a place holds."""
        number = 0
        for m in self.splits[axis]:
            number = number * self.grid[m] + place[m]
        return number

    def bounds(self, axis: int, place: Sequence[int]) -> tuple[int, int]:
        """Return the start and stop, along an axis of the array, of what a place holds."""
        part, cuts = self.part(axis, place), self.cuts[axis]
        first, last = cuts[part], cuts[part + 1]
        return (first, last) if first <= last else (last, first)

    def box(self, place: Sequence[int]) -> Box:
        """Return what a place holds."""
        return tuple(self.bounds(axis, place) for axis in range(self.ndim))

    def local_shape(self, place: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what a place holds."""
        return tuple(stop - start for start, stop in self.box(place))

    @cached_property
    def most(self) -> int:
        """Return the elements of the largest box."""
        lengths = [max(abs(b - a) for a, b in pairwise(cuts)) for cuts in self.cuts]
        return math.prod(lengths)

    def rises(self, axis: int) -> bool:
        """Whether the parts along an axis of the array are in the order of their ranks."""
        return self.cuts[axis][0] == 0


def make_partition(
    grid: Sequence[int],
    shape: Sequence[int],
    placements: Sequence[Placement],
    order: Sequence[int] | None = None,
) -> Partition:
    """Return the partition of placements.

    Parameters
    ----------
    grid
        Sizes of the mesh axes.
    shape
        Of the array.
    placements
        One for each mesh axis.
    order
        Mesh axes, the slowest first, for array axes that several of them split; None is theirs.

    Raises
    ------
    ArgumentError
        Another number of placements, axes that the array does not have, cuts that do not fit,
        reductions that do not commute.
    """
    if len(placements) != len(grid):
        raise ArgumentError(f"placements: {len(placements)} of them for {len(grid)} mesh axes.")
    checked = [_checked(placement, len(shape)) for placement in placements]
    splits: list[list[int]] = [[] for _ in shape]
    levels: list[list[tuple[int, Cuts | str | None]]] = [[] for _ in shape]
    for m in range(len(grid)) if order is None else order:
        placement = checked[m]
        if isinstance(placement, Shard):
            splits[placement.axis].append(m)
            levels[placement.axis].append((grid[m], placement.cuts))
    cuts = tuple(cuts_of(n, level) for n, level in zip(shape, levels, strict=True))
    partial = tuple((m, p.op) for m, p in enumerate(checked) if isinstance(p, Partial))
    ops = {op for _, op in partial}
    if not commute(ops):
        raise ArgumentError(f"placements: reductions {sorted(ops)} of one array do not commute.")
    return Partition(tuple(grid), tuple(shape), tuple(map(tuple, splits)), cuts, partial)


def commute(ops: set[str]) -> bool:
    """Whether it does not matter which of these reductions comes first."""
    return len(ops) < 2 or ops == {"sum", "mean"}


def places(grid: Sequence[int], mesh_axes: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Return the places of a grid in order, or those along some of its axes, 0 on the others.

    Examples
    --------
    >>> places((2, 3), (0,))
    [(0, 0), (1, 0)]
    """
    sizes = [n if mesh_axes is None or m in mesh_axes else 1 for m, n in enumerate(grid)]
    return list(product(*map(range, sizes)))


def _checked(placement: Placement, ndim: int) -> Placement:
    """Return a placement whose axis counts from the front."""
    if not isinstance(placement, Replicate | Shard | Partial):
        raise ArgumentError(
            f"placements: {placement!r} must be Replicate(), Shard(axis) or Partial(op)."
        )
    if not isinstance(placement, Shard):
        return placement
    if not -ndim <= placement.axis < ndim:
        raise ArgumentError(f"placements: {placement} for an array of {ndim} axes.")
    return Shard(placement.axis % ndim, placement.cuts)


def cuts_of(length: int, levels: Sequence[tuple[int, Cuts | str | None]]) -> Cuts:
    """Return the boundaries of an axis that is split several times.

    Parameters
    ----------
    length
        Of the axis.
    levels
        Into how many, and how, as `Shard.cuts` says it.

    Examples
    --------
    >>> cuts_of(5, [(2, None), (2, None)]), cuts_of(5, [(4, "balanced")])
    ((0, 2, 3, 4, 5), (0, 2, 3, 4, 5))
    """
    bounds: Cuts = (0, length)
    for depth, (num, how) in enumerate(levels):
        if isinstance(how, tuple):
            _check_cuts(how, length, bounds, num, [given for _, given in levels[:depth]])
            bounds = how
        else:
            bounds = _cut_again(bounds, num, how)
    return bounds


def rule_cuts(length: int, grid: Sequence[int], split: Sequence[int]) -> Cuts:
    """Return the boundaries of an axis that mesh axes split by the rule, the slowest first.

    Examples
    --------
    >>> rule_cuts(5, (2, 2), (1, 0))
    (0, 2, 3, 4, 5)
    """
    return cuts_of(length, [(grid[m], None) for m in split])


def _cut_again(bounds: Cuts, num: int, how: str | None) -> Cuts:
    """Return the boundaries after each part was cut into `num`."""
    found = [bounds[0]]
    for first, last in pairwise(bounds):
        length = abs(last - first)
        sizes = uneven(length, num) if how is None else balanced(length, num)
        sign = 1 if last >= first else -1
        found += [first + sign * start for start in (*starts(sizes)[1:], length)]
    return tuple(found)


def balanced(length: int, num: int) -> Cuts:
    """Return lengths that differ by one element at most.

    Examples
    --------
    >>> balanced(7, 3)
    (3, 2, 2)
    """
    short, longer = divmod(length, num)
    return (short + 1,) * longer + (short,) * (num - longer)


def _check_cuts(cuts: Cuts, length: int, bounds: Cuts, num: int, before: Sequence[object]) -> None:
    parts = (len(bounds) - 1) * num
    if len(cuts) != parts + 1 or {cuts[0], cuts[-1]} != {0, length}:
        raise ArgumentError(
            f"Shard: cuts {cuts} must be {parts + 1} boundaries of {parts} parts of 0..{length}."
        )
    if any(isinstance(how, tuple) for how in before) and cuts[::num] != bounds:
        raise ArgumentError(f"Shard: cuts {cuts} must have {bounds} among them, given before.")

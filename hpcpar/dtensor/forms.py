"""Partitions made of partitions: whole, reduced, by rows, of another length. Pure."""

from __future__ import annotations

from functools import lru_cache

from ..mesh.partition import Partition, cuts_of

__all__ = ["by_rows", "unreduced", "whole", "with_length"]


@lru_cache(4096)
def whole(grid: tuple[int, ...], shape: tuple[int, ...]) -> Partition:
    """Return the partition in which every place holds all.

    Examples
    --------
    >>> whole((2,), (3, 4)).box((1,))
    ((0, 3), (0, 4))
    """
    return Partition(grid, shape, ((),) * len(shape), tuple((0, n) for n in shape), ())


def unreduced(held: Partition, partial: tuple[tuple[int, str], ...]) -> Partition:
    """Return the partition with other mesh axes unreduced."""
    if partial == held.partial:
        return held
    return Partition(held.grid, held.shape, held.splits, held.cuts, partial)


def by_rows(held: Partition, num_axes: int) -> Partition:
    """Return the partition whose first axes are split along the very first only, rising."""
    if not held.shape or (held.rises(0) and not any(held.splits[1:num_axes])):
        return unreduced(held, ())
    split = tuple(m for each in held.splits[:num_axes] for m in each)
    first = cuts_of(held.shape[0], [(held.grid[m], None) for m in split])
    inner = tuple((0, n) for n in held.shape[1:num_axes])
    return Partition(
        held.grid,
        held.shape,
        (split, *((),) * (num_axes - 1), *held.splits[num_axes:]),
        (first, *inner, *held.cuts[num_axes:]),
        (),
    )


def with_length(held: Partition, axis: int, length: int) -> Partition:
    """Return the partition of another length along an axis, cut by the rule."""
    cuts = cuts_of(length, [(held.grid[m], None) for m in held.splits[axis]])
    return Partition(
        held.grid,
        (*held.shape[:axis], length, *held.shape[axis + 1 :]),
        held.splits,
        (*held.cuts[:axis], cuts, *held.cuts[axis + 1 :]),
        (),
    )

"""Partitions made of partitions: whole, reduced, by rows, of another length. Pure."""

from __future__ import annotations

from functools import lru_cache

from ..mesh.partition import Partition, rule_cuts

__all__ = ["by_rows", "rising", "unreduced", "whole", "with_length"]


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
    first = rule_cuts(held.shape[0], held.grid, split)
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
    cuts = rule_cuts(length, held.grid, held.splits[axis])
    return Partition(
        held.grid,
        (*held.shape[:axis], length, *held.shape[axis + 1 :]),
        held.splits,
        (*held.cuts[:axis], cuts, *held.cuts[axis + 1 :]),
        (),
    )


def rising(held: Partition, axis: int) -> Partition:
    """Return the partition with parts along an axis in the order of their ranks."""
    return unreduced(held, ()) if held.rises(axis) else with_length(held, axis, held.shape[axis])

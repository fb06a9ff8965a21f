"""Sorting along any axis, and what stands on it; sizes of results are exchanged.

An array of one sharded axis is cut by values that a sample of it shows, each part goes to its rank,
and is sorted there. Equal values are shared out among parts in the order of their ranks, so that
many of them do not meet on one rank, and sorting numbers of elements is stable.

References
----------
W. D. Frazer and A. C. McKellar, Samplesort: a sampling approach to minimal storage tree sorting,
J. ACM 17 (1970).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from .._arrays import Array, check_axis
from ..comm.group import Group
from ..mesh.partition import Partition, rule_cuts
from .base import D, relaid
from .forms import by_rows, rising, unreduced, whole
from .indexing import get, joined
from .modes import note_move
from .shapes import reshape

__all__ = ["argsort", "argwhere", "flatnonzero", "nonzero", "sort", "unique"]

_SAMPLE = 512  # values of each part, if of even lengths, that the parts' borders are chosen from
_FEW = 4  # up to as many ranks values are compared with each border before they are sorted


def sort(x: D, axis: int | None = -1) -> D:
    """Return it sorted along an axis; NaN comes last. Collective where the axis is sharded.

    Parts of an array of one axis are of about one length then, not of exactly one. Of more axes,
    those that split the one to be sorted split another in the result.
    """
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    along = check_axis(axis, x.ndim, "sort")
    x = _laid_for(x, along)
    local, split = x.to_local(), x.layout.partition.splits[along]
    if not split:
        return type(x).wrap(np.sort(local, axis=along), x.layout)
    note_move("sort", x.layout, "parts by value")
    group = x.mesh.line(split)
    is_ordered = group.size > _FEW or local.dtype.kind not in "biuf"
    values = np.sort(local) if is_ordered else local
    ends = _ends(group, values, _borders(group, values, x.size), x.size, is_ordered)
    inside = sorted({end for end in ends if end < len(values)})
    if inside and not is_ordered:
        values = np.partition(values, inside)
    part = _sent(group, values, ends)
    part.sort(kind="stable" if is_ordered else None)  # which joins sorted runs
    return joined(x, part, split)


def argsort(x: D, axis: int | None = -1) -> D:
    """Return the numbers of the elements in sorted order, equal ones in theirs.

    Collective where the axis is sharded; where they are as in `sort`.
    """
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    along = check_axis(axis, x.ndim, "argsort")
    x = _laid_for(x, along)
    local, split = x.to_local(), x.layout.partition.splits[along]
    order = np.argsort(local, axis=along, kind="stable")
    if not split:
        return type(x).wrap(order, x.layout)
    note_move("argsort", x.layout, "parts by value")
    group, start = x.mesh.line(split), (x.layout.box or ((0, 0),))[0][0]
    values = local[order]
    ends = _ends(group, values, _borders(group, values, x.size), x.size, True)
    numbers = _sent(group, order + start, ends)
    again = np.argsort(_sent(group, values, ends), kind="stable")
    return joined(x, numbers[again], split)


def _laid_for(x: D, axis: int) -> D:
    """Return it such that an axis can be sorted: alone and rising, or not sharded."""
    held = unreduced(x.layout.partition, ())
    if held.ndim == 1:
        held = rising(held, 0)
    elif held.splits[axis]:
        held = _turned(held, axis)
    return type(x).wrap(x.moved_to(held, "sort"), relaid(x.layout, held))


def _turned(held: Partition, axis: int) -> Partition:
    """Return the partition whose mesh axes of one axis split the longest of the others. Pure."""
    others = [a for a in range(held.ndim) if a != axis]
    other = max(others, key=lambda a: held.shape[a])
    split = held.splits[other] + held.splits[axis]
    cuts = rule_cuts(held.shape[other], held.grid, split)
    splits, every = list(held.splits), list(held.cuts)
    splits[axis], every[axis] = (), (0, held.shape[axis])
    splits[other], every[other] = split, cuts
    return Partition(held.grid, held.shape, tuple(splits), tuple(every), ())


def _borders(group: Group, values: Array, total: int) -> Array:
    """Return values between the parts, one fewer than ranks, of a sample of all; collective."""
    rng = np.random.default_rng(0)
    most = min(_SAMPLE * group.size, total // 16 + 4 * group.size)
    num = min(len(values), -(-len(values) * most // max(1, total)))
    chosen = values[rng.integers(0, len(values), num)] if num else values[:0]
    every = np.sort(group.all_gather(chosen))
    return every[np.arange(1, group.size) * len(every) // group.size] if len(every) else every


def _ends(group: Group, values: Array, borders: Array, total: int, is_ordered: bool) -> list[int]:
    """Return how many of these values go to the ranks up to each but the last; collective.

    Of values equal to a border as many go before it as the parts' even lengths want, those of the
    first ranks first.
    """
    if not len(borders):
        return [0] * (group.size - 1)
    counts = np.array([_below(values, border, is_ordered) for border in borders], np.int64)
    every = group.all_gather(counts[None], sizes="equal")
    below, equal = every.sum(axis=0).T
    wanted = np.arange(1, group.size) * total // group.size
    before = np.clip(wanted - below, 0, equal)
    mine = np.clip(before - every[: group.rank, :, 1].sum(axis=0), 0, counts[:, 1])
    ends: list[int] = (counts[:, 0] + mine).tolist()
    return ends


def _below(values: Array, border: Any, is_ordered: bool) -> tuple[int, int]:
    """Return how many values are below a border, and equal to it."""
    if is_ordered:
        first, last = (np.searchsorted(values, border, side) for side in ("left", "right"))
        return int(first), int(last - first)
    if border != border:
        below = int(np.count_nonzero(values == values))
        return below, len(values) - below
    return int(np.count_nonzero(values < border)), int(np.count_nonzero(values == border))


def _sent(group: Group, values: Array, ends: list[int]) -> Array:
    bounds = pairwise([0, *ends, len(values)])
    part: Array = group.all_to_all(values, sizes=tuple(b - a for a, b in bounds))
    return part


# -- what stands on it, and places -----------------------------------------------------------------


def unique(x: D) -> D:
    """Return the different values in sorted order. Collective where it is sharded."""
    x = reshape(x, (-1,))
    held = rising(x.layout.partition, 0)
    split = held.splits[0]
    local = np.unique(x.moved_to(held, "unique"))
    if not split:
        return type(x).wrap(local, relaid(x.layout, whole(held.grid, local.shape)))
    part = np.unique(sort(joined(x, local, split)).to_local())
    group = x.mesh.line(split)
    lasts = [last for last in group.all_gather_object(part[-1:])[: group.rank] if len(last)]
    pair = np.concatenate([*lasts[-1:], part[:1]])
    is_new = len(np.unique(pair)) == len(pair)  # NaN equals NaN there
    return joined(x, part if is_new else part[1:], split)


def argwhere(x: D) -> D:
    """Return the places of what is not zero, a row for each. Collective where it is sharded."""
    rows = by_rows(x.layout.partition, x.ndim)
    local = np.argwhere(x.moved_to(rows, "argwhere"))
    if x.ndim:
        local[:, 0] += rows.bounds(0, x.mesh.coordinate or ())[0]
    split = rows.splits[0] if x.ndim else ()
    return joined(x, local, split, ((),), ((0, x.ndim),))


def nonzero(x: D) -> tuple[D, ...]:
    """Return the places of what is not zero, an array for each axis. Collective if sharded."""
    found = argwhere(x)
    return tuple(get(found, (slice(None), axis)) for axis in range(x.ndim))


def flatnonzero(x: D) -> D:
    """Return the numbers, in C order, of what is not zero. Collective where it is sharded."""
    (found,) = nonzero(reshape(x, (-1,)))
    return found

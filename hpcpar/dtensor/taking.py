"""Elements by their numbers: those who hold them are asked."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .._arrays import Array, check_axis
from ..comm.group import Group
from ..errors import ArgumentError
from ..mesh.partition import Cuts, Partition
from .base import D, Distributed, relaid
from .elementwise import arguments
from .forms import rising
from .indexing import get
from .modes import note_move
from .shapes import reshape

__all__ = ["take"]


def take(x: D, indices: Any, axis: int | None = None) -> D:
    """Return the elements with some numbers along an axis; they lie as the numbers do.

    Collective over the ranks that hold parts along the axis: each asks the others for what it
    wants. Other axes keep their shards where the numbers are not sharded along the same mesh axes.

    Parameters
    ----------
    x
    indices : DTensor of int, or an int
        Negative ones count from the end.
    axis
        None: along all elements in C order.

    Raises
    ------
    ArgumentError
        Numbers that are no integers.
    IndexError
        A number out of range; on all ranks.
    """
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    along = check_axis(axis, x.ndim, "take")
    if not isinstance(indices, Distributed) and np.ndim(indices) == 0:
        made: D = get(x, (slice(None),) * along + (operator.index(indices),))
        return type(x).wrap(made.to_local().copy(), made.layout)
    (wanted, _), _ = arguments((indices, x), "take")
    if wanted.dtype.kind not in "iu":
        raise ArgumentError(f"take: indices of dtype {wanted.dtype} must be integers.")
    wanted = wanted.reduced()
    _check_range(wanted, x.shape[along])
    held = _held(x.layout.partition, along, wanted.layout.partition)
    local = np.moveaxis(x.moved_to(held, "take"), along, 0)
    numbers = wanted.to_local().reshape(-1).astype(np.int64) % max(1, x.shape[along])
    split, cuts = held.splits[along], held.cuts[along]
    if split:
        note_move("take", x.layout, wanted.layout)
        group = x.mesh.line(split)
        rows = _asked(group, local, numbers, cuts)
    else:
        rows = local[numbers]
    shape = (*wanted.to_local().shape, *rows.shape[1:])
    ndim = wanted.ndim
    part = np.moveaxis(rows.reshape(shape), range(ndim), range(along, along + ndim))
    return type(x).wrap(part, relaid(x.layout, _lies(held, along, wanted.layout.partition)))


def _check_range(wanted: Distributed, n: int) -> None:
    """Raise on all ranks if some number is out of range. Collective."""
    local = wanted.to_local()
    wrong = local[(local < -n) | (local >= n)]
    worst = np.array([len(wrong), wrong[0] if len(wrong) else 0], np.int64)
    told = wanted.mesh.along(*wanted.mesh.names).all_gather(worst[None], sizes="equal")
    found = told[told[:, 0] > 0]
    if len(found):
        raise IndexError(f"take: index {found[0, 1]} is out of bounds for axis of size {n}")


def _held(held: Partition, axis: int, wanted: Partition) -> Partition:
    """Return how it must lie: rising along the axis, elsewhere not split as the numbers are."""
    used = {m for split in wanted.splits for m in split}
    held = rising(held, axis)
    splits, cuts = list(held.splits), list(held.cuts)
    for a, split in enumerate(held.splits):
        if a != axis and used & set(split):
            splits[a], cuts[a] = (), (0, held.shape[a])
    return Partition(held.grid, held.shape, tuple(splits), tuple(cuts), ())


def _lies(held: Partition, axis: int, wanted: Partition) -> Partition:
    """Return how the result lies."""

    def put(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*mine[:axis], *theirs, *mine[axis + 1 :])

    return Partition(
        held.grid,
        put(held.shape, wanted.shape),
        put(held.splits, wanted.splits),
        put(held.cuts, wanted.cuts),
        (),
    )


def _asked(group: Group, local: Array, numbers: Array, cuts: Cuts) -> Array:
    """Return rows by their numbers in the whole array: asked for, looked up, sent back."""
    bounds = np.array(cuts)
    owners = np.searchsorted(bounds[1:], numbers, side="right")
    order = np.argsort(owners, kind="stable")
    sizes = tuple(np.bincount(owners, minlength=group.size).tolist())
    counts = group.all_to_all(np.array(sizes), sizes="equal")
    asked = group.all_to_all(numbers[order], sizes=sizes)
    found = local[asked - bounds[group.rank]]
    came = group.all_to_all(np.ascontiguousarray(found), sizes=tuple(counts.tolist()))
    rows = np.empty((len(numbers), *local.shape[1:]), local.dtype)
    rows[order] = came
    return rows

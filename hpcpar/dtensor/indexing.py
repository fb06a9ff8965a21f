"""Reading and writing parts of distributed arrays: basic indices and masks."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.reductions import neutral
from ..errors import ArgumentError, UnsupportedError
from ..mesh.partition import Cuts, Partition
from .base import D, Distributed, relaid
from .elementwise import arguments, target_of
from .forms import by_rows
from .pieces import whole_of
from .views import Key, View, as_basic, view_of

__all__ = ["get", "joined", "put"]


def get(x: Distributed, index: Any) -> Any:
    """Return ``x[index]``: a view for a basic index, without traffic; a copy for a mask."""
    key = as_basic(index, x.ndim)
    if key is not None:
        return _seen(x, _view(x, key))
    if _is_mask(index, x):
        return _chosen(x, index)
    raise _no_rule(index)


def put(x: Distributed, index: Any, value: Any) -> None:
    """Do ``x[index] = value``. Local unless the value lies elsewhere."""
    key = as_basic(index, x.ndim)
    if key is not None:
        _write(x, _view(x, key), value)
    elif _is_mask(index, x):
        _write_chosen(x, index, value)
    else:
        raise _no_rule(index)


def _no_rule(index: Any) -> UnsupportedError:
    return UnsupportedError(
        f"index {index!r}: integers, slices, None, ..., and distributed masks or numbers along the "
        "first axes can be used."
    )


# -- views -----------------------------------------------------------------------------------------


def _view(x: Distributed, key: Key) -> View:
    layout = x.layout
    place = layout.mesh.coordinate
    if place is None:
        raise UnsupportedError(f"an index: this rank is not in {layout.mesh}.")
    # The largest of numbers and nothing keeps the sign of zero; complex ones have only sums.
    return view_of(layout.partition, place, key, "sum" if layout.dtype.kind == "c" else "max")


def _seen(x: Distributed, view: View) -> Distributed:
    made = type(x).__new__(type(x))
    made.layout = relaid(x.layout, view.partition)
    if view.at is not None:
        made._local = x._local[view.at]
        if not view.partition.shape:  # a number, as NumPy's, not a place to write to
            made._local = made._local.copy()
        return made
    shape = made.layout.local_shape or ()
    made._local = np.empty(shape, x.dtype)
    if not shape:
        partial = set(view.partition.partial) - set(x.layout.partition.partial)
        made._local[...] = neutral(next(iter(partial))[1], x.dtype)
    return made


def _write(x: Distributed, view: View, value: Any) -> None:
    _check_writable(x)
    if type(value) in _NUMBERS:
        np.empty((), x.dtype)[...] = value  # so that all ranks say if it does not fit
    else:
        (given, _), _ = arguments((value, x), "setitem")
        if not isinstance(given, Distributed):
            np.empty((), x.dtype)[...] = given
        else:
            value = given.readable(_like(given, view.partition), "setitem")
    if view.at is None:
        return
    target = x._local[view.at]
    if isinstance(value, list) and given.shape != view.partition.shape:
        value = whole_of(value)
    if not isinstance(value, list):
        target[...] = value
        return
    for place, part in value:  # its own one first: the others are copies
        target[place] = part


_NUMBERS = {int, float, bool, complex}


def _check_writable(x: Distributed) -> None:
    if x.layout.partition.partial:
        raise UnsupportedError(f"writing to {x.layout}: it is not reduced. Redistribute it first.")
    if not x._local.flags.writeable:
        raise ArgumentError(
            f"writing to {x.layout}: it is read-only, as what broadcast_to stretches and reshape "
            "had to move is: nobody else would see it. Take a copy()."
        )


def _like(value: Distributed, goal: Partition) -> Partition:
    """Return how a value must lie that is written to what lies so; without axes, everywhere."""
    if goal.shape == ():
        goal = Partition(goal.grid, (), (), (), ())
    beside = goal.shape[len(goal.shape) - value.ndim :]
    pairs = zip(value.shape, beside, strict=False)
    if value.ndim > len(goal.shape) or any(n not in (1, there) for n, there in pairs):
        raise ArgumentError(f"setitem: shape {value.shape} does not fit into {goal.shape}.")
    return target_of(value.layout.partition, goal)


# -- masks -----------------------------------------------------------------------------------------


def _is_mask(index: Any, x: Distributed) -> bool:
    """Whether it chooses along the first axes."""
    is_array = isinstance(index, Distributed | np.ndarray)
    return is_array and index.dtype == bool and 0 < index.ndim <= x.ndim


def _mask_of(x: Distributed, mask: Any, partition: Partition) -> Array:
    """Return the mask's part beside that of an array that lies so."""
    (given, _), _ = arguments((mask, x), "mask")
    k = given.ndim
    if given.shape != partition.shape[:k]:
        raise IndexError(f"a mask of shape {given.shape} for the first axes of shape {x.shape}")
    local: Array = given.moved_to(
        Partition(partition.grid, given.shape, partition.splits[:k], partition.cuts[:k], ()), "mask"
    )
    return local


def _write_chosen(x: Distributed, mask: Any, value: Any) -> None:
    partition = x.layout.partition
    _check_writable(x)
    if isinstance(value, Distributed) and not value.shape:
        value = value.full()
    if type(value) not in _NUMBERS and np.ndim(value):
        raise UnsupportedError(
            "setitem: a mask takes one number; use np.where(mask, values, x) for an array."
        )
    np.empty((), x.dtype)[...] = value
    x._local[_mask_of(x, mask, partition)] = value


def _chosen(x: Distributed, mask: Any) -> Distributed:
    """Return what a mask chooses, in the order of the whole array: lengths are exchanged."""
    rows = by_rows(x.layout.partition, mask.ndim)
    local = x.moved_to(rows, "mask")[_mask_of(x, mask, rows)]
    rest = slice(mask.ndim, None)
    return joined(x, local, rows.splits[0], rows.splits[rest], rows.cuts[rest])


def joined(
    x: D,
    local: Array,
    split: tuple[int, ...],
    splits: tuple[tuple[int, ...], ...] = (),
    cuts: tuple[Cuts, ...] = (),
) -> D:
    """Return parts of any lengths as an array split along its first axis.

    Collective over the ranks along the mesh axes of `split`: lengths are exchanged.

    Parameters
    ----------
    x
        An array of the mesh.
    local
        This rank's part.
    split
        Mesh axes that split the first axis, the slowest first.
    splits, cuts
        Of the other axes.
    """
    lengths: tuple[int, ...] = (len(local),)
    if split:
        group = x.mesh.line(split)
        lengths = tuple(group.all_gather(len(local)).tolist())
    first = tuple(accumulate(lengths, initial=0))
    inner = tuple(max(each) for each in cuts)
    partition = Partition(x.mesh.shape, (first[-1], *inner), (split, *splits), (first, *cuts), ())
    return type(x).wrap(local, relaid(x.layout, partition))

"""Other shapes of distributed arrays: axes moved, joined and cut, parts put together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from .._arrays import check_axis
from ..comm.chained import run_chained
from ..errors import ArgumentError
from ..mesh.boxes import Box, intersect, shape_of, within
from ..mesh.exchange import Routes
from ..mesh.partition import Cuts, Partition, places, rule_cuts
from .base import D, Distributed, relaid
from .elementwise import arguments
from .forms import by_rows, whole, with_length
from .indexing import get
from .modes import note_move

__all__ = [
    "assemble",
    "broadcast_to",
    "concatenate",
    "expand_dims",
    "pad",
    "reshape",
    "roll",
    "stack",
    "transpose",
]


def transpose(x: D, axes: Sequence[int] | None = None) -> D:
    """Return it with its axes in another order: a view. Local."""
    order = tuple(range(x.ndim))[::-1]
    if axes is not None:
        order = tuple(check_axis(a, x.ndim, "transpose") for a in axes)
    if sorted(order) != list(range(x.ndim)):
        raise ArgumentError(f"transpose: axes {axes} must be those of {x.ndim} axes, each once.")
    held = x.layout.partition
    partition = Partition(
        held.grid,
        tuple(held.shape[a] for a in order),
        tuple(held.splits[a] for a in order),
        tuple(held.cuts[a] for a in order),
        held.partial,
    )
    return type(x).wrap(x.to_local().transpose(order), relaid(x.layout, partition))


def _as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    given = (shape,) if isinstance(shape, int | np.integer) else shape
    return tuple(int(n) for n in given)


def broadcast_to(x: D, shape: int | Sequence[int]) -> D:
    """Return it stretched to a shape: a view that is read-only. Local."""
    target = _as_shape(shape)
    held, extra = x.layout.partition, len(target) - x.ndim
    if extra < 0 or np.broadcast_shapes(x.shape, target) != target:
        raise ArgumentError(f"broadcast_to: shape {x.shape} does not stretch to {target}.")
    stretched = [n != old for n, old in zip(target[extra:], x.shape, strict=True)]
    if any(split and s for split, s in zip(held.splits, stretched, strict=True)):
        held = _without_splits(held, stretched)
    partition = Partition(
        held.grid,
        target,
        ((),) * extra + held.splits,
        (
            *((0, n) for n in target[:extra]),
            *(
                (0, n) if s else cut
                for n, s, cut in zip(target[extra:], stretched, held.cuts, strict=True)
            ),
        ),
        held.partial,
    )
    local = x.moved_to(held, "broadcast_to")
    lengths = partition.local_shape(x.mesh.coordinate or ())
    return type(x).wrap(np.broadcast_to(local, lengths), relaid(x.layout, partition))


def _without_splits(held: Partition, axes: Sequence[bool]) -> Partition:
    """Return the partition that does not split some axes."""
    marked = list(zip(axes, held.splits, held.cuts, held.shape, strict=True))
    return Partition(
        held.grid,
        held.shape,
        tuple(() if m else split for m, split, _, _ in marked),
        tuple((0, n) if m else cut for m, _, cut, n in marked),
        held.partial,
    )


# -- parts put together ----------------------------------------------------------------------------


def assemble(
    pieces: Sequence[tuple[D, Sequence[int]]],
    partition: Partition,
    verb: str,
    fill: Any = None,
) -> D:
    """Return an array made of others, each at its place. Collective where ranks need others' parts.

    Parameters
    ----------
    pieces
        Arrays of one mesh, with where their first elements go; none may be Partial.
    partition
        How the result lies.
    verb
        For messages and `comm_mode`.
    fill
        What the result is where no piece goes; None: they cover it.
    """
    first = pieces[0][0]
    mesh, place = first.mesh, first.mesh.coordinate or ()
    dtype = np.result_type(*(x.dtype for x, _ in pieces))
    held = tuple((x.layout.partition, tuple(start)) for x, start in pieces)
    routes = _routes(held, partition, place, fill is not None)
    if routes.rounds:
        note_move(verb, [x.layout for x, _ in pieces], partition)
    parts = routes.results(dtype)
    sources = [x.to_local().astype(dtype, copy=False) for x, _ in pieces]
    group = mesh.along(*mesh.names)
    run_chained(verb, routes.run(group, sources, parts, routes.buffers(dtype)))
    if fill is not None:
        box = partition.box(place)
        made = np.full(shape_of(box), fill, dtype)
        for part, at in zip(parts, routes.dst, strict=True):
            made[within(at, box)] = part
        parts = [made]
    return type(first).wrap(parts[0], relaid(first.layout, partition))


@lru_cache(256)
def _routes(
    held: tuple[tuple[Partition, tuple[int, ...]], ...],
    partition: Partition,
    place: tuple[int, ...],
    has_gaps: bool,
) -> Routes:
    line = places(partition.grid)
    src = [[_shifted(each.box(at), start) for each, start in held] for at in line]
    wanted = [[partition.box(at)] for at in line]
    if has_gaps:
        boxes = [_shifted(tuple((0, n) for n in each.shape), start) for each, start in held]
        wanted = [
            [shared for box in boxes if (shared := intersect(box, partition.box(at))) is not None]
            for at in line
        ]
    return Routes(src, wanted, line.index(place))


def _shifted(box: Box, start: Sequence[int]) -> Box:
    return tuple((a + n, b + n) for (a, b), n in zip(box, start, strict=True))


def concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Any:
    """Return arrays one after the other along an axis, which is cut by the rule if it is sharded.

    Collective where ranks need others' parts.
    """
    given, _ = arguments(arrays, "concatenate")
    if not all(isinstance(x, Distributed) for x in given):
        raise ArgumentError("concatenate: all must be arrays.")
    if axis is None:
        given, axis = [reshape(x, (-1,)) for x in given], 0
    along = check_axis(axis, given[0].ndim, "concatenate")
    given = [x.reduced() for x in given]
    rest = [x.shape[:along] + x.shape[along + 1 :] for x in given]
    if any(each != rest[0] for each in rest):
        raise ArgumentError(f"concatenate: shapes {[x.shape for x in given]} differ beside {axis}.")
    largest = max(given, key=lambda x: x.size).layout.partition
    ends = list(accumulate((x.shape[along] for x in given), initial=0))
    pieces = [
        (x, tuple(start if a == along else 0 for a in range(x.ndim)))
        for x, start in zip(given, ends, strict=False)
    ]
    return assemble(pieces, with_length(largest, along, ends[-1]), "concatenate")


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Return arrays beside each other along a new axis."""
    given, _ = arguments(arrays, "stack")
    if not all(isinstance(x, Distributed) for x in given):
        raise ArgumentError("stack: all must be arrays.")
    at = check_axis(axis, given[0].ndim + 1, "stack")
    return concatenate([expand_dims(x, at) for x in given], at)


def expand_dims(x: D, axis: int | Sequence[int]) -> D:
    """Return it with new axes of one element: a view. Local."""
    new = axis if isinstance(axis, Sequence) else (axis,)
    ndim = x.ndim + len(new)
    at = {check_axis(a, ndim, "expand_dims") for a in new}
    if len(at) < len(new):
        raise ArgumentError(f"expand_dims: axes {axis} must be different.")
    old = iter(range(x.ndim))
    held = x.layout.partition
    axes = [None if a in at else next(old) for a in range(ndim)]
    partition = Partition(
        held.grid,
        tuple(1 if a is None else held.shape[a] for a in axes),
        tuple(() if a is None else held.splits[a] for a in axes),
        tuple((0, 1) if a is None else held.cuts[a] for a in axes),
        held.partial,
    )
    local = np.expand_dims(x.to_local(), tuple(at))
    return type(x).wrap(local, relaid(x.layout, partition))


def roll(x: D, shift: Any, axis: Any = None) -> D:
    """Return it turned along axes. Collective where these are sharded: neighbours send."""
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, 0), x.shape)
    given, x = x, x.reduced()
    for a, by in np.broadcast(axis, shift):
        along = check_axis(int(a), x.ndim, "roll")
        n = x.shape[along]
        by = int(by) % n if n else 0
        if by:
            front, back = _cut_at(x, along, n - by)
            start = [by if other == along else 0 for other in range(x.ndim)]
            x = assemble([(back, [0] * x.ndim), (front, start)], x.layout.partition, "roll")
    return type(x).wrap(x.to_local().copy(), x.layout) if x is given else x


def _cut_at(x: D, axis: int, at: int) -> tuple[D, D]:
    """Return views of what is before and behind."""
    before: list[slice] = [slice(None)] * x.ndim
    behind = list(before)
    before[axis], behind[axis] = slice(None, at), slice(at, None)
    return get(x, tuple(before)), get(x, tuple(behind))


def pad(x: D, pad_width: Any, value: Any = 0) -> D:
    """Return it with a number around it, cut by the rule. Collective where axes are sharded."""
    widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    if any(n < 0 for pair in widths for n in pair):
        raise ArgumentError(f"pad: widths {pad_width} must not be negative.")
    x = x.reduced()
    partition = x.layout.partition
    for axis, (before, after) in enumerate(widths):
        if before or after:
            partition = with_length(partition, axis, x.shape[axis] + before + after)
    return assemble([(x, [before for before, _ in widths])], partition, "pad", fill=value)


# -- reshape ---------------------------------------------------------------------------------------


def reshape(x: D, shape: int | Sequence[int]) -> D:
    """Return it in another shape, in C order.

    Local where sharded axes stay, or are the first of those that are joined or cut, at a place
    where their parts end; else rows are exchanged.

    Raises
    ------
    ArgumentError
        Another number of elements.
    """
    x.check_here("reshape")
    target = _filled_in(_as_shape(shape), x)
    partition = _kept_in(x.layout.partition, target)
    local = x.to_local()
    if partition is None:
        x = _flat(x.reduced())
        partition = _cut_in(x.layout.partition, target)
        local = x.moved_to(_along(partition), "reshape").view()
        local.flags.writeable = False  # NumPy's result would be a view of x
    lengths = partition.local_shape(x.mesh.coordinate or ())
    return type(x).wrap(local.reshape(lengths), relaid(x.layout, partition))


def _cut_in(line: Partition, target: tuple[int, ...]) -> Partition:
    """Return how an array of one axis lies in another shape: in rows by the rule."""
    if not target:
        return whole(line.grid, ())
    first = rule_cuts(target[0], line.grid, line.splits[0])
    rest = tuple((0, n) for n in target[1:])
    splits = (line.splits[0], *((),) * len(rest))
    return Partition(line.grid, target, splits, (first, *rest), ())


def _along(rows: Partition) -> Partition:
    """Return how rows lie as an array of one axis."""
    if not rows.shape:
        return whole(rows.grid, (1,))
    inner = math.prod(rows.shape[1:])
    cuts = tuple(c * inner for c in rows.cuts[0])
    return Partition(rows.grid, (cuts[-1],), rows.splits[:1], (cuts,), ())


def _filled_in(shape: tuple[int, ...], x: Distributed) -> tuple[int, ...]:
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and x.size % known == 0:
        return tuple(x.size // known if n == -1 else int(n) for n in shape)
    if any(n < 0 for n in shape) or known != x.size:
        raise ArgumentError(f"reshape: {x.size} elements of shape {x.shape} do not fit {shape}.")
    return tuple(int(n) for n in shape)


def _flat(x: D) -> D:
    """Return it as one axis, split where rows are."""
    rows = by_rows(x.layout.partition, x.ndim)
    local = x.moved_to(rows, "reshape")
    return type(x).wrap(local.reshape(-1), relaid(x.layout, _along(rows)))


@lru_cache(1024)
def _kept_in(held: Partition, target: tuple[int, ...]) -> Partition | None:
    """Return how the other shape lies if nothing has to move, else None. Pure."""
    splits: list[tuple[int, ...]] = []
    cuts: list[Cuts] = []
    for old, new in _groups(held.shape, target):
        first = old[0] if old else None
        if any(held.splits[a] for a in old[1:]):
            return None
        split = () if first is None else held.splits[first]
        bounds: Cuts = (0, target[new[0]]) if new else ()
        if split:
            if not new or first is None or not held.rises(first) or 0 in held.shape:
                return None
            inner = math.prod(held.shape[a] for a in old[1:])
            size = math.prod(target[a] for a in new[1:])
            flat = [c * inner for c in held.cuts[first]]
            if any(c % size for c in flat):
                return None
            bounds = tuple(c // size for c in flat)
        if new:
            splits += [split, *((),) * (len(new) - 1)]
            cuts += [bounds, *((0, target[a]) for a in new[1:])]
    return Partition(held.grid, target, tuple(splits), tuple(cuts), held.partial)


def _groups(
    shape: tuple[int, ...], target: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return axes that are joined and cut together: equal products, as few as can be.

    Examples
    --------
    >>> _groups((4, 6, 5), (24, 5))
    [((0, 1), (0,)), ((2,), (1,))]
    """
    if 0 in shape:
        return [(tuple(range(len(shape))), tuple(range(len(target))))]
    found, i, j = [], 0, 0
    while i < len(shape) or j < len(target):
        first, second = i, j
        p = q = 1
        while True:
            if p <= q and i < len(shape):
                p, i = p * shape[i], i + 1
            elif j < len(target):
                q, j = q * target[j], j + 1
            else:
                break
            if p == q and i > first and j > second:
                break
        found.append((tuple(range(first, i)), tuple(range(second, j))))
    return found

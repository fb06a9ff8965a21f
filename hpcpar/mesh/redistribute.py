"""Arrays from one layout to another: the steps of the plan, carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.chained import Calls, run_chained
from ..comm.reductions import neutral
from ..errors import ArgumentError
from .boxes import Box, count, shape_of, within
from .device_mesh import DeviceMesh
from .exchange import Routes, elements
from .layout import Layout
from .partition import Partition, places
from .redistribute_plan import Step, lacks, moved_axes, plan_steps

__all__ = ["has_traffic", "moving", "reading", "redistribute"]

_IDEMPOTENT = ("min", "max", "band", "bor", "mean")  # of equal parts: the part itself


def redistribute(
    x: Array | None,
    src: Layout,
    dst: Layout,
    *,
    max_nbytes: int | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Return this rank's part of an array in another layout. Collective over both meshes.

    Parameters
    ----------
    x : array or None
        What this rank holds in `src`; None where it is not in that mesh.
    src, dst : Layout
        Of one shape and dtype; the meshes may differ.
    max_nbytes : int, optional
        Bytes that a rank may need beside what it holds and gets; more rounds are made for it.
    timeout : float, optional
        Seconds, for each step.
    async_op : bool
        Return a `Work`.

    Returns
    -------
    array or None
        What this rank holds in `dst`: `x` itself where nothing changes, else memory of its own;
        None where it is not in that mesh.

    Raises
    ------
    ArgumentError
        Another shape or dtype; `max_nbytes` is too small for what must be reduced.
    """
    calls = moving(x, src, dst, max_nbytes=max_nbytes)
    return run_chained("redistribute", calls, timeout=timeout, async_op=async_op)


def moving(x: Array | None, src: Layout, dst: Layout, *, max_nbytes: int | None = None) -> Calls:
    """Return the calls of a redistribution, for a chain of more."""
    if (src.shape, src.dtype) != (dst.shape, dst.dtype):
        raise ArgumentError(
            f"redistribute: {src} and {dst} must have one shape and dtype {src.mesh.group.here()}."
        )
    most = elements(max_nbytes, src.dtype)
    return _within(x, src, dst, most) if src.mesh == dst.mesh else _across(x, src, dst, most)


def has_traffic(src: Layout, dst: Layout) -> bool:
    """Whether ranks must talk to each other to get from one layout to the other. Local."""
    if src.mesh != dst.mesh:
        return True
    steps = plan_steps(src.partition, dst.partition, src.dtype.itemsize, src.mesh.costs)
    return any(
        step.kind not in ("slice", "fill", "exchange")
        or (step.kind == "exchange" and _lack(step.src, step.dst))
        for step in steps
    )


@lru_cache(1024)
def _lack(src: Partition, dst: Partition) -> bool:
    """Whether some place lacks what it wants. Pure."""
    return any(lacks(src.box(place), dst.box(place)) for place in places(src.grid))


def _within(x: Array | None, src: Layout, dst: Layout, most: int | None) -> Calls:
    """Go through the steps on one mesh."""
    place = src.mesh.coordinate
    if place is None or x is None:
        return None
    given, steps = x, plan_steps(src.partition, dst.partition, src.dtype.itemsize, src.mesh.costs)
    if most is not None:
        steps = _bounded(steps, src, dst, most)
    for step in steps:
        x = yield from _STEPS[step.kind](x, step, src.mesh, place, most)
    return x.copy() if steps and np.may_share_memory(x, given) else x


def reading(x: Array, src: Layout, dst: Layout) -> Calls:
    """Return the calls that make this rank's part in another layout readable, on one mesh.

    The result is an array that may share memory with `x`; or, where neighbours give little to what
    this rank has, a list of (place in the part, array) with what it has first, as a view.
    """
    place = src.mesh.coordinate
    assert place is not None  # who is outside reads nothing
    steps = plan_steps(src.partition, dst.partition, src.dtype.itemsize, src.mesh.costs)
    if len(steps) == 1 and steps[0].kind == "exchange" and src.partition.ndim:
        step = steps[0]
        if shares(step.src, step.dst):
            routes = _routes(step.src, step.dst, step.mesh_axes, tuple(place), None)
            buffers = routes.buffers(x.dtype)
            found = yield from routes.collect(src.mesh.line(step.mesh_axes), [x], buffers)
            return found or np.empty(step.dst.local_shape(place), x.dtype)
    for step in steps:
        x = yield from _STEPS[step.kind](x, step, src.mesh, place, None)
    return x


@lru_cache(1024)
def shares(src: Partition, dst: Partition) -> bool:
    """Whether all places hold most of what they want already. Pure."""
    return all(
        4 * lacks(src.box(place), dst.box(place)) <= count(dst.box(place))
        for place in places(src.grid)
    )


def _bounded(steps: tuple[Step, ...], src: Layout, dst: Layout, most: int) -> tuple[Step, ...]:
    """Return steps that need few bytes: an exchange in rounds where nothing is reduced."""
    ends = src.partition, dst.partition
    if ends[0].partial == ends[1].partial:
        return (Step("exchange", moved_axes(*ends), -1, *ends),) if steps else ()
    between = max((step.dst.most for step in steps[:-1]), default=0)
    if between > most:
        raise ArgumentError(
            f"redistribute: max_nbytes must be at least {between * src.dtype.itemsize} for what is "
            f"held between the steps {[step.kind for step in steps]} {src.mesh.group.here()}."
        )
    return steps


# -- steps -------------------------------------------------------------------------------------


def _slice(x: Array, step: Step, mesh: DeviceMesh, place: Sequence[int], most: int | None) -> Calls:
    yield from ()
    return x[within(step.dst.box(place), step.src.box(place))]


def _fill(x: Array, step: Step, mesh: DeviceMesh, place: Sequence[int], most: int | None) -> Calls:
    yield from ()
    (m,) = step.mesh_axes
    op, is_part = dict(step.dst.partial)[m], m not in step.src.replicated
    if not is_part and (place[m] == 0 or op in _IDEMPOTENT):
        return x
    box = step.dst.box(place)
    filled = np.full(shape_of(box), neutral(op, x.dtype), x.dtype)
    if is_part:
        filled[within(step.src.box(place), box)] = x
    return filled


def _all_gather(
    x: Array, step: Step, mesh: DeviceMesh, place: Sequence[int], most: int | None
) -> Calls:
    sizes = _sizes(step.src, step, place)
    return (yield partial(mesh.line(step.mesh_axes).all_gather, x, axis=step.axis, sizes=sizes))


def _all_reduce(
    x: Array, step: Step, mesh: DeviceMesh, place: Sequence[int], most: int | None
) -> Calls:
    return (yield partial(mesh.line(step.mesh_axes).all_reduce, x, _op(step)))


def _reduce_scatter(
    x: Array, step: Step, mesh: DeviceMesh, place: Sequence[int], most: int | None
) -> Calls:
    sizes = _sizes(step.dst, step, place)
    verb = mesh.line(step.mesh_axes).reduce_scatter
    return (yield partial(verb, x, _op(step), axis=step.axis, sizes=sizes))


def _exchange(
    x: Array, step: Step, mesh: DeviceMesh, place: Sequence[int], most: int | None
) -> Calls:
    routes = _routes(step.src, step.dst, step.mesh_axes, tuple(place), most)
    buffers, wanted = routes.buffers(x.dtype), routes.results(x.dtype)
    return (yield from routes.run(mesh.line(step.mesh_axes), [x], wanted, buffers))


_STEPS: dict[str, Callable[[Array, Step, DeviceMesh, Sequence[int], int | None], Calls]] = {
    "slice": _slice,
    "fill": _fill,
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "exchange": _exchange,
}


def _op(step: Step) -> str:
    return dict(step.src.partial)[step.mesh_axes[0]]


def _sizes(cut: Partition, step: Step, place: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of the parts of my line, the last mesh axis that splits the array's."""
    num, cuts = cut.grid[step.mesh_axes[0]], cut.cuts[step.axis]
    first = cut.part(step.axis, place) // num * num
    return tuple(cuts[i + 1] - cuts[i] for i in range(first, first + num))


@lru_cache(1024)
def _routes(
    src: Partition,
    dst: Partition,
    mesh_axes: tuple[int, ...],
    place: tuple[int, ...],
    most: int | None,
) -> Routes:
    line = [
        tuple(other[m] if m in mesh_axes else place[m] for m in range(len(place)))
        for other in places(src.grid, mesh_axes)
    ]
    held, wanted = ([[each.box(at)] for at in line] for each in (src, dst))
    return Routes(held, wanted, line.index(place), most=most)


# -- between meshes ----------------------------------------------------------------------------


def _across(x: Array | None, src: Layout, dst: Layout, most: int | None) -> Calls:
    """Reduce on the one mesh, exchange among the ranks of both, fill on the other."""
    whole = _without_partial(src)
    x = yield from _within(x, src, whole, most)
    group = src.mesh.union(dst.mesh)
    wanted = [_wanted(dst, rank) for rank in group.ranks]
    routes = Routes([_held(whole, rank) for rank in group.ranks], wanted, group.rank, most=most)
    held = [] if x is None else [x]
    results = routes.results(src.dtype)
    yield from routes.run(group, held, results, routes.buffers(src.dtype))
    place = dst.mesh.coordinate
    if place is None:
        return None
    if results:
        return results[0]
    op = next(op for m, op in dst.partition.partial if place[m] and op not in _IDEMPOTENT)
    return np.full(dst.partition.local_shape(place), neutral(op, src.dtype), src.dtype)


def _without_partial(layout: Layout) -> Layout:
    """Return the layout in which what is partial has been reduced."""
    partial_names = {layout.mesh.names[m] for m, _ in layout.partition.partial}
    kept = {name: p for name, p in layout.by_name.items() if name not in partial_names}
    return layout.replace(kept)


def _held(layout: Layout, rank: int) -> list[Box]:
    place = layout.mesh.place_of(rank)
    return [] if place is None else [layout.partition.box(place)]


def _wanted(layout: Layout, rank: int) -> list[Box]:
    """Return what a rank needs: nothing where another one's part makes up for its own."""
    place = layout.mesh.place_of(rank)
    if place is None:
        return []
    spared = any(place[m] and op not in _IDEMPOTENT for m, op in layout.partition.partial)
    return [] if spared else [layout.partition.box(place)]

"""Operations element by element: how their arguments must lie, and how the result does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, UnsupportedError
from ..mesh.layout import Layout
from ..mesh.partition import Cuts, Partition
from .base import Distributed, relaid
from .modes import current
from .pieces import NUMBERS, in_pieces, whole_of

__all__ = ["apply", "arguments", "broadcast_layouts", "target_of"]

#: Of ufuncs that are linear: in all their arguments together, or in the first alone.
_TOGETHER = {np.add, np.subtract, np.negative, np.positive, np.conjugate}
_IN_ONE = {np.multiply}
_IN_FIRST = {np.divide}
_LINEAR = ("sum", "mean")


class Way(NamedTuple):
    """How the arguments must lie, and how the result does; None for numbers."""

    arguments: tuple[Partition | None, ...]
    result: Partition


def apply(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    out: tuple[Any, ...] | None = None,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Call a function that works element by element on what this rank holds.

    Local where the arguments lie alike; else they are moved, which `comm_mode` counts.

    Parameters
    ----------
    function
        A ufunc, or a function of arrays whose result has their broadcast shape.
    inputs
        Distributed arrays and numbers.
    out
        Distributed arrays that receive the results of a ufunc; these say how they lie.
    name
        For messages.
    options
        For the function.

    Raises
    ------
    ArgumentError
        Shapes that do not fit, meshes that differ.
    UnsupportedError
        A plain array among the inputs; `out` is partial and the function not linear.
    """
    verb = name or str(getattr(function, "__name__", "operation"))
    given, first = arguments([*inputs, *(out or ())], verb)
    given = given[: len(inputs)]
    lie = tuple(x.layout.partition if isinstance(x, Distributed) else None for x in given)
    kind = "any" if options else _kind(function, given)
    way = _way(kind, lie, None if out is None else _goal(out, verb))
    held: list[Any] = [
        x if at is None else x.readable(at, verb)
        for x, at in zip(given, way.arguments, strict=True)
    ]
    if kind == "together":
        held = _once(held, way, first.layout)
    layout = relaid(first.layout, way.result)
    if any(type(each) is list for each in held):
        done = in_pieces(function, held, layout, out, options)
        if done is not None:
            return out[0] if out is not None else type(first).wrap(done, layout)
        held = [whole_of(each) for each in held]
    if out is not None:
        function(*held, out=tuple(x.to_local() for x in out), **options)
        return out if len(out) > 1 else out[0]
    results = function(*held, **options)
    if isinstance(results, tuple):
        return tuple(type(first).wrap(result, layout) for result in results)
    return type(first).wrap(results, layout)


def arguments(inputs: Sequence[Any], verb: str) -> tuple[list[Any], Distributed]:
    """Return the inputs with plain arrays taken as replicated, and the first distributed one.

    Raises
    ------
    UnsupportedError
        Plain arrays outside `implicit_replication`; this rank is not in the mesh.
    ArgumentError
        Meshes that differ.
    """
    arrays = [x for x in inputs if isinstance(x, Distributed)]
    first = arrays[0]
    if any(x.mesh is not first.mesh and x.mesh != first.mesh for x in arrays):
        raise ArgumentError(
            f"{verb}: arrays lie on {', '.join(str(x.mesh) for x in arrays)}; they must be on "
            "one mesh. Use redistribute(mesh=...)."
        )
    if first.mesh.coordinate is None:
        raise UnsupportedError(f"{verb}: this rank is not in {first.mesh}.")
    return [_taken(x, first, verb) for x in inputs], first


def _taken(x: Any, first: Distributed, verb: str) -> Any:
    """Return a number or a distributed array for what was given."""
    if isinstance(x, (Distributed, *NUMBERS)):
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise UnsupportedError(f"{verb}: a masked array. Give .data and .mask yourself.")
    plain = np.asarray(x)
    if plain.ndim == 0 and plain.dtype != object:
        return plain[()]
    if plain.dtype == object or not current().plain_is_replicated:
        raise UnsupportedError(
            f"{verb}: a {type(x).__name__} of shape {plain.shape} beside a DTensor. Say how it "
            "lies with hp.distribute(x, mesh, placements), or work inside "
            "hp.dtensor.implicit_replication() if it is the same on every rank."
        )
    return first.everywhere(plain)


def _kind(function: Callable[..., Any], given: Sequence[Any]) -> str:
    """Return in what the function is linear: all "together", "one" of them, or not in "any"."""
    partial = [x for x in given if isinstance(x, Distributed) and x.layout.partition.partial]
    if not partial or not _keeps_sums(given):
        return "any"
    if function in _TOGETHER:
        return "together"
    if len(partial) > 1:
        return "any"
    is_first = function in _IN_FIRST and partial[0] is given[0] and _is_inexact(partial[0])
    return "one" if (function in _IN_ONE or is_first) and _scales(function, given) else "any"


def _keeps_sums(given: Sequence[Any]) -> bool:
    """Whether a sum of results is the result of sums: no integer is cast, no bit is lost."""
    dtypes = [x.dtype for x in given if isinstance(x, Distributed)]
    if all(np.issubdtype(dtype, np.inexact) for dtype in dtypes):
        return True
    plain = all(isinstance(x, Distributed) or type(x) is int for x in given)
    return plain and dtypes[0].kind in "iu" and all(dtype == dtypes[0] for dtype in dtypes)


def _is_inexact(x: Distributed) -> bool:
    return bool(np.issubdtype(x.dtype, np.inexact))


def _scales(function: Callable[..., Any], given: Sequence[Any]) -> bool:
    """Whether the other argument is a number that scales parts as it does their sum.

    Infinity times a part of zero is NaN, whatever the sum is; arrays would have to be looked at.
    """
    numbers = [x for x in given if not isinstance(x, Distributed)]
    is_fine = [np.isfinite(x) and (x != 0 or function in _IN_ONE) for x in numbers]
    return bool(numbers) and all(is_fine)


def _once(locals_: list[Any], way: Way, layout: Layout) -> list[Any]:
    """Return the arguments with numbers counted on one place only, where results are summed."""
    place = layout.mesh.coordinate or ()
    if not any(op == "sum" and place[m] for m, op in way.result.partial):
        return locals_
    return [
        x if at is not None else type(x)(0) for x, at in zip(locals_, way.arguments, strict=True)
    ]


def _goal(out: tuple[Any, ...], verb: str) -> Partition:
    for x in out:
        if not isinstance(x, Distributed):
            raise UnsupportedError(f"{verb}: out must be a DTensor, not a {type(x).__name__}.")
    goal: Partition = out[0].layout.partition
    if any(x.layout.partition != goal for x in out):
        raise ArgumentError(f"{verb}: all of out must lie alike.")
    return goal


# -- how things lie: pure ------------------------------------------------------------------------


@lru_cache(4096)
def _way(kind: str, given: tuple[Partition | None, ...], goal: Partition | None) -> Way:
    """Return how arguments and result lie for a kind of function, in a layout if one is given."""
    held = [each for each in given if each is not None]
    if goal is None:
        result = broadcast_layouts(held, _kept(kind, held))
    else:
        _check_goal(kind, held, goal)
        result = goal
    taken = tuple(None if each is None else target_of(each, result, kind) for each in given)
    return Way(taken, result)


def _check_goal(kind: str, held: Sequence[Partition], goal: Partition) -> None:
    shape = _broadcast_shape([each.shape for each in held])
    if shape != goal.shape and np.broadcast_shapes(shape, goal.shape) != goal.shape:
        raise ArgumentError(f"out has shape {goal.shape}, the result {shape}.")
    if goal.partial and _kept(kind, held) != goal.partial:
        raise UnsupportedError(
            f"an array that is {goal} cannot be changed in place by a function that does not "
            "commute with its reduction. Redistribute it first."
        )


def _kept(kind: str, held: Sequence[Partition]) -> tuple[tuple[int, str], ...]:
    """Return what may stay unreduced, as the function is linear in it."""
    if kind == "any":
        return ()
    said: dict[int, set[str]] = {}
    for each in held:
        for m, op in each.partial:
            said.setdefault(m, set()).add(op)
    splitting = {m for each in held for split in each.splits for m in split}
    return tuple(
        (m, next(iter(ops)))
        for m, ops in sorted(said.items())
        if len(ops) == 1 and ops <= set(_LINEAR) and m not in splitting
    )


def broadcast_layouts(
    held: Sequence[Partition], partial: tuple[tuple[int, str], ...] = ()
) -> Partition:
    """Return how the broadcast of arrays lies: as the largest do, where others agree. Pure.

    Parameters
    ----------
    held
        How they lie.
    partial
        What stays unreduced.
    """
    shape = _broadcast_shape([each.shape for each in held])
    splits: list[tuple[int, ...]] = [()] * len(shape)
    cuts: list[Cuts] = [(0, n) for n in shape]
    used = {m for m, _ in partial}
    for each in sorted(held, key=lambda each: -math.prod(each.shape)):
        for axis in range(-each.ndim, 0):
            split = each.splits[axis]
            is_open = not splits[axis] and not used & set(split)
            if split and is_open and each.shape[axis] == shape[axis]:
                splits[axis], cuts[axis] = split, each.cuts[axis]
                used |= set(split)
    return Partition(held[0].grid, shape, tuple(splits), tuple(cuts), partial)


def _broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ArgumentError(f"shapes {', '.join(map(str, shapes))} do not fit.") from error


def target_of(held: Partition, result: Partition, kind: str = "any") -> Partition:
    """Return how an argument must lie for a result that lies so. Pure."""
    splits: list[tuple[int, ...]] = []
    cuts: list[Cuts] = []
    for axis in range(-held.ndim, 0):
        n = held.shape[axis]
        is_whole = n == result.shape[axis]  # else it is broadcast
        splits.append(result.splits[axis] if is_whole else ())
        cuts.append(result.cuts[axis] if is_whole else (0, n))
    partial = result.partial
    if kind == "one":
        partial = tuple(each for each in held.partial if each in result.partial)
    return Partition(held.grid, held.shape, tuple(splits), tuple(cuts), partial)

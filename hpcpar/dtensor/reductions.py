"""Reductions of distributed arrays over any of their axes, sharded or not, of any lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from .._arrays import Array
from ..comm.group import Group
from ..comm.reductions import neutral
from ..errors import ArgumentError, UnsupportedError
from ..mesh.partition import Cuts, Partition
from . import elementwise
from .base import D, relaid
from .forms import unreduced

__all__ = [
    "arg",
    "axes_of",
    "log_softmax",
    "logsumexp",
    "mean",
    "norm",
    "simple",
    "softmax",
    "std",
    "var",
    "without",
]

Axis: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | None

#: NumPy's function and how the parts' results are reduced.
SIMPLE: dict[str, tuple[Callable[..., Any], str]] = {
    "sum": (np.sum, "sum"),
    "prod": (np.prod, "prod"),
    "max": (np.max, "max"),
    "min": (np.min, "min"),
    "any": (np.any, "bor"),
    "all": (np.all, "band"),
    "count_nonzero": (np.count_nonzero, "sum"),
}


def simple(
    name: str,
    x: D,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    dtype: npt.DTypeLike | None = None,
) -> D:
    """Reduce the parts; what several ranks hold of a result is Partial. Local.

    Parameters
    ----------
    name
        One of `SIMPLE`.
    x
    axis, keepdims, dtype
        As NumPy's.

    Raises
    ------
    ArgumentError
        The smallest or largest of nothing.
    """
    function, op = SIMPLE[name]
    axes = axes_of(axis, x.ndim, name)
    held = x.layout.partition
    is_cut = any(held.splits[a] for a in axes)
    if is_cut and name in ("max", "min") and x.dtype.kind == "c":
        raise UnsupportedError(f"{name}: complex numbers over a sharded axis. Use their abs().")
    kind = np.dtype(x.dtype if dtype is None else dtype)
    if is_cut and name in ("sum", "prod") and kind == np.float16:
        wide = simple(name, x, axis, keepdims=keepdims, dtype=np.float32)
        return _cast(wide, kind)  # halves are added up in float32
    kept = tuple(each for each in held.partial if _keeps(name, each[1], (x.dtype, kind)))
    local = x.moved_to(unreduced(held, kept), name)
    options: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    if dtype is not None:
        options["dtype"] = dtype
    if name in ("max", "min"):
        if any(x.shape[a] == 0 for a in axes):
            raise ArgumentError(f"{name}: nothing to reduce in shape {x.shape}, axes {axes}.")
        if any(local.shape[a] == 0 for a in axes):
            options["initial"] = neutral(op, x.dtype)
    result = function(local, **options)
    return type(x).wrap(result, relaid(x.layout, _reduced(held, axes, keepdims, op, kept)))


def _keeps(name: str, held: str, dtypes: tuple[np.dtype[Any], ...]) -> bool:
    """Whether parts that are still to be reduced can be reduced along axes first."""
    if name == "sum":
        return held in ("sum", "mean") and all(np.issubdtype(d, np.inexact) for d in dtypes)
    return name == held and name in ("max", "min")


def axes_of(axis: Axis, ndim: int, verb: str) -> tuple[int, ...]:
    """Return the axes that NumPy's argument means, from the front."""
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    found = tuple(int(a.__index__()) for a in given)
    if any(not -ndim <= a < ndim for a in found) or len({a % ndim for a in found}) < len(found):
        raise ArgumentError(f"{verb}: axis {axis} is wrong for an array of {ndim} axes.")
    return tuple(sorted(a % ndim for a in found))


def _reduced(
    held: Partition,
    axes: tuple[int, ...],
    keepdims: bool,
    op: str | None,
    partial: tuple[tuple[int, str], ...] = (),
) -> Partition:
    """Return how a result over some axes lies; None: the ranks' results have been joined."""
    shape: list[int] = []
    splits: list[tuple[int, ...]] = []
    cuts: list[Cuts] = []
    for axis, n in enumerate(held.shape):
        if axis not in axes:
            shape.append(n)
            splits.append(held.splits[axis])
            cuts.append(held.cuts[axis])
        elif keepdims:
            shape.append(1)
            splits.append(())
            cuts.append((0, 1))
    if op is not None:
        lost = tuple((m, op) for axis in axes for m in held.splits[axis])
        partial = tuple(sorted((*partial, *lost)))
    return Partition(held.grid, tuple(shape), tuple(splits), tuple(cuts), partial)


# -- of sums ---------------------------------------------------------------------------------------


def mean(
    x: D,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    dtype: npt.DTypeLike | None = None,
) -> D:
    """Return the mean over axes: the sum of all parts over the number of all elements. Local."""
    axes = axes_of(axis, x.ndim, "mean")
    kind = np.dtype(dtype if dtype is not None else x.dtype).newbyteorder("=")
    if dtype is None and not np.issubdtype(kind, np.inexact):
        kind = np.dtype(np.float64)
    total = simple("sum", x, axes, keepdims=keepdims, dtype=_wide(kind))
    num = math.prod(x.shape[a] for a in axes)
    made: D = elementwise.apply(np.divide, (total, _wide(kind).type(num)), name="mean")
    return _cast(made, kind)


def _wide(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if kind == np.float16 else kind


def _cast(x: D, dtype: np.dtype[Any]) -> D:
    if x.dtype == dtype:
        return x
    done = x.reduced()
    return type(x).wrap(done.to_local().astype(dtype), done.layout)


def var(
    x: D,
    axis: Axis = None,
    *,
    ddof: float = 0,
    keepdims: bool = False,
    dtype: npt.DTypeLike | None = None,
) -> D:
    """Return the variance over axes, in two passes. Collective where these axes are sharded."""
    axes = axes_of(axis, x.ndim, "var")
    kind = np.dtype(dtype if dtype is not None else x.dtype).newbyteorder("=")
    if not np.issubdtype(kind, np.inexact):
        kind = np.dtype(np.float64)
    x = x.reduced()
    middle = mean(x, axes, keepdims=True, dtype=_wide(kind)).reduced()
    squares: D = elementwise.apply(_squared_distance, (x, middle), name="var")
    num = max(0, math.prod(x.shape[a] for a in axes) - ddof)
    total = simple("sum", squares, axes, keepdims=keepdims)
    made: D = elementwise.apply(np.divide, (total, total.dtype.type(num)), name="var")
    return _cast(made, np.zeros((), kind).real.dtype)


def _squared_distance(x: Array, middle: Array) -> Array:
    away = x - middle
    found: Array = (away * away.conj()).real
    return found


def std(x: D, axis: Axis = None, **options: Any) -> D:
    """Return the standard deviation over axes. Collective where these axes are sharded."""
    made: D = elementwise.apply(np.sqrt, (var(x, axis, **options).reduced(),))
    return made


def norm(x: D, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> D:
    """Return a vector norm over axes, of any order; None is 2, over all axes those of the vector.

    Raises
    ------
    ArgumentError
        Norms of matrices other than Frobenius'.
    """
    axes = axes_of(axis, x.ndim, "norm")
    if ord == "fro" or (ord is None and len(axes) > 1):
        ord = None
    elif isinstance(ord, str) or (ord is not None and len(axes) != 1):
        raise ArgumentError(f"norm: order {ord!r} over axes {axes}: only vectors' and 'fro'.")
    x = x.reduced()
    if not np.issubdtype(x.dtype, np.inexact):
        x = type(x).wrap(x.to_local().astype(np.float64), x.layout)
    sizes: D = elementwise.apply(np.abs, (x,))
    if ord in (np.inf, -np.inf):
        return simple("max" if ord > 0 else "min", sizes, axes, keepdims=keepdims)
    if ord == 0:
        kind = sizes.dtype
        return _cast(simple("count_nonzero", sizes, axes, keepdims=keepdims), kind)
    power = 2.0 if ord is None else float(ord)
    powers: D = sizes if power == 1 else elementwise.apply(np.power, (sizes, power))
    total = simple("sum", powers, axes, keepdims=keepdims).reduced()
    made: D = elementwise.apply(np.power, (total, 1 / power))
    return made


# -- of the largest --------------------------------------------------------------------------------


def arg(name: str, x: D, axis: SupportsIndex | None = None, *, keepdims: bool = False) -> D:
    """Return where the largest or smallest is: the first of equal ones, NaN before all.

    Collective where the axis is sharded.

    Parameters
    ----------
    name : {"argmax", "argmin"}
    x
    axis
        None: the number of the element in C order of the whole array.
    keepdims
        As NumPy's.
    """
    op, function = ("max", np.argmax) if name == "argmax" else ("min", np.argmin)
    axes = axes_of(axis, x.ndim, name)
    if any(x.shape[a] == 0 for a in axes):
        raise ArgumentError(f"{name}: nothing to look at in shape {x.shape}.")
    x = x.reduced()
    values, numbers = _local_best(x, function, op, axis, axes)
    split = tuple(m for a in axes for m in x.layout.partition.splits[a])
    if split:
        group = x.mesh.line(split)
        numbers = _first_best(group, values, numbers, SIMPLE[op][0])
    if keepdims:
        numbers = np.expand_dims(numbers, axes)
    return type(x).wrap(
        numbers, relaid(x.layout, _reduced(x.layout.partition, axes, keepdims, None))
    )


def _local_best(
    x: D,
    function: Callable[..., Any],
    op: str,
    axis: SupportsIndex | None,
    axes: tuple[int, ...],
) -> tuple[Array, Array]:
    """Return the best of this rank's part, and its numbers in the whole array."""
    local, box = x.to_local(), x.layout.box or ()
    rest = tuple(n for a, n in enumerate(local.shape) if a not in axes)
    if any(local.shape[a] == 0 for a in axes):
        last = np.iinfo(np.int64).max
        return np.full(rest, neutral(op, x.dtype), x.dtype), np.full(rest, last, np.int64)
    if axis is not None:
        (a,) = axes
        numbers = np.asarray(function(local, axis=a))
        values = np.take_along_axis(local, np.expand_dims(numbers, a), a).squeeze(a)
        return values, numbers + box[a][0]
    found = np.unravel_index(function(local), local.shape) if local.ndim else ()
    there = tuple(int(i) + start for i, (start, _) in zip(found, box, strict=True))
    number = np.ravel_multi_index(there, x.shape) if there else 0
    return np.asarray(local[tuple(found)]), np.asarray(number, np.int64)


def _first_best(group: Group, values: Array, numbers: Array, best_of: Callable[..., Any]) -> Array:
    every = group.all_gather(values[None], sizes="equal")
    where = group.all_gather(numbers[None].astype(np.int64), sizes="equal")
    best = best_of(every, axis=0)
    is_best = (every == best) | ((every != every) & (best != best))
    found: Array = np.where(is_best, where, np.iinfo(np.int64).max).min(axis=0)
    return found


def logsumexp(x: D, axis: Axis = None, *, keepdims: bool = False) -> D:
    """Return log(sum(exp(x))) over axes, safe for large numbers. Collective where they are sharded.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> mesh = hp.init_device_mesh((1,), ("dp",))
    >>> x = hp.distribute(np.array([1000.0, 1000.0]), mesh, hp.Shard(0))
    >>> bool(float(hp.dtensor.logsumexp(x)) == 1000 + np.log(2))
    True
    """
    axes = axes_of(axis, x.ndim, "logsumexp")
    _, top, total = _with_top_and_total(x, axes, "logsumexp")
    made: D = elementwise.apply(_log_plus, (total, top), name="logsumexp")
    return made if keepdims else without(made, axes)


def without(x: D, axes: tuple[int, ...]) -> D:
    """Return it without axes of one element."""
    partition = _reduced(x.layout.partition, axes, False, None)
    return type(x).wrap(x.to_local().squeeze(axes), relaid(x.layout, partition))


def softmax(x: D, axis: Axis = -1) -> D:
    """Return exp(x) over its sum along axes. Two small reductions where they are sharded.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> mesh = hp.init_device_mesh((1,), ("dp",))
    >>> x = hp.distribute(np.array([1000.0, 0.0, 1000.0]), mesh, hp.Shard(0))
    >>> hp.dtensor.softmax(x).full()
    array([0.5, 0. , 0.5])
    """
    made: D = elementwise.apply(_share, _with_top_and_total(x, axis, "softmax"), name="softmax")
    return made


def log_softmax(x: D, axis: Axis = -1) -> D:
    """Return the logarithm of `softmax`, safe for large numbers."""
    verb = "log_softmax"
    made: D = elementwise.apply(_log_share, _with_top_and_total(x, axis, verb), name=verb)
    return made


def _with_top_and_total(x: D, axis: Axis, verb: str) -> tuple[D, D, D]:
    """Return it with its largest over axes, and the sum of its powers over that."""
    axes = axes_of(axis, x.ndim, verb)
    x = x.reduced()
    top = simple("max", x, axes, keepdims=True).reduced()
    top = elementwise.apply(_finite, (top,), name=verb)
    powers = elementwise.apply(_exp_minus, (x, top), name=verb)
    return x, top, simple("sum", powers, axes, keepdims=True).reduced()


def _share(x: Array, top: Array, total: Array) -> Array:
    made: Array = np.exp(x - top) / total
    return made


def _log_share(x: Array, top: Array, total: Array) -> Array:
    made: Array = (x - top) - np.log(total)
    return made


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, x.dtype.type(0))


def _exp_minus(x: Array, top: Array) -> Array:
    made: Array = np.exp(x - top)
    return made


def _log_plus(total: Array, top: Array) -> Array:
    with np.errstate(divide="ignore"):
        made: Array = np.log(total) + top
    return made

"""NumPy's functions of shape by name: which rule answers for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import check_axis
from ..errors import ArgumentError, UnsupportedError
from . import elementwise, scans, shapes
from .base import D, Distributed
from .dispatch import register_rule
from .indexing import get
from .reductions import axes_of

__all__ = ["moved_axis", "squeeze", "triangle"]

register_rule(np.broadcast_to)(shapes.broadcast_to)
register_rule(np.expand_dims)(shapes.expand_dims)
register_rule(np.roll)(shapes.roll)
register_rule(np.stack)(shapes.stack)
register_rule(np.transpose)(shapes.transpose)


@register_rule(np.concatenate)
def _concatenate(arrays: Sequence[Any], axis: int | None = 0, **options: Any) -> Any:
    if any(value is not None for value in options.values()):
        raise UnsupportedError(f"concatenate: {', '.join(options)} have no rule.")
    return shapes.concatenate(arrays, axis)


@register_rule(np.reshape)
def _reshape(a: Distributed, shape: Any = None, order: str = "C", **options: Any) -> Any:
    if order != "C":
        raise UnsupportedError(f"reshape: order={order!r} has no rule.")
    return shapes.reshape(a, options.get("newshape", shape))


@register_rule(np.ravel)
def _ravel(a: Distributed, order: str = "C") -> Any:
    return _reshape(a, (-1,), order)


@register_rule(np.squeeze)
def squeeze(a: D, axis: Any = None) -> D:
    """Return it without axes of one element. Local."""
    axes = tuple(i for i, n in enumerate(a.shape) if n == 1)
    chosen = axes if axis is None else axes_of(axis, a.ndim, "squeeze")
    if not set(chosen) <= set(axes):
        raise ArgumentError(f"squeeze: axes {axis} of shape {a.shape} must have one element.")
    made: D = get(a, tuple(0 if i in chosen else slice(None) for i in range(a.ndim)))
    return made


@register_rule(np.moveaxis)
def moved_axis(a: D, source: Any, destination: Any) -> D:
    """Return it with axes at other places: a view. Local."""
    old = [check_axis(i, a.ndim, "moveaxis") for i in np.atleast_1d(source).tolist()]
    new = [check_axis(i, a.ndim, "moveaxis") for i in np.atleast_1d(destination).tolist()]
    if len(set(old)) != len(set(new)) or len(old) != len(set(old)):
        raise ArgumentError(f"moveaxis: {source} to {destination} must be as many, all different.")
    order = [i for i in range(a.ndim) if i not in old]
    for place, axis in sorted(zip(new, old, strict=True)):
        order.insert(place, axis)
    return shapes.transpose(a, order)


@register_rule(np.swapaxes)
def _swapaxes(a: Distributed, axis1: int, axis2: int) -> Any:
    order = list(range(a.ndim))
    i, j = (check_axis(axis, a.ndim, "swapaxes") for axis in (axis1, axis2))
    order[i], order[j] = order[j], order[i]
    return shapes.transpose(a, order)


@register_rule(np.flip)
def _flip(m: Distributed, axis: Any = None) -> Any:
    axes = axes_of(axis, m.ndim, "flip")
    back = slice(None, None, -1)
    return get(m, tuple(back if i in axes else slice(None) for i in range(m.ndim)))


@register_rule(np.pad)
def _pad(array: Distributed, pad_width: Any, mode: str = "constant", **options: Any) -> Any:
    if mode != "constant" or np.ndim(options.get("constant_values", 0)):
        raise UnsupportedError(f"pad: mode {mode!r} with {options} has no rule; one number has.")
    return shapes.pad(array, pad_width, options.get("constant_values", 0))


@register_rule(np.diff)
def _diff(a: Distributed, n: int = 1, axis: int = -1, **options: Any) -> Any:
    if options:
        raise UnsupportedError(f"diff: {', '.join(options)} have no rule.")
    if n < 0:
        raise ArgumentError(f"diff: n {n} must not be negative.")
    along = check_axis(axis, a.ndim, "diff")
    later = tuple(slice(1, None) if i == along else slice(None) for i in range(a.ndim))
    sooner = tuple(slice(None, -1) if i == along else slice(None) for i in range(a.ndim))
    function = np.not_equal if a.dtype == bool else np.subtract
    for _ in range(n):
        a = elementwise.apply(function, (get(a, later), get(a, sooner)), name="diff")
    return a


# -- cut in pieces ---------------------------------------------------------------------------------


@register_rule(np.array_split)
def _array_split(ary: Distributed, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    along = check_axis(axis, ary.ndim, "split")
    n = ary.shape[along]
    if isinstance(indices_or_sections, int | np.integer):
        if indices_or_sections < 1:
            raise ArgumentError(f"split: {indices_or_sections} sections; at least one.")
        short, longer = divmod(n, int(indices_or_sections))
        sizes = [short + 1] * longer + [short] * (int(indices_or_sections) - longer)
        ends = np.cumsum(sizes)[:-1].tolist()
    else:
        ends = [int(i) for i in indices_or_sections]
    bounds = zip([0, *ends], [*ends, n], strict=True)
    return [
        get(ary, tuple(slice(a, b) if i == along else slice(None) for i in range(ary.ndim)))
        for a, b in bounds
    ]


@register_rule(np.split)
def _split(ary: Distributed, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    sections = indices_or_sections
    n = ary.shape[check_axis(axis, ary.ndim, "split")]
    if isinstance(sections, int | np.integer) and (sections < 1 or n % sections):
        raise ArgumentError(f"split: {n} elements do not make {sections} equal sections.")
    made: list[Any] = _array_split(ary, sections, axis)
    return made


# -- triangles and running sums --------------------------------------------------------------------


def triangle(m: D, k: int, lower: bool) -> D:
    """Return it with zeros above, or below, a diagonal. Local."""
    if m.ndim < 2:
        raise ArgumentError(f"tril: {m.ndim} axes; at least two.")
    box = m.layout.box or ()
    rows, columns = (np.arange(*bounds) for bounds in box[-2:])
    kept = columns <= rows[:, None] + k if lower else columns >= rows[:, None] + k
    local = m.to_local()
    return type(m).wrap(np.where(kept, local, local.dtype.type(0)), m.layout)


@register_rule(np.tril)
def _tril(m: Distributed, k: int = 0) -> Any:
    return triangle(m.reduced(), k, True)


@register_rule(np.triu)
def _triu(m: Distributed, k: int = 0) -> Any:
    return triangle(m.reduced(), k, False)


@register_rule(np.cumsum)
def _cumsum(a: Distributed, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    return _accumulated("sum", a, axis, dtype, out)


@register_rule(np.cumprod)
def _cumprod(a: Distributed, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    return _accumulated("prod", a, axis, dtype, out)


def _accumulated(op: str, a: Distributed, axis: int | None, dtype: Any, out: Any) -> Any:
    if out is not None:
        raise UnsupportedError(f"cumulative {op}: out= has no rule.")
    return scans.accumulate(op, a, axis, dtype)

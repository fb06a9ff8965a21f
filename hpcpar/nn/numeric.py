"""Dtypes, gradients written in place, and the checks that layers share.

Half types (float16, bfloat16) are stored and handed on as they are; sums and products run in
float32 and are rounded once. float32 and float64 stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from .._arrays import Array, as_dtype, namespace
from ..errors import ArgumentError, UnsupportedError
from .layer import Ctx, Fill, Layer, Params

__all__ = [
    "blocks",
    "cast",
    "check_ids",
    "check_input",
    "computed_in",
    "grad_fill",
    "narrow",
    "take",
    "wide",
]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_HALVES = _FLOATS[:2]
_BLOCK = 1 << 16  # elements: a few float32 blocks stay in a level-2 cache


def blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield views that together cut `arrays` along axis 0, small enough to stay in cache.

    Chains of element-wise steps run 1.2 to 1.8 times as fast block by block as array by array.
    CuPy arrays come whole: there each step is a launch.

    Parameters
    ----------
    arrays
        Same first axis.
    """
    if namespace(arrays[0]) is not np or arrays[0].size == 0:
        yield arrays
        return
    rows = len(arrays[0])
    step = max(1, _BLOCK * rows // max(a.size for a in arrays))
    for start in range(0, rows, step):
        yield tuple(a[start : start + step] for a in arrays)


def computed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that arrays of `dtype` are computed in: float32 for half types."""
    return np.dtype(np.float32) if dtype.name in _HALVES else dtype


def wide(x: Array) -> Array:
    """Return `x` in the dtype that is computed in: a float32 copy of half types, else `x`."""
    return x.astype(np.float32) if x.dtype.name in _HALVES else x


def narrow(y: Array, dtype: np.dtype[Any]) -> Array:
    """Return `y` rounded to `dtype`; `y` itself where it has that dtype."""
    return y.astype(dtype, copy=False)


def cast(params: Mapping[str, Array], dtype: npt.DTypeLike) -> dict[str, Array]:
    """Return copies of all parameters in `dtype`. Local.

    Parameters
    ----------
    params
        Flat dict of arrays.
    dtype
        ``"float16"``, ``"bfloat16"`` (needs ml_dtypes), ``"float32"`` or ``"float64"``.

    Raises
    ------
    UnsupportedError
        Any other dtype.
    """
    target = _float_dtype(dtype)
    return {name: value.astype(target) for name, value in params.items()}


def _float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    target = as_dtype(dtype)
    if target.name not in _FLOATS:
        raise UnsupportedError(
            f"cast: dtype {target.name} is not one of {', '.join(_FLOATS)}. Choose one of these."
        )
    return target


def grad_fill(
    compute: Callable[[Array | None], Array],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    accumulate: Callable[[Array], None] | None = None,
) -> Fill:
    """Return the `Fill` around `compute`. Local.

    Parameters
    ----------
    compute
        ``compute(out)`` returns the gradient in the dtype computed in; it may use `out`
        (C-contiguous, right shape, any contents) as its destination.
    shape, dtype
        Of the parameter.
    accumulate
        ``accumulate(out)`` adds the gradient to `out` of any float dtype, rounding once; for
        gradients that are mostly zeros. None: the sum of `out` and ``compute(None)``.
    """
    direct = computed_in(dtype)

    def _fill(out: Array | None = None, add: bool = False) -> Array:
        if out is None:
            if add:
                raise ArgumentError("fill: add=True needs out. Pass the array to add to.")
            return narrow(compute(None), dtype)
        if out.shape != shape:
            raise ArgumentError(f"fill: out has shape {out.shape}, needs the parameter's {shape}.")
        if add and accumulate is not None:
            accumulate(out)
        elif add:
            _add_into(out, compute(None))
        elif out.dtype == direct and out.flags.c_contiguous:
            _put(out, compute(out))
        else:
            _put(out, compute(None))
        return out

    return _fill


def _put(out: Array, grad: Array) -> None:
    if grad is not out:
        out[...] = grad


def _add_into(out: Array, grad: Array) -> None:
    if out.dtype == grad.dtype:
        out += grad
    else:  # one rounding, to out's dtype
        out[...] = wide(out) + grad


def take(params: Params, name: str, shape: tuple[int, ...], layer: Layer, ctx: Ctx) -> Array:
    """Return the parameter `name`, which must have `shape`.

    Raises
    ------
    ArgumentError
        It is missing (the message has its full name), or has another shape.
    """
    try:
        value = params[name]
    except KeyError as exc:
        full = exc.args[0]
        refuse(layer, ctx, f"params has no {full!r}. Pass what init returned, under its names")
    if value.shape != shape:
        refuse(layer, ctx, f"parameter {name!r} has shape {value.shape}, needs {shape}")
    return value


def check_input(x: Array, width: int, weight: Array | None, layer: Layer, ctx: Ctx) -> None:
    """Check that `x` is (..., width) in the dtype of `weight` (None: any float dtype).

    Raises
    ------
    ArgumentError
        Another last axis, or 0-d.
    UnsupportedError
        Another dtype: layers do not promote in silence.
    """
    if x.ndim == 0 or x.shape[-1] != width:
        refuse(layer, ctx, f"x has shape {x.shape}, needs (..., {width})")
    if weight is not None and x.dtype != weight.dtype:
        raise UnsupportedError(
            f"{_who(layer, ctx)}: x has dtype {x.dtype.name}, needs {weight.dtype.name} as the "
            "parameters have. Cast one of them (hpcpar.nn.cast for parameters)."
        )
    if x.dtype.name not in _FLOATS:
        raise UnsupportedError(
            f"{_who(layer, ctx)}: x has dtype {x.dtype.name}, needs one of {', '.join(_FLOATS)}."
        )


def check_ids(ids: Array, count: int, verb: str, name: str) -> None:
    """Check that `ids` are integers in ``0..count-1``.

    Raises
    ------
    UnsupportedError
        Another kind of dtype.
    ArgumentError
        An id out of range.
    """
    if ids.dtype.kind not in "iu":
        raise UnsupportedError(f"{verb}: {name} has dtype {ids.dtype.name}, needs integers.")
    if ids.size == 0:
        return
    xp = namespace(ids)
    low, high = int(xp.min(ids)), int(xp.max(ids))
    if low < 0 or high >= count:
        bad = low if low < 0 else high
        raise ArgumentError(
            f"{verb}: {name} holds {bad}, needs ids from 0 to {count - 1}. "
            "Check the tokenizer's vocabulary against the model's."
        )


def refuse(layer: Layer, ctx: Ctx, message: str) -> NoReturn:
    """Raise ArgumentError with the place of the layer before `message`."""
    raise ArgumentError(f"{_who(layer, ctx)}: {message}.")


def _who(layer: Layer, ctx: Ctx) -> str:
    kind = type(layer).__name__
    return f"{kind}.forward ({ctx.path})" if ctx.path else f"{kind}.forward"

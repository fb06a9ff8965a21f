"""NumPy's functions by name: which rule answers for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedError
from . import contraction, elementwise, reductions
from .base import Distributed, relaid
from .dispatch import register_rule
from .forms import unreduced

__all__ = ["astype", "clip", "where"]


# -- element by element ----------------------------------------------------------------------------


@register_rule(np.where)
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return `x` where the condition holds, else `y`. Local where they lie alike."""
    if x is None or y is None:
        raise UnsupportedError("where: give x and y.")
    return elementwise.apply(np.where, (condition, x, y))


@register_rule(np.clip)
def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **options: Any) -> Any:
    """Return `a` between two limits, one of which may be None."""
    low, high = options.get("min", a_min), options.get("max", a_max)

    def clipped(x: Any, *limits: Any, out: Any = None) -> Any:
        left = list(limits)
        ends: list[Any] = [None if end is None else left.pop(0) for end in (low, high)]
        made: Any = np.clip(x, ends[0], ends[1], out=None if out is None else out[0])
        return made

    given = [a, *(end for end in (low, high) if end is not None)]
    return elementwise.apply(clipped, given, out=None if out is None else (out,), name="clip")


def astype(
    x: Distributed, dtype: npt.DTypeLike, *, casting: Any = "unsafe", copy: bool = True
) -> Any:
    """Return it with another dtype. Local, unless it is Partial and the cast is no widening."""
    target = np.dtype(dtype)
    if target == x.dtype and not copy:
        return x
    wider = np.issubdtype(x.dtype, np.inexact) and np.can_cast(x.dtype, target)
    sums = all(op in ("sum", "mean") for _, op in x.layout.partition.partial)
    given = x if wider and sums else x.reduced()
    local = given.to_local().astype(target, casting=casting)
    return type(x).wrap(local, given.layout)


def _same_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a function of one array and options, element by element."""

    def rule(x: Any, *args: Any, **options: Any) -> Any:
        if options.get("out") is not None or not options.get("copy", True):
            raise UnsupportedError(f"{function.__name__}: out= and copy=False have no rule.")
        return elementwise.apply(
            lambda local: function(local, *args, **options), (x,), name=function.__name__
        )

    return rule


_SAME_SHAPE: tuple[Callable[..., Any], ...] = (
    *(np.round, np.around, np.nan_to_num, np.real, np.imag, np.angle, np.i0, np.sinc, np.fix),
    *(np.isneginf, np.isposinf),
)
for _function in _SAME_SHAPE:
    register_rule(_function)(_same_shape(_function))


def _like(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a function that makes an array like another."""

    def rule(x: Distributed, *args: Any, **options: Any) -> Any:
        if options.get("shape") is not None:
            raise UnsupportedError(f"{function.__name__}: shape= has no rule.")
        given = relaid(x.layout, unreduced(x.layout.partition, ()))
        return type(x).wrap(function(x.to_local(), *args, **options), given)

    return rule


_LIKE: tuple[Callable[..., Any], ...] = (
    *(np.zeros_like, np.ones_like, np.empty_like, np.full_like),
)
for _function in _LIKE:
    register_rule(_function)(_like(_function))


@register_rule(np.copy)
def copy(x: Distributed, **options: Any) -> Any:
    """Return it with memory of its own. Local."""
    return type(x).wrap(np.array(x.to_local(), copy=True), x.layout)


# -- reductions -----------------------------------------------------------------------------------


def _no(verb: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise UnsupportedError(f"{verb}: {name}= has no rule.")


def _simple(name: str) -> Callable[..., Any]:
    def rule(
        a: Distributed,
        axis: Any = None,
        dtype: npt.DTypeLike | None = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        _no(name, out=out, initial=None if initial is np._NoValue else initial, where=_told(where))
        return reductions.simple(name, a, axis, keepdims=_flag(keepdims), dtype=dtype)

    return rule


def _short(name: str) -> Callable[..., Any]:
    """Return the rule of a reduction that takes no dtype."""
    rule = _simple(name)

    def short(a: Distributed, axis: Any = None, *rest: Any, **options: Any) -> Any:
        return rule(a, axis, None, *rest, **options)

    return short


def _told(value: Any) -> Any:
    """Return what was given; NumPy's mark for nothing, and True, are nothing."""
    return None if value is np._NoValue or value is True else value


def _flag(keepdims: Any) -> bool:
    return False if keepdims is np._NoValue else bool(keepdims)


register_rule(np.sum)(_simple("sum"))
register_rule(np.prod)(_simple("prod"))
_SHORT: tuple[tuple[Callable[..., Any], str], ...] = (
    *((np.max, "max"), (np.amax, "max"), (np.min, "min"), (np.amin, "min")),
    *((np.any, "any"), (np.all, "all")),
)
for _function, _name in _SHORT:
    register_rule(_function)(_short(_name))


@register_rule(np.count_nonzero)
def _count_nonzero(a: Distributed, axis: Any = None, *, keepdims: bool = False) -> Any:
    return reductions.simple("count_nonzero", a, axis, keepdims=keepdims)


@register_rule(np.mean)
def _mean(
    a: Distributed,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = False,
    *,
    where: Any = None,
) -> Any:
    _no("mean", out=out, where=_told(where))
    return reductions.mean(a, axis, dtype=dtype, keepdims=_flag(keepdims))


def _spread(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def rule(
        a: Distributed,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        ddof: float = 0,
        keepdims: Any = False,
        *,
        where: Any = None,
        mean: Any = None,
        correction: Any = None,
    ) -> Any:
        _no(name, out=out, where=_told(where), mean=_told(mean))
        given = _told(correction)
        return function(
            a, axis, dtype=dtype, ddof=ddof if given is None else given, keepdims=_flag(keepdims)
        )

    return rule


register_rule(np.var)(_spread(reductions.var, "var"))
register_rule(np.std)(_spread(reductions.std, "std"))


def _arg(name: str) -> Callable[..., Any]:
    def rule(a: Distributed, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        _no(name, out=out)
        return reductions.arg(name, a, axis, keepdims=_flag(keepdims))

    return rule


register_rule(np.argmax)(_arg("argmax"))
register_rule(np.argmin)(_arg("argmin"))
register_rule(np.linalg.norm)(reductions.norm)


# -- sums of products ------------------------------------------------------------------------------


register_rule(np.matmul)(contraction.matmul)
register_rule(np.tensordot)(contraction.tensordot)
register_rule(np.einsum)(contraction.einsum)


@register_rule(np.dot)
def _dot(a: Any, b: Any, out: Any = None) -> Any:
    _no("dot", out=out)
    if not np.ndim(a) * np.ndim(b):
        return elementwise.apply(np.multiply, (a, b))
    return contraction.tensordot(a, b, ([-1], [-2 if np.ndim(b) > 1 else 0]))


@register_rule(np.inner)
def _inner(a: Any, b: Any) -> Any:
    if not np.ndim(a) * np.ndim(b):
        return elementwise.apply(np.multiply, (a, b))
    return contraction.tensordot(a, b, ([-1], [-1]))


@register_rule(np.outer)
def _outer(a: Distributed, b: Distributed) -> Any:
    return contraction.einsum("i,j->ij", a, b)


# -- what is known without data -------------------------------------------------------------------


@register_rule(np.shape)
def _shape(a: Distributed) -> tuple[int, ...]:
    return a.shape


@register_rule(np.ndim)
def _ndim(a: Distributed) -> int:
    return a.ndim


@register_rule(np.size)
def _size(a: Distributed, axis: Any = None) -> int:
    return a.size if axis is None else a.shape[axis]


@register_rule(np.result_type)
def _result_type(*given: Any) -> np.dtype[Any]:
    return np.result_type(*(x.dtype if isinstance(x, Distributed) else x for x in given))


@register_rule(np.iscomplexobj)
def _iscomplexobj(x: Distributed) -> bool:
    return x.dtype.kind == "c"


@register_rule(np.isrealobj)
def _isrealobj(x: Distributed) -> bool:
    return x.dtype.kind != "c"


@register_rule(np.array_equal)
def _array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    if np.shape(a1) != np.shape(a2):
        return False
    same = elementwise.apply(np.equal, (a1, a2))
    if equal_nan:
        same = elementwise.apply(lambda a, b, s: s | ((a != a) & (b != b)), (a1, a2, same))
    return bool(reductions.simple("all", same))


@register_rule(np.allclose)
def _allclose(a: Any, b: Any, *limits: Any, **options: Any) -> bool:
    return bool(reductions.simple("all", _isclose(a, b, *limits, **options)))


@register_rule(np.isclose)
def _isclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    def close(x: Any, y: Any) -> Any:
        return np.isclose(x, y, rtol, atol, equal_nan)

    return elementwise.apply(close, (a, b), name="isclose")

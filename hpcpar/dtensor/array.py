"""DTensor: NumPy's interface to an array that lies on a mesh."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ..errors import ArgumentError, UnsupportedError
from . import (
    contraction,
    dispatch,
    elementwise,
    functions,
    indexing,
    order_functions,  # noqa: F401 - its rules
    reductions,
    scans,
    shape_functions,
    shapes,
    sorting,
    taking,
)
from .base import Distributed, replicated

__all__ = ["DTensor"]


def _binary(ufunc: Callable[..., Any]) -> Callable[[DTensor, Any], Any]:
    def method(self: DTensor, other: Any) -> Any:
        layout, kind = self.layout, type(other)
        if not layout.partition.partial:  # the common cases at once
            if kind is DTensor and other.layout is layout:
                return DTensor.wrap(ufunc(self._local, other._local), layout)
            if kind is float or kind is int:
                return DTensor.wrap(ufunc(self._local, other), layout)
        return elementwise.apply(ufunc, (self, other)) if _fits(other) else NotImplemented

    return method


def _reflected(ufunc: Callable[..., Any]) -> Callable[[DTensor, Any], Any]:
    def method(self: DTensor, other: Any) -> Any:
        return elementwise.apply(ufunc, (other, self)) if _fits(other) else NotImplemented

    return method


def _in_place(ufunc: np.ufunc) -> Callable[[DTensor, Any], Any]:
    def method(self: DTensor, other: Any) -> Any:
        layout, kind = self.layout, type(other)
        if not layout.partition.partial:
            if kind is DTensor and other.layout is layout:
                ufunc(self._local, other._local, self._local)
                return self
            if kind is float or kind is int:
                ufunc(self._local, other, self._local)
                return self
        elif not self.shape:  # a number that is still to be reduced
            return elementwise.apply(ufunc, (self, other))
        return elementwise.apply(ufunc, (self, other), out=(self,))

    return method


def _unary(ufunc: np.ufunc) -> Callable[[DTensor], Any]:
    def method(self: DTensor) -> Any:
        return elementwise.apply(ufunc, (self,))

    return method


def _operators(
    ufunc: np.ufunc,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    return _binary(ufunc), _reflected(ufunc), _in_place(ufunc)


def _at_once(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> DTensor | None:
    """Run a ufunc of arrays that lie alike, and of numbers; None for what is less common."""
    layout, locals_ = None, []
    for x in inputs:
        kind = type(x)
        if kind is DTensor:
            if layout is None:
                layout = x.layout
            elif x.layout is not layout:
                return None
            locals_.append(x._local)
        elif kind is float or kind is int:
            locals_.append(x)
        else:
            return None
    if layout is None or layout.partition.partial or ufunc.nout > 1:
        return None
    return DTensor.wrap(ufunc(*locals_), layout)


def _general(ufunc: np.ufunc) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def method(self: DTensor, other: Any) -> Any:
        return elementwise.apply(ufunc, (self, other)) if _fits(other) else NotImplemented

    return method, _reflected(ufunc)


def _fits(other: Any) -> bool:
    """Whether it is for us to answer; another library's arrays may know more."""
    return isinstance(other, Distributed | np.ndarray | np.generic | bool | int | float | complex)


class DTensor(Distributed):
    """An array whose parts lie on the ranks of a mesh.

    ``DTensor(local, layout)`` takes this rank's part as it is, without a copy or a word to others;
    `distribute` cuts an array, `from_local` joins parts of any lengths. NumPy's functions,
    operators and methods work on it; those that must move an array say so under
    `dtensor.comm_mode`, those without a rule are an error unless `dtensor.fallback` allows to
    gather.

    Parameters
    ----------
    local : ndarray or None
        What this rank holds, of the layout's local shape and dtype; None outside the mesh.
    layout : Layout

    Raises
    ------
    ArgumentError
        Another shape or dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     mesh = hp.init_device_mesh((2,), ("dp",), group=group)
    ...     x = hp.distribute(np.arange(5.0), mesh, hp.Shard(0))
    ...     return float((2 * x + 1).sum()), x.to_local().tolist()
    >>> run_ranks(2, body)
    [(25.0, [0.0, 1.0, 2.0]), (25.0, [3.0, 4.0])]
    """

    __slots__ = ()
    __array_priority__ = 1000.0

    # -- NumPy's protocols -----------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Run a ufunc on the parts."""
        if method == "__call__" and not options and ufunc.signature is None:
            result = _at_once(ufunc, inputs)
            if result is not None:
                return result
        return dispatch.ufunc(ufunc, method, inputs, options)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run one of NumPy's functions by its rule."""
        return dispatch.call(func, args, kwargs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Refuse to be gathered without a word; a replicated array is there already."""
        if self.layout != replicated(self.layout):
            raise UnsupportedError(
                f"numpy.asarray of {self.layout}: that would gather it. Use .full() for the whole "
                "array, .to_local() for this rank's part."
            )
        return np.array(self._local, dtype, copy=copy)

    # -- numbers -----------------------------------------------------------------------------------

    def item(self) -> Any:
        """Return the only element as a Python number. Collective over the mesh.

        Raises
        ------
        ArgumentError
            There are several elements.
        """
        if self.size != 1:
            raise ArgumentError(f"an array of shape {self.shape} is no single element.")
        return self.full().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a DTensor without axes")
        return self.shape[0]

    # -- parts -------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Distributed) and index.dtype.kind in "iu":
            return taking.take(self, index, 0)
        return indexing.get(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        indexing.put(self, index, value)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    def __repr__(self) -> str:
        return f"DTensor({self._local!r}, {self.layout!r})"

    # -- operators ---------------------------------------------------------------------------------

    __hash__ = None  # type: ignore[assignment]  # == compares elements

    __add__, __radd__, __iadd__ = _operators(np.add)
    __sub__, __rsub__, __isub__ = _operators(np.subtract)
    __mul__, __rmul__, __imul__ = _operators(np.multiply)
    __truediv__, __rtruediv__, __itruediv__ = _operators(np.true_divide)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operators(np.floor_divide)
    __mod__, __rmod__, __imod__ = _operators(np.remainder)
    __pow__, __rpow__ = _binary(operator.pow), _reflected(operator.pow)  # which squares, say
    __ipow__ = _in_place(np.power)
    __and__, __rand__, __iand__ = _operators(np.bitwise_and)
    __or__, __ror__, __ior__ = _operators(np.bitwise_or)
    __xor__, __rxor__, __ixor__ = _operators(np.bitwise_xor)
    __lshift__, __rlshift__, __ilshift__ = _operators(np.left_shift)
    __rshift__, __rrshift__, __irshift__ = _operators(np.right_shift)
    __divmod__, __rdivmod__ = _general(np.divmod)
    __lt__, __le__ = _binary(np.less), _binary(np.less_equal)
    __gt__, __ge__ = _binary(np.greater), _binary(np.greater_equal)
    __eq__, __ne__ = _binary(np.equal), _binary(np.not_equal)
    __neg__, __pos__ = _unary(np.negative), _unary(np.positive)
    __abs__, __invert__ = _unary(np.absolute), _unary(np.invert)

    def __matmul__(self, other: Any) -> Any:
        return contraction.matmul(self, other) if _fits(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return contraction.matmul(other, self) if _fits(other) else NotImplemented

    def __imatmul__(self, other: Any) -> Any:
        raise UnsupportedError("x @= y: write x[...] = x @ y, or x = x @ y for a new array.")

    def dot(self, other: Any) -> Any:
        """Return the sum of products over the last axis of this and the last but one of that."""
        return dispatch.call(np.dot, (self, other), {})

    # -- methods -----------------------------------------------------------------------------------

    @property
    def real(self) -> Self:
        """Real parts."""
        made: Self = dispatch.call(np.real, (self,), {})
        return made

    @property
    def imag(self) -> Self:
        """Imaginary parts."""
        made: Self = dispatch.call(np.imag, (self,), {})
        return made

    def conj(self) -> Self:
        """Return the complex conjugates. Local."""
        return self.wrap(self._local.conj(), self.layout)

    def astype(self, dtype: Any, *, casting: Any = "unsafe", copy: bool = True) -> Self:
        """Return it with another dtype. Local, unless it is Partial and the cast is no widening."""
        made: Self = functions.astype(self, dtype, casting=casting, copy=copy)
        return made

    @property
    def T(self) -> Self:  # noqa: N802 - NumPy's name
        """The axes in reverse order: a view."""
        return shapes.transpose(self)

    def transpose(self, *axes: Any) -> Self:
        """Return it with its axes in another order: a view. Local."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return shapes.transpose(self, given or None)

    def swapaxes(self, axis1: int, axis2: int) -> Self:
        """Return it with two axes exchanged: a view. Local."""
        made: Self = dispatch.call(np.swapaxes, (self, axis1, axis2), {})
        return made

    def squeeze(self, axis: Any = None) -> Self:
        """Return it without axes of one element. Local."""
        made: Self = shape_functions.squeeze(self, axis)
        return made

    def reshape(self, *shape: Any) -> Self:
        """Return it in another shape. Local where sharded axes can stay where they are."""
        given = shape[0] if len(shape) == 1 else shape
        return shapes.reshape(self, given)

    def flatten(self) -> Self:
        """Return it as one axis, in C order, with memory of its own."""
        return self.ravel().copy()

    def tolist(self) -> Any:
        """Return the whole array as lists, on every rank. Collective over the mesh."""
        return self.full().tolist()

    def sort(self, axis: int = -1) -> None:
        """Sort it in place, where it lies. Collective where the axis is sharded."""
        self[...] = sorting.sort(self, axis)

    def ravel(self) -> Self:
        """Return it as one axis, in C order."""
        return shapes.reshape(self, (-1,))

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> Self:
        """Return running sums. Collective where the axis is sharded."""
        return scans.accumulate("sum", self, axis, dtype)

    def cumprod(self, axis: int | None = None, dtype: Any = None) -> Self:
        """Return running products. Collective where the axis is sharded."""
        return scans.accumulate("prod", self, axis, dtype)

    def argsort(self, axis: int | None = -1) -> Self:
        """Return the numbers of the elements in sorted order. Collective if sharded."""
        return sorting.argsort(self, axis)

    def nonzero(self) -> tuple[Self, ...]:
        """Return the places of what is not zero. Collective where it is sharded."""
        return sorting.nonzero(self)

    def take(self, indices: Any, axis: int | None = None) -> Self:
        """Return the elements with some numbers along an axis. Collective where it is sharded."""
        return taking.take(self, indices, axis)

    def copy(self) -> Self:
        """Return it with memory of its own. Local."""
        made: Self = dispatch.call(np.copy, (self,), {})
        return made

    def fill(self, value: Any) -> None:
        """Set all elements. Local."""
        self[...] = value

    def clip(self, min: Any = None, max: Any = None, **options: Any) -> Self:
        """Return it between two limits."""
        made: Self = functions.clip(self, min, max, **options)
        return made

    def round(self, decimals: int = 0) -> Self:
        """Return it rounded."""
        made: Self = dispatch.call(np.round, (self, decimals), {})
        return made

    def sum(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Self:
        """Return the sum over axes: Partial where these are sharded. Local."""
        return reductions.simple("sum", self, axis, dtype=dtype, keepdims=keepdims)

    def prod(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Self:
        """Return the product over axes: Partial where these are sharded. Local."""
        return reductions.simple("prod", self, axis, dtype=dtype, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Self:
        """Return the largest over axes: Partial where these are sharded. Local."""
        return reductions.simple("max", self, axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Self:
        """Return the smallest over axes: Partial where these are sharded. Local."""
        return reductions.simple("min", self, axis, keepdims=keepdims)

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Self:
        """Return whether any element is true: Partial where the axes are sharded. Local."""
        return reductions.simple("any", self, axis, keepdims=keepdims)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Self:
        """Return whether all elements are true: Partial where the axes are sharded. Local."""
        return reductions.simple("all", self, axis, keepdims=keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Self:
        """Return the mean over axes: Partial where these are sharded. Local."""
        return reductions.mean(self, axis, dtype=dtype, keepdims=keepdims)

    def var(
        self, axis: Any = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False
    ) -> Self:
        """Return the variance over axes. Collective where these are sharded."""
        return reductions.var(self, axis, dtype=dtype, ddof=ddof, keepdims=keepdims)

    def std(
        self, axis: Any = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False
    ) -> Self:
        """Return the standard deviation over axes. Collective where these are sharded."""
        return reductions.std(self, axis, dtype=dtype, ddof=ddof, keepdims=keepdims)

    def argmax(self, axis: Any = None, *, keepdims: bool = False) -> Self:
        """Return where the largest is. Collective where the axis is sharded."""
        return reductions.arg("argmax", self, axis, keepdims=keepdims)

    def argmin(self, axis: Any = None, *, keepdims: bool = False) -> Self:
        """Return where the smallest is. Collective where the axis is sharded."""
        return reductions.arg("argmin", self, axis, keepdims=keepdims)

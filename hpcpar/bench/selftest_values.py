"""What ranks of ``hpcpar selftest`` pass and must get, computed by NumPy. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .._arrays import Array, as_bytes, contiguous
from ..comm.reductions import neutral
from ..random import Key, bits
from .cases import UFUNCS
from .selftest_case import Case

__all__ = ["differing", "expected", "operands"]

# Larger arrays repeat a pattern of this many 8-byte words, which is no multiple of any chunk.
_PERIOD = 8191
_PRODUCTS = np.array([1, -1, 2, 0.5])
_COMPLEX_PRODUCTS = np.array([1, -1, 1j, -1j, 1 + 1j, 1, 1, 1])
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_UFUNCS = UFUNCS | {"premul_sum": np.add}


def operands(case: Case, call: int) -> list[Array]:
    """Return what each member passes in one of the case's calls, other bits on every rank.

    Local, pure. Sums and products of the numbers are exact in every accumulator, unless the case's
    data are "rough".
    """
    shapes = [case.shape_of(member) for member in range(len(case.members))]
    # Numbers are made of one byte each, but for bits and integers, which take all their bytes.
    wide = case.data == "bits" or case.dtype.kind in "iu"
    unit = case.dtype.itemsize if wide else 4 if case.data == "rough" else 1
    needs = [math.prod(shape) * unit for shape in shapes]
    words = min(_PERIOD, -(-max(needs) // 8))
    key = Key(case.seed).child("values").child(case.size).child(case.number).child(call)
    drawn = bits(key, (len(shapes), words), np.uint64).view(np.uint8)
    rows = zip(drawn, needs, shapes, strict=True)
    return [_numbers(case, _repeated(row, need)).reshape(shape) for row, need, shape in rows]


def _repeated(row: Array, need: int) -> Array:
    return row[:need] if need <= row.size else np.resize(row, need)


def _numbers(case: Case, drawn: Array) -> Array:
    """Turn bytes into numbers that suit the op."""
    dtype = case.dtype
    if dtype.kind == "b":
        return (drawn & 1).astype(bool)
    if case.data == "bits" or dtype.kind in "iu":
        numbers: Array = drawn.view(dtype)
        return np.bitwise_or(numbers, dtype.type(1)) if case.op == "prod" else numbers
    if case.data == "rough":
        # 24 bits of mantissa, and magnitudes that differ by up to 2**7.
        word = drawn.view(np.uint32)
        fraction = (word >> 8).astype(np.float64) / 2**24 - 0.5
        return np.asarray(np.ldexp(fraction, word & 7), dtype)
    if case.op == "prod":
        factors: Array = _COMPLEX_PRODUCTS if dtype.kind == "c" else _PRODUCTS
        return np.asarray(factors[drawn % factors.size], dtype)
    whole = (drawn & 15).astype(np.float32) - 8
    if case.op in ("min", "max"):
        whole[drawn >= 252] = np.nan
    if dtype.kind == "c":
        return (whole + 1j * (drawn >> 4)).astype(dtype)
    return whole.astype(dtype)


def expected(case: Case, member: int, given: Sequence[Array]) -> Array | None:
    """Return what a member must get; None where it gets nothing. Local, pure.

    Parameters
    ----------
    case : Case
    member : int
        Rank in the group.
    given : sequence of ndarray
        What `operands` returned.
    """
    if case.verb == "barrier" or (case.verb in ("reduce", "gather") and member != case.root):
        return None
    if case.kind.reduces:
        upto = member + (not case.exclusive) if case.verb == "scan" else len(given)
        whole = _reduced(case, given[:upto])
        return _cut(case, whole, 0)[member] if case.verb == "reduce_scatter" else whole
    if case.verb == "broadcast":
        return given[case.root]
    if case.verb == "scatter":
        return _cut(case, given[case.root], case.root)[member]
    if case.verb == "all_to_all":
        parts = [_cut(case, x, source)[member] for source, x in enumerate(given)]
        return np.concatenate(parts, case.axis)
    if case.kind.joins:
        return np.concatenate(given, case.axis)
    sources = {target: source for source, target in case.pairs}
    return given[sources[member]] if member in sources else None


def _cut(case: Case, x: Array, member: int) -> list[Array]:
    return np.split(x, np.cumsum(case.table[member])[:-1], case.axis)


def _reduced(case: Case, given: Sequence[Array]) -> Array:
    """Reduce in rank order; the accumulator of narrow floats is float32, as the verbs promise."""
    dtype = case.dtype
    if not given:
        return np.full(case.shape_of(0), neutral(case.op.replace("premul_", ""), dtype))
    narrow = dtype.itemsize < 4 and dtype.kind not in "biu"
    wide = np.dtype(np.float64 if case.data == "rough" else np.float32 if narrow else dtype)
    factors = case.weights or (case.factor,) * len(given)
    total: Array | None = None
    for x, factor in zip(given, factors, strict=True):
        part = x.astype(wide) if factor == 1 else x.astype(wide) * wide.type(factor)
        total = part if total is None else _UFUNCS[case.op](total, part)
    assert total is not None
    if case.op == "mean":
        total = _divided(total, sum(case.weights) or len(given))
    return total if case.data == "rough" else total.astype(dtype)


def _divided(total: Array, divisor: int) -> Array:
    """Divide; complex numbers component by component, which complex division does not."""
    if total.dtype.kind != "c":
        return np.asarray(total / total.dtype.type(divisor))
    parts = np.ascontiguousarray(total).reshape(-1).view(total.real.dtype)
    divided: Array = parts / parts.dtype.type(divisor)
    return divided.view(total.dtype).reshape(total.shape)


def differing(case: Case, got: Array, want: Array, given: Sequence[Array]) -> Array:
    """Return the flat indices of the elements that are not as they must be. Local, pure.

    Moved elements agree bit by bit. Reduced ones agree as numbers: the sign of a zero and which
    NaN it is are not NumPy's to say.
    """
    if case.data == "rough":
        return _far(case, got, want, given)
    a, b = contiguous(got), contiguous(want)
    if np.array_equal(as_bytes(a), as_bytes(b)):
        return np.empty(0, np.int64)
    a, b = a.reshape(-1), b.reshape(-1)
    if not case.kind.reduces:
        bytes_differ = (as_bytes(a) != as_bytes(b)).reshape(a.size, -1)
        return np.flatnonzero(bytes_differ.any(axis=1))
    same = a == b
    if case.op in ("min", "max"):
        same |= (a != a) & (b != b)
    return np.flatnonzero(~same)


def _far(case: Case, got: Array, want: Array, given: Sequence[Array]) -> Array:
    """Compare sums that are rounded: off by no more than the roundings of their terms."""
    size = np.zeros(want.shape)
    for x in given:
        whole = np.abs(x.astype(np.float64))
        size = size + (whole if whole.shape == want.shape else whole.max(initial=0.0))
    bound = (len(given) + 1) * _EPS[case.dtype.name] * size
    near = np.abs(got.astype(np.float64) - want) <= bound
    return np.flatnonzero(~near)

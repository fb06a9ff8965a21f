"""From any array to flat blocks per rank and back: the only place that cuts and joins.

`Memory` does it with real arrays; `NoMemory` with stride-0 arrays, for plans of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .._arrays import Array, as_bytes, contiguous, count_of
from .._core import PackPlan
from ..errors import ArgumentError

__all__ = ["Memory", "NoMemory", "block_shape", "check_out", "rows_before"]


def block_shape(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    """Return `shape` with `length` along `axis`."""
    return (*shape[:axis], length, *shape[axis + 1 :])


def rows_before(shape: tuple[int, ...], axis: int) -> int:
    """Return how many separate rows lie before `axis`; 1 means blocks are contiguous."""
    return count_of(shape[:axis])


class Memory:
    """Buffers of real backends."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new native array."""
        return np.empty(shape, dtype.newbyteorder("="))

    def pack(self, x: Array) -> Array:
        """Return `x` flat, C-contiguous and native; a copy only where needed."""
        return contiguous(x).reshape(-1)

    def pack_all(self, arrays: Sequence[Array]) -> Array:
        """Return arrays of one dtype, of any layout, one after the other; one call for all."""
        if len(arrays) == 1:
            return self.pack(arrays[0])
        native = [a if a.dtype.isnative else contiguous(a) for a in arrays]
        plan = _pack_plan(tuple((a.shape, a.dtype) for a in native))
        flat = self.empty((sum(a.size for a in native),), native[0].dtype)
        plan.pack(native, flat.view(np.uint8))
        return flat

    def bytes(self, flat: Array) -> Array:
        """Return the bytes of a flat buffer: moving needs no arithmetic, so any dtype goes."""
        return as_bytes(flat)

    def cut(self, x: Array, sizes: Sequence[int], axis: int) -> Array:
        """Return the blocks of `x` along `axis`, one after the other, each C-contiguous."""
        if rows_before(x.shape, axis) == 1:
            return self.pack(x)
        flat = self.empty((x.size,), x.dtype)
        end = 0
        for part in np.split(x, np.cumsum(sizes)[:-1], axis=axis):
            start, end = end, end + part.size
            flat[start:end].reshape(part.shape)[...] = part
        return flat

    def join(self, flat: Array, shape: tuple[int, ...], sizes: Sequence[int], axis: int) -> Array:
        """Return blocks that lie one after the other as one array of `shape`."""
        if rows_before(shape, axis) == 1:
            return flat.reshape(shape)
        ends = np.cumsum([count_of(block_shape(shape, axis, n)) for n in sizes])[:-1]
        blocks = np.split(flat, ends)
        parts = [b.reshape(block_shape(shape, axis, n)) for b, n in zip(blocks, sizes, strict=True)]
        return np.concatenate(parts, axis=axis)


class NoMemory(Memory):
    """Buffers of the fake backend: one element, seen as any shape."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a read-only stride-0 array of zeros."""
        return np.broadcast_to(np.zeros((), dtype.newbyteorder("=")), shape)

    def pack(self, x: Array) -> Array:
        """Return a stride-0 stand-in for `x`."""
        return self.empty((x.size,), x.dtype)

    def pack_all(self, arrays: Sequence[Array]) -> Array:
        """Return a stride-0 stand-in for all."""
        return self.empty((sum(a.size for a in arrays),), arrays[0].dtype)

    def bytes(self, flat: Array) -> Array:
        """Return a stride-0 stand-in for the bytes."""
        return self.empty((flat.nbytes,), np.dtype(np.uint8))

    def cut(self, x: Array, sizes: Sequence[int], axis: int) -> Array:
        """Return a stride-0 stand-in for the blocks of `x`."""
        return self.pack(x)

    def join(self, flat: Array, shape: tuple[int, ...], sizes: Sequence[int], axis: int) -> Array:
        """Return a stride-0 array of `shape`."""
        return self.empty(shape, flat.dtype)


@lru_cache(64)  # trees of one structure come again and again
def _pack_plan(layouts: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]) -> PackPlan:
    return PackPlan(layouts, align=1)


def check_out(out: Array, shape: tuple[int, ...], dtype: np.dtype[Any], verb: str) -> None:
    """Refuse an `out` that cannot take a result of `shape` and `dtype`.

    Raises
    ------
    ArgumentError
        Read-only, other shape or other dtype (byte order aside).
    """
    if not out.flags.writeable:
        raise ArgumentError(f"{verb}: out is read-only. Pass out=None to allocate the result.")
    if out.shape != shape:
        raise ArgumentError(
            f"{verb}: out has shape {out.shape}, needs {shape}. Pass out=None to allocate it."
        )
    if out.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise ArgumentError(
            f"{verb}: out has dtype {out.dtype}, needs {dtype}. Pass out=None to allocate it."
        )

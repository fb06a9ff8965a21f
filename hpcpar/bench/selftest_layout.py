"""Arrays of every layout, in memory whose every other byte is watched."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .._arrays import Array

__all__ = ["LAYOUTS", "Arena", "Laid", "lay", "layouts_for"]

#: Layouts by name; what an array cannot have is not in `layouts_for`.
LAYOUTS = ("C", "fortran", "strided", "reversed", "unaligned", "big-endian", "read-only")
_MARGIN = 64
_POISON = 0x5A


class Arena:
    """A piece of memory that the arrays of one case after the other lie in."""

    def __init__(self, memory: Array) -> None:
        self._memory, self._used = memory, 0

    def clear(self) -> None:
        """Begin anew: nobody needs what was taken before."""
        self._used = 0

    def take(self, nbytes: int) -> Array | None:
        """Return the next bytes; None: there are not that many."""
        begin = -(-self._used // _MARGIN) * _MARGIN
        if begin + nbytes > self._memory.size:
            return None
        self._used = begin + nbytes
        return self._memory[begin : self._used]


class Laid(NamedTuple):
    """An array and the bytes around and between its elements.

    Attributes
    ----------
    view : ndarray
        The array.
    base : ndarray of uint8
        All bytes of its memory; those that are not its own hold a pattern.
    """

    view: Array
    base: Array

    def strays(self) -> int:
        """Count the bytes beside the elements that were written to; ends the array's life."""
        # An array, not a number: numbers that are no bool, or NaN, would not keep their bits.
        element = np.full(self.view.dtype.itemsize, _POISON, np.uint8).view(self.view.dtype)
        self.view[...] = element.reshape(())
        return int(np.count_nonzero(self.base != _POISON))


def layouts_for(dtype: np.dtype[Any], ndim: int) -> tuple[str, ...]:
    """Return the layouts that differ from "C" for this dtype and number of axes. Local, pure."""
    impossible = set()
    if ndim == 0:
        impossible |= {"strided", "reversed"}
    if ndim < 2:
        impossible.add("fortran")
    if dtype.itemsize == 1:
        impossible |= {"unaligned", "big-endian"}
    if dtype.isbuiltin != 1:  # dtypes of ml_dtypes know one byte order
        impossible.add("big-endian")
    return tuple(name for name in LAYOUTS if name not in impossible)


def lay(
    shape: tuple[int, ...], dtype: np.dtype[Any], layout: str, arena: Arena | None = None
) -> Laid:
    """Return an array of `shape` in memory of its own, every byte of it poisoned. Local.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype
        Native.
    layout : str
        One of `LAYOUTS`. "read-only" is left to be set when the array has its values.
    arena : Arena, optional
        Where the memory comes from, if it has enough.
    """
    kept = dtype.newbyteorder(">") if layout == "big-endian" else dtype
    start = _MARGIN + (layout == "unaligned")
    held = (*shape[:-1], 2 * shape[-1]) if layout == "strided" else shape
    nbytes = math.prod(held) * dtype.itemsize
    room = nbytes + 2 * _MARGIN + 1
    taken = None if arena is None else arena.take(room)
    base = np.empty(room, np.uint8) if taken is None else taken
    base[...] = _POISON
    flat = base[start : start + nbytes].view(kept)
    if layout == "fortran":
        return Laid(flat.reshape(held[::-1]).T, base)
    whole = flat.reshape(held)
    if layout == "strided":
        return Laid(whole[..., ::2], base)
    if layout == "reversed":
        return Laid(whole[(slice(None, None, -1),) * len(shape)], base)
    return Laid(whole, base)

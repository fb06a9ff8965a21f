"""Counter-based random numbers: the only generator in the house.

An element's number depends on its key and its index alone (Philox4x32-10), so a slice that
one rank draws has the same bits as that slice of the whole, on any mesh and any machine.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._core import philox_fill
from .errors import ArgumentError, UnsupportedError

__all__ = ["Key", "bits", "normal", "uniform"]

_WORD = 1 << 64
_DTYPES = {
    "bits": ("uint32", "uint64"),
    "uniform": ("float32", "float64"),
    "normal": ("float32", "float64"),
}


@dataclass(frozen=True, slots=True)
class Key:
    """What numbers are drawn from: a seed and a stream.

    Parameters
    ----------
    seed : int
        The run's seed, 0 <= seed < 2**64: the two key words of the generator.
    stream : int
        Separates the users of one seed, 0 <= stream < 2**64: counter words 2 and 3. Made by
        `child` rather than by hand.

    Raises
    ------
    ArgumentError
        A number is out of range.

    Examples
    --------
    >>> from hpcpar.random import Key
    >>> key = Key(7)
    >>> key.child("blocks.0.w") == key.child("blocks").child("0.w")
    False
    >>> key.child("blocks.0.w") == Key(7).child("blocks.0.w")
    True
    """

    seed: int
    stream: int = 0

    def __post_init__(self) -> None:
        for name, value in (("seed", self.seed), ("stream", self.stream)):
            if not 0 <= operator.index(value) < _WORD:
                raise ArgumentError(f"Key: {name} is {value}, needs 0 <= {name} < 2**64.")

    def child(self, name: str | int) -> Key:
        """Derive the key of a part, a parameter or a step. Local.

        Parameters
        ----------
        name : str or int
            Hashed (BLAKE2b), so it needs no numbering that all ranks would have to agree on;
            1 and "1" differ.

        Returns
        -------
        Key
            Same seed, another stream; two names collide with probability 2**-64.
        """
        text = f"s{name}" if isinstance(name, str) else f"i{operator.index(name)}"
        digest = blake2b(
            text.encode(), digest_size=8, key=self.stream.to_bytes(8, "little")
        ).digest()
        return Key(self.seed, int.from_bytes(digest, "little"))


def bits(
    key: Key, shape: int | tuple[int, ...], dtype: DTypeLike = np.uint32, start: int = 0
) -> NDArray[Any]:
    """Draw random bits. Local.

    Parameters
    ----------
    key : Key
        Seed and stream.
    shape : int or tuple of int
        Of the result.
    dtype : dtype
        uint32 or uint64.
    start : int
        Index of the first element, in C order, of the array that this is a slice of.

    Returns
    -------
    ndarray
        ``shape``, ``dtype``.

    Raises
    ------
    UnsupportedError
        Another dtype.
    ArgumentError
        A negative axis, or indices outside 0 <= i < 2**64.

    Examples
    --------
    >>> from hpcpar.random import Key, bits
    >>> bits(Key(0), 1).tolist()
    [1713891541]
    """
    return _draw("bits", key, shape, dtype, start)


def uniform(
    key: Key, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32, start: int = 0
) -> NDArray[Any]:
    """Draw from the uniform distribution on [0, 1). Local.

    Parameters
    ----------
    key, shape, start
        As for `bits`.
    dtype : dtype
        float32 (multiples of 2**-24) or float64 (multiples of 2**-53).

    Returns
    -------
    ndarray
        ``shape``, ``dtype``.

    Raises
    ------
    UnsupportedError, ArgumentError
        As for `bits`.

    Examples
    --------
    A dropout mask of rows 2 and 3 of a (4, 8) array, as the whole array has it:

    >>> from hpcpar.random import Key, uniform
    >>> key = Key(1).child("dropout").child(17)
    >>> whole = uniform(key, (4, 8)) < 0.9
    >>> part = uniform(key, (2, 8), start=2 * 8) < 0.9
    >>> bool((part == whole[2:]).all())
    True
    """
    return _draw("uniform", key, shape, dtype, start)


def normal(
    key: Key, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32, start: int = 0
) -> NDArray[Any]:
    """Draw from the normal distribution with mean 0 and variance 1. Local.

    Parameters
    ----------
    key, shape, start
        As for `bits`.
    dtype : dtype
        float32 or float64; both are computed in float64.

    Returns
    -------
    ndarray
        ``shape``, ``dtype``.

    Raises
    ------
    UnsupportedError, ArgumentError
        As for `bits`.

    Notes
    -----
    Box-Muller on the element's own 128 bits, with a logarithm and a cosine made of additions,
    multiplications and divisions only: the same bits on every machine. No number exceeds 8.6.

    Examples
    --------
    >>> from hpcpar.random import Key, normal
    >>> weight = 0.02 * normal(Key(3).child("head.w"), (64, 16))
    >>> weight.shape, weight.dtype.name
    ((64, 16), 'float32')
    """
    return _draw("normal", key, shape, dtype, start)


def _draw(
    kind: Literal["bits", "uniform", "normal"],
    key: Key,
    shape: int | tuple[int, ...],
    dtype: DTypeLike,
    start: int,
) -> NDArray[Any]:
    kept = np.dtype(dtype)
    if kept.name not in _DTYPES[kind] or not kept.isnative:
        allowed = " or ".join(_DTYPES[kind])
        raise UnsupportedError(f"{kind}: dtype is {kept}, needs {allowed}. Cast the result.")
    axes = shape if isinstance(shape, tuple) else (shape,)
    if any(axis < 0 for axis in axes):
        raise ArgumentError(f"{kind}: shape is {shape}, needs axes >= 0.")
    if start < 0 or start + math.prod(axes) > _WORD:
        raise ArgumentError(f"{kind}: start is {start}, needs indices 0 <= i < 2**64.")
    out = np.empty(axes, kept)
    philox_fill(out, kind, key.seed, key.stream, start % _WORD)
    return out

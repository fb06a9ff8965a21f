"""Arrays in words that a header can carry and another rank can read back."""

from __future__ import annotations

import ast
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import DTYPE_NAMES, Array
from .codec_dtype import describe_dtype, restore_dtype
from .sizes import uneven

__all__ = [
    "dtype_text",
    "kind_text",
    "kind_text_of",
    "nbytes_of",
    "ranks_text",
    "read_kind",
    "read_sizes",
    "sizes_text",
]


# CPython 3.11 may raise SystemError when two threads parse at once, as ranks do.
_parser = threading.Lock()


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return the dtype without its byte order: its name where that says all."""
    if dtype.name in DTYPE_NAMES:
        return dtype.name
    return repr(describe_dtype(dtype.newbyteorder("=")))


def _read_dtype(text: str) -> np.dtype[Any]:
    if text not in DTYPE_NAMES:
        with _parser:
            return restore_dtype(ast.literal_eval(text))
    if text.startswith(("bfloat", "float8")):
        return restore_dtype(("ml_dtypes", text, True))
    return np.dtype(text)


def kind_text_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return dtype and shape as one text.

    Examples
    --------
    >>> kind_text_of(np.dtype("f4"), (2, 3))
    'float32 (2, 3)'
    """
    return f"{dtype_text(dtype)} {tuple(int(n) for n in shape)}"


def kind_text(x: Array) -> str:
    """Return dtype and shape of an array as one text."""
    return kind_text_of(x.dtype, x.shape)


def read_kind(text: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Read what `kind_text` wrote.

    Examples
    --------
    >>> read_kind("float32 (2, 3)")
    (dtype('float32'), (2, 3))
    """
    dtype, _, shape = text.rpartition(" (")
    return _read_dtype(dtype), read_ints(shape)


def sizes_text(sizes: Sequence[int], length: int) -> str:
    """Return the sizes of a cut of `length`; short for the uneven rule, whatever the world.

    Examples
    --------
    >>> sizes_text((2, 2, 1), 5), sizes_text((5, 0, 0), 5)
    ('uneven', '[5, 0, 0]')
    """
    return "uneven" if tuple(sizes) == uneven(length, len(sizes)) else str(list(sizes))


def read_sizes(text: str, length: int, parts: int) -> tuple[int, ...]:
    """Read what `sizes_text` wrote."""
    return uneven(length, parts) if text == "uneven" else read_ints(text)


def read_ints(text: str) -> tuple[int, ...]:
    """Read a list of ints."""
    # not literal_eval: Python 3.11's parser fails now and then when threads parse at once
    return tuple(int(number) for number in text.strip("([])").split(",") if number.strip())


def nbytes_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the bytes of an array of `shape`."""
    return math.prod(shape) * dtype.itemsize


def ranks_text(ranks: Sequence[int]) -> str:
    """Return the first ranks, in short."""
    shown = ",".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown},.."

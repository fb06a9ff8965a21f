"""The reading half of the object codec.  It trusts nothing that it reads."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError, UnsupportedError
from .codec_dtype import check_shape, restore_dtype
from .codec_format import COMPLEX, FLOAT, INLINE, MAGIC, MAX_DEPTH, PREAMBLE, VERSION, padded
from .codec_sparse import restore_sparse

__all__ = ["Decoder"]


class Decoder:
    """Reads one message; `take` and `blob` are the only ways to its bytes."""

    def __init__(self, data: memoryview, allow_pickle: bool) -> None:
        self.data = data
        self.allow_pickle = allow_pickle
        self.at = PREAMBLE.size
        self.end = len(data)
        self.body = 0
        self.depth = 0

    def message(self) -> Any:
        """Read the preamble and the one value behind it."""
        if len(self.data) < PREAMBLE.size:
            raise ArgumentError(
                f"decode: data has {len(self.data)} bytes, the shortest message "
                f"{PREAMBLE.size}. Pass one whole message."
            )
        magic, version, head, total = PREAMBLE.unpack(self.data[: PREAMBLE.size])
        if magic != MAGIC or version != VERSION:
            raise ArgumentError(
                f"decode: data begins with {magic!r} version {version}, not {MAGIC!r} version "
                f"{VERSION}. Run the same hpcpar on every rank."
            )
        self.end = self.at + head
        self.body = self.end
        if total != len(self.data) or self.end > total:
            raise ValueError(f"{total} bytes announced, a header of {head} among them")
        obj = self.get()
        if self.at != self.end or self.body != total:
            raise ValueError("bytes left over")
        return obj

    def take(self, n: int) -> memoryview:
        """Return the next `n` bytes of the header."""
        self.at += n
        if self.at > self.end:
            raise ValueError("the header is cut short")
        return self.data[self.at - n : self.at]

    def number(self) -> int:
        """Read a length in base 128."""
        value = 0
        for shift in range(0, 63, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a length above 2**63")

    def count(self) -> int:
        """Read a number of values; each takes a byte or more, so a lie is seen here."""
        n = self.number()
        if n > self.end - self.at:
            raise ValueError(f"{n} values announced in {self.end - self.at} bytes")
        return n

    def blob(self) -> memoryview:
        """Return the bytes of a payload, from the header or the body."""
        n = self.number()
        if n <= INLINE:
            return self.take(n)
        start = padded(self.body)
        self.body = start + n
        if self.body > len(self.data):
            raise ValueError(f"a buffer of {n} bytes reaches past the end")
        return self.data[start : self.body]

    def get(self) -> Any:
        """Read one value."""
        tag = self.take(1)[0]
        reader = _READERS.get(tag)
        if reader is None:
            raise ValueError(f"unknown tag {tag:#04x}")
        return reader(self)

    def values(self, n: int) -> list[Any]:
        """Read the `n` values of a container."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        values = [self.get() for _ in range(n)]
        self.depth -= 1
        return values


def _get_items(kind: Callable[[list[Any]], Any]) -> Callable[[Decoder], Any]:
    return lambda dec: kind(dec.values(dec.count()))


def _get_dict(dec: Decoder) -> dict[Any, Any]:
    values = dec.values(2 * dec.count())
    return dict(zip(values[::2], values[1::2], strict=True))


def _get_int(dec: Decoder) -> int:
    return int.from_bytes(dec.blob(), "little", signed=True)


def _get_str(dec: Decoder) -> str:
    return str(dec.blob(), "utf-8", "surrogatepass")


def _get_range(dec: Decoder) -> range:
    return range(*dec.values(3))


def _get_slice(dec: Decoder) -> slice:
    return slice(*dec.values(3))


def _get_array(dec: Decoder, order: Any = "C") -> np.ndarray[Any, Any]:
    dtype, shape, raw = restore_dtype(dec.get()), check_shape(dec.get()), dec.blob()
    if math.prod(shape) * dtype.itemsize != raw.nbytes:
        raise ValueError(f"{raw.nbytes} bytes for an array {shape} of {dtype}")
    return np.ndarray(shape, dtype, bytearray(raw), order=order)


def _get_scalar(dec: Decoder) -> Any:
    dtype, raw = restore_dtype(dec.get()), dec.blob()
    return np.ndarray((), dtype, bytearray(raw))[()]


def _get_sparse(dec: Decoder) -> Any:
    name, shape = dec.get(), check_shape(dec.get())
    parts = {dec.get(): dec.get() for _ in range(dec.count())}
    return restore_sparse(name, shape, parts)


def _get_pickle(dec: Decoder) -> Any:
    if not dec.allow_pickle:
        raise UnsupportedError(
            "decode: data holds a pickle, which runs code of the sender's choice. "
            "Pass allow_pickle=True on every rank if you trust the sender."
        )
    data = dec.blob()
    buffers = [bytearray(dec.blob()) for _ in range(dec.count())]
    return pickle.loads(data, buffers=buffers)


_READERS: dict[int, Callable[[Decoder], Any]] = {
    ord(tag): reader
    for tag, reader in {
        "N": lambda dec: None,
        "E": lambda dec: Ellipsis,
        "T": lambda dec: True,
        "F": lambda dec: False,
        "i": _get_int,
        "f": lambda dec: FLOAT.unpack(dec.take(FLOAT.size))[0],
        "c": lambda dec: complex(*COMPLEX.unpack(dec.take(COMPLEX.size))),
        "s": _get_str,
        "S": lambda dec: np.str_(_get_str(dec)),
        "b": lambda dec: bytes(dec.blob()),
        "B": lambda dec: np.bytes_(bytes(dec.blob())),
        "y": lambda dec: bytearray(dec.blob()),
        "[": _get_items(list),
        "(": _get_items(tuple),
        "{": _get_items(set),
        "z": _get_items(frozenset),
        "d": _get_dict,
        "l": _get_slice,
        "r": _get_range,
        "a": _get_array,
        "A": lambda dec: _get_array(dec, "F"),
        "g": _get_scalar,
        "t": lambda dec: restore_dtype(dec.get()),
        "x": _get_sparse,
        "p": _get_pickle,
    }.items()
}

"""The writing half of the object codec: one small function per type, in one table."""

from __future__ import annotations

import pickle
import reprlib
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import numpy as np

from ..errors import ArgumentError, UnsupportedError
from .codec_dtype import describe_dtype
from .codec_format import (
    COMPLEX,
    FLOAT,
    INLINE,
    MAGIC,
    MAX_DEPTH,
    PREAMBLE,
    VERSION,
    Part,
    padded,
)
from .codec_sparse import describe_sparse

__all__ = ["Encoder"]


class Encoder:
    """Writes the header into one bytearray and collects the large buffers."""

    def __init__(self, allow_pickle: bool) -> None:
        self.allow_pickle = allow_pickle
        self.head = bytearray()
        self.buffers: list[memoryview] = []
        self.path: list[tuple[str, Any]] = []
        self.open: set[int] = set()

    def put(self, obj: Any) -> None:
        """Write one value."""
        _WRITERS.get(type(obj), _put_other)(self, obj)

    def child(self, obj: Any, form: str, step: Any) -> None:
        """Write a value inside a container; `form` and `step` say where for messages."""
        self.path.append((form, step))
        self.put(obj)
        self.path.pop()

    def number(self, n: int) -> None:
        """Write a length in base 128, low digits first."""
        while n > 127:
            self.head.append(n & 127 | 128)
            n >>= 7
        self.head.append(n)

    def blob(self, data: Part) -> None:
        """Write bytes: short ones here, long ones as a buffer of the body."""
        view = memoryview(data).cast("B")
        self.number(view.nbytes)
        if view.nbytes <= INLINE:
            self.head += view
        else:
            self.buffers.append(view)

    def enter(self, obj: Any) -> None:
        """Begin a container; refuse cycles and depth."""
        if id(obj) in self.open:
            raise ArgumentError(
                f"encode: {self.where()} contains itself; only trees can be sent. "
                "Break the cycle, or pass allow_pickle=True with it inside an object of your own."
            )
        if len(self.open) >= MAX_DEPTH:
            raise ArgumentError(
                f"encode: obj nests deeper than {MAX_DEPTH} levels. Flatten it before sending."
            )
        self.open.add(id(obj))

    def leave(self, obj: Any) -> None:
        """End a container."""
        self.open.remove(id(obj))

    def where(self) -> str:
        """Name the place of the current value."""
        steps = [form.format(reprlib.repr(step)) for form, step in self.path]
        return "obj" + "".join(steps)

    def refuse(self, why: str) -> NoReturn:
        """Raise for a leaf that needs pickle."""
        raise UnsupportedError(
            f"encode: {self.where()} is {why}, which cannot be sent without pickle. "
            "Pass allow_pickle=True if every rank trusts the sender, or send its parts."
        )

    def parts(self) -> list[Part]:
        """Return the message: the first part holds preamble and header."""
        spans = [PREAMBLE.size + len(self.head), *(view.nbytes for view in self.buffers)]
        total = sum(padded(n) for n in spans[:-1]) + spans[-1]
        first = PREAMBLE.pack(MAGIC, VERSION, len(self.head), total) + self.head
        parts: list[Part] = [first]
        for before, view in zip(spans, self.buffers, strict=False):
            if padded(before) > before:
                parts.append(bytes(padded(before) - before))
            parts.append(view)
        return parts


def _put_int(enc: Encoder, obj: int) -> None:
    enc.head += b"i"
    enc.blob(obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True))


def _put_float(enc: Encoder, obj: float) -> None:
    enc.head += b"f" + FLOAT.pack(obj)


def _put_complex(enc: Encoder, obj: complex) -> None:
    enc.head += b"c" + COMPLEX.pack(obj.real, obj.imag)


def _put_str(enc: Encoder, obj: str, tag: bytes = b"s") -> None:
    enc.head += tag
    enc.blob(obj.encode("utf-8", "surrogatepass"))


def _put_bytes(enc: Encoder, obj: bytes) -> None:
    enc.head += b"b"
    enc.blob(obj)


def _put_bytearray(enc: Encoder, obj: bytearray) -> None:
    enc.head += b"y"
    enc.blob(obj)


def _put_items(enc: Encoder, obj: Collection[Any]) -> None:
    tag, form = _COLLECTIONS[type(obj)]
    enc.enter(obj)
    enc.head += tag
    enc.number(len(obj))
    for i, item in enumerate(obj):
        enc.child(item, form, i)
    enc.leave(obj)


def _put_dict(enc: Encoder, obj: dict[Any, Any]) -> None:
    enc.enter(obj)
    enc.head += b"d"
    enc.number(len(obj))
    for key, value in obj.items():
        enc.child(key, ".<key {}>", key)
        enc.child(value, "[{}]", key)
    enc.leave(obj)


def _put_bounds(enc: Encoder, obj: slice | range) -> None:
    """Write start, stop and step."""
    enc.enter(obj)
    enc.head += b"l" if isinstance(obj, slice) else b"r"
    for name in ("start", "stop", "step"):
        enc.child(getattr(obj, name), f".{name}", None)
    enc.leave(obj)


def _put_array(enc: Encoder, obj: np.ndarray[Any, Any]) -> None:
    fortran = obj.flags.f_contiguous and not obj.flags.c_contiguous
    try:
        text = describe_dtype(obj.dtype)
    except UnsupportedError as exc:
        return _pickle_or_refuse(enc, obj, f"an array whose {exc}")
    enc.head += b"A" if fortran else b"a"
    enc.put(text)
    enc.put(obj.shape)
    enc.blob(_raw(obj.T if fortran else obj))


def _raw(array: np.ndarray[Any, Any]) -> Part:
    """Return the elements in C order as bytes: a view if they lie so."""
    if array.nbytes == 0:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _put_dtype(enc: Encoder, obj: np.dtype[Any]) -> None:
    try:
        text = describe_dtype(obj)
    except UnsupportedError as exc:
        return _pickle_or_refuse(enc, obj, f"a dtype: {exc}")
    enc.head += b"t"
    enc.put(text)


def _put_scalar(enc: Encoder, obj: np.generic) -> None:
    if isinstance(obj, np.str_):
        return _put_str(enc, obj, b"S")  # an array of it would lose NULs at the end
    if isinstance(obj, np.bytes_):
        enc.head += b"B"
        return enc.blob(obj)
    array = np.asarray(obj)
    enc.head += b"g"
    enc.put(describe_dtype(array.dtype))
    enc.blob(array.tobytes())


def _put_other(enc: Encoder, obj: Any) -> None:
    """Write what no exact type decides: NumPy's many scalars and dtypes, SciPy, pickle."""
    sparse = describe_sparse(obj)
    if sparse is not None:
        enc.head += b"x"
        enc.put(sparse[0])
        enc.put(sparse[1])
        _put_sparse_parts(enc, sparse[2])
    elif isinstance(obj, np.dtype):
        _put_dtype(enc, obj)
    elif isinstance(obj, np.generic) and not obj.dtype.hasobject:
        _put_scalar(enc, obj)
    else:
        _pickle_or_refuse(enc, obj, f"a {type(obj).__module__}.{type(obj).__qualname__}")


def _put_sparse_parts(enc: Encoder, parts: dict[str, Any]) -> None:
    enc.number(len(parts))
    for name, value in parts.items():
        enc.put(name)
        enc.child(value, f".{name}", None)


def _pickle_or_refuse(enc: Encoder, obj: Any, what: str) -> None:
    if not enc.allow_pickle:
        enc.refuse(what)
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
    except Exception as exc:  # pickle raises whatever the object's own methods raise
        raise UnsupportedError(
            f"encode: {enc.where()} is {what} and pickle refuses it too: {exc}. Send its parts."
        ) from exc
    enc.head += b"p"
    enc.blob(data)
    enc.number(len(views))
    for view in views:
        enc.blob(view)


def _constant(tag: bytes) -> Callable[[Encoder, Any], None]:
    return lambda enc, obj: enc.head.extend(tag)


_COLLECTIONS = {
    list: (b"[", "[{}]"),
    tuple: (b"(", "[{}]"),
    set: (b"{", ".<element {}>"),
    frozenset: (b"z", ".<element {}>"),
}

_WRITERS: dict[Any, Callable[[Encoder, Any], None]] = {
    type(None): _constant(b"N"),
    type(Ellipsis): _constant(b"E"),
    bool: lambda enc, obj: enc.head.extend(b"T" if obj else b"F"),
    int: _put_int,
    float: _put_float,
    complex: _put_complex,
    str: _put_str,
    bytes: _put_bytes,
    bytearray: _put_bytearray,
    dict: _put_dict,
    slice: _put_bounds,
    range: _put_bounds,
    np.ndarray: _put_array,
    np.memmap: _put_array,
    **dict.fromkeys(_COLLECTIONS, _put_items),
}

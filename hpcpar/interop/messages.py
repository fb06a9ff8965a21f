"""mpi4py's message specifications as flat arrays: what a buffer argument means, and its bytes.

A specification is a buffer, or ``[buffer, count(s), displacement(s), datatype]`` with all but the
buffer optional (mpi4py's tutorial, "Specifying buffer arguments").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .._arrays import Array, as_bytes

__all__ = ["Blocks", "Data", "Message", "blocks_of", "message_of", "numbers_of", "size_of"]

_MEMORY: Any = np.ndarray


class Message(NamedTuple):
    """Elements of a datatype at the beginning of some memory.

    Attributes
    ----------
    memory : ndarray of uint8
        From the displacement to the buffer's end.
    datatype : MPI.Datatype
    length : int
        Elements in all.
    """

    memory: Array
    datatype: MPI.Datatype
    length: int

    @property
    def nbytes(self) -> int:
        """Bytes of the data, without gaps."""
        return self.length * self.datatype.Get_size()

    def _is_dense(self) -> bool:
        return bool(self.datatype.is_predefined) and (
            self.datatype.Get_size() == self.datatype.Get_extent()[1]
        )

    def dense(self) -> Array | None:
        """Return the data's bytes where they lie; None where a datatype has gaps."""
        return self.memory[: self.nbytes] if self._is_dense() else None

    def pack(self) -> Array:
        """Return the data's bytes, a copy where the datatype has gaps."""
        found = self.dense()
        if found is not None:
            return found
        packed = np.empty(self.nbytes, np.uint8)
        self.datatype.Pack(self._covered(), packed, 0, MPI.COMM_SELF)
        return packed

    def unpack(self, packed: Array) -> None:
        """Write data's bytes to where they belong."""
        found = self.dense()
        if found is not None:
            found[...] = packed
            return
        self.datatype.Unpack(packed, 0, self._covered(), MPI.COMM_SELF)

    def _covered(self) -> Array:
        """Return memory of as many extents as there are elements: mpi4py counts by them."""
        _, extent = self.datatype.Get_extent()
        return np.lib.stride_tricks.as_strided(self.memory, (self.length * extent,))


class Blocks(NamedTuple):
    """A message's block for each rank.

    Attributes
    ----------
    memory : ndarray of uint8
    datatype : MPI.Datatype
    counts, starts : tuple of int
        Elements of each block, and before it.
    """

    memory: Array
    datatype: MPI.Datatype
    counts: tuple[int, ...]
    starts: tuple[int, ...]

    def block(self, rank: int) -> Message:
        """Return the block of a rank."""
        _, extent = self.datatype.Get_extent()
        return Message(self.memory[self.starts[rank] * extent :], self.datatype, self.counts[rank])

    def sizes(self) -> tuple[int, ...]:
        """Return the bytes of the blocks."""
        size = self.datatype.Get_size()
        return tuple(count * size for count in self.counts)

    def joined(self) -> Array | None:
        """Return all bytes where they lie, if block lies behind block, by rank."""
        if self.starts != (0, *np.cumsum(self.counts)[:-1].tolist()):
            return None
        return Message(self.memory, self.datatype, sum(self.counts)).dense()

    def unpack(self, joined: Array) -> None:
        """Write blocks that lie one behind the other to where they belong."""
        at = 0
        for rank, size in enumerate(self.sizes()):
            self.block(rank).unpack(joined[at : at + size])
            at += size


class Data(NamedTuple):
    """A message's bytes in one piece, and where they belong if that is somewhere else."""

    data: Array
    message: Message | None = None

    @classmethod
    def of(cls, spec: Any, blocks: int = 1, *, sends: bool = False) -> Data | None:
        """Return the bytes where they lie, or room for them, filled if they are sent from here."""
        usual, message = _usual(spec), None
        if type(spec) is _MEMORY:
            found = _bytes(spec)
        elif usual is not None:
            found = usual.bytes(blocks)
        else:
            message = message_of(spec, blocks)
            found = None if message is None else message.dense()
        if found is not None:
            is_locked = sends and not found.flags.writeable
            return cls(found.copy() if is_locked else found)
        if message is None:
            return None
        return cls(message.pack() if sends else np.empty(message.nbytes, np.uint8), message)

    def end(self) -> None:
        """Write what has come to where it belongs."""
        if self.message is not None:
            self.message.unpack(self.data)


class _Usual(NamedTuple):
    """The list that is used most: a buffer, a count, and a datatype that MPI has."""

    buffer: Any
    length: int
    kind: np.dtype[Any]

    def bytes(self, blocks: int) -> Array | None:
        """Return its bytes where they lie; None: it says more than there are."""
        memory, nbytes = _memory(self.buffer), self.length * blocks * self.kind.itemsize
        return memory[:nbytes] if memory is not None and nbytes <= memory.size else None


def _usual(spec: Any) -> _Usual | None:
    """Read it, quickly; None: it is something else."""
    if type(spec) is not list or len(spec) != 3:
        return None
    buffer, count, datatype = spec
    kind = _KNOWN.get(id(datatype))
    if kind is None or type(count) is not int or count < 0:
        return None
    return _Usual(buffer, count, kind)


def size_of(spec: Any, blocks: int = 1) -> int | None:
    """Return the bytes of a message that is no array, where a look tells; None: it must be read."""
    usual = _usual(spec)
    return None if usual is None else usual.length * blocks * usual.kind.itemsize


def numbers_of(spec: Any, blocks: int = 1) -> Array | None:
    """Return a message as a flat array of its numbers; None: it is something else.

    Parameters
    ----------
    spec : object
        What mpi4py's reducing verbs take.
    blocks : int
        The count is of each of so many blocks.
    """
    if type(spec) is _MEMORY:
        return flat(spec)
    usual = _usual(spec)
    kind: np.dtype[Any] | None
    if usual is not None:
        data, kind = usual.bytes(blocks), usual.kind
    else:
        message = message_of(spec, blocks)
        if message is None:
            return None
        data, kind = message.dense(), _dtype(message.datatype)
    if data is None or kind is None or kind.kind not in "iufc":
        return None
    return data.view(kind) if data.size % kind.itemsize == 0 else None


def _bytes(array: Array) -> Array | None:
    """Return an array's bytes in the order of memory, without a copy; None: it has gaps."""
    found = flat(array)
    return None if found is None or found.dtype.hasobject else as_bytes(found)


def flat(array: Array) -> Array | None:
    """Return the elements in the order of memory, without a copy; None: there are gaps."""
    if array.flags.c_contiguous:
        return array if array.ndim == 1 else array.reshape(-1)
    return array.reshape(-1, order="F") if array.flags.f_contiguous else None


def message_of(spec: Any, blocks: int = 1) -> Message | None:
    """Return what a specification means; None where only MPI knows, or refuses it."""
    read = _read(spec, (tuple, list))
    if read is None:
        return None
    memory, count, displacement, datatype, extent = read
    rest = memory[(displacement or 0) * extent :]
    if count is None:
        count = rest.size // extent // blocks
        if count * extent * blocks != rest.size:
            return None
    if count < 0 or count * blocks * datatype.Get_size() > rest.size:
        return None
    return Message(rest, datatype, count * blocks)


def blocks_of(spec: Any, size: int) -> Blocks | None:
    """Return the blocks of a specification with counts for each rank; None as `message_of`."""
    read = _read(spec, (tuple,))
    if read is None:
        return None
    memory, counts, starts, datatype, extent = read
    if counts is None:
        whole = memory.size // extent
        counts = [whole // size + (whole % size > r) for r in range(size)]
    row = _row(counts, [counts] * size)
    places = [0, *np.cumsum(row)[:-1].tolist()] if starts is None else starts
    first = _row(places, [places * r for r in range(size)] if _is_number(places) else [])
    if len(row) != size or len(first) != size:
        return None
    return Blocks(memory, datatype, row, first)


def _read(spec: Any, rows: tuple[type, ...]) -> tuple[Array, Any, Any, MPI.Datatype, int] | None:
    """Return memory, count, displacement, datatype and its extent; None as `message_of`."""
    parts = _parts(spec, rows)
    if parts is None:
        return None
    buffer, count, displacement, given = parts
    memory, datatype = _memory(buffer), _datatype(given, buffer)
    if memory is None or datatype is None:
        return None
    _, extent = datatype.Get_extent()
    return (memory, count, displacement, datatype, extent) if extent > 0 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, np.integer))


def _row(given: Any, if_one: list[Any]) -> tuple[int, ...]:
    """Return a number for each rank: those given, or what one number stands for."""
    return tuple(int(n) for n in (if_one if _is_number(given) else given))


def _known() -> dict[int, np.dtype[Any]]:
    """Return NumPy's dtypes of MPI's own datatypes of one number, by the constants' identity."""
    constants = (getattr(MPI, name) for name in dir(MPI) if name.isupper())
    found = {id(c): _dtype(c) for c in constants if isinstance(c, MPI.Datatype) and c}
    return {number: kind for number, kind in found.items() if kind is not None}


def _dtype(datatype: MPI.Datatype) -> np.dtype[Any] | None:
    """Return NumPy's dtype for a datatype of one number; None: there is none."""
    try:
        kind = np.dtype(datatype.tocode())
    except (ValueError, TypeError, SystemError, MPI.Exception):
        return None
    size = datatype.Get_size()
    return kind if kind.itemsize == size == datatype.Get_extent()[1] else None


def _parts(spec: Any, rows: tuple[type, ...]) -> Sequence[Any] | None:
    """Return buffer, count, displacement and datatype, None for what is not given."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        return None
    if len(spec) == 4:
        return spec
    buffer, count, *rest = spec
    if isinstance(count, (MPI.Datatype, str)) and not rest:
        count, rest = None, [count]
    place: Any = None
    if isinstance(count, (list, tuple)) and isinstance(count, rows) and len(count) == 2:
        count, place = count
    return buffer, count, place, rest[0] if rest else None


def _memory(buffer: Any) -> Array | None:
    """Return the bytes of a buffer in this process's memory."""
    if type(buffer) is _MEMORY:
        return _bytes(buffer)
    if buffer is None:
        return np.empty(0, np.uint8)
    try:
        return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError):
        return None


def _datatype(given: Any, buffer: Any) -> MPI.Datatype | None:
    """Return the datatype that is given, or that a buffer's format says."""
    if isinstance(given, MPI.Datatype):
        return given if given != MPI.DATATYPE_NULL else None
    try:
        if isinstance(given, str):
            return MPI.Datatype.fromcode(given)
        code = buffer.dtype.char if isinstance(buffer, np.ndarray) else memoryview(buffer).format
        return MPI.Datatype.fromcode(code)
    except (TypeError, ValueError, KeyError):
        return None


_KNOWN = _known()

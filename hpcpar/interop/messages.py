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

__all__ = [
    "Blocks",
    "Data",
    "Loose",
    "Message",
    "blocks_of",
    "message_of",
    "numbers_of",
    "size_of",
    "size_of_all",
]

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


class Loose(NamedTuple):
    """A message of which only MPI finds the elements: from BOTTOM, against the order of memory.

    Attributes
    ----------
    spec : list
        With a count of all elements, and a datatype.
    nbytes : int
        Bytes of the data, without gaps.
    """

    spec: list[Any]
    nbytes: int

    def dense(self) -> None:
        """Return that it lies in no one piece."""

    def pack(self) -> Array:
        """Return the data's bytes."""
        packed = np.empty(self.nbytes, np.uint8)
        self._copy(self.spec, [packed, self.nbytes, MPI.PACKED])
        return packed

    def unpack(self, packed: Array) -> None:
        """Write data's bytes to where they belong."""
        self._copy([packed, self.nbytes, MPI.PACKED], self.spec)

    def _copy(self, source: list[Any], target: list[Any]) -> None:
        """Send it to this process: on a communicator on which nobody else does."""
        comm = MPI.COMM_SELF.Dup()
        comm.Sendrecv(source, 0, 0, target, 0, 0)
        comm.Free()


class Data:
    """The bytes of a message, for verbs that move them.

    Attributes
    ----------
    nbytes : int
        So many; that all ranks know.
    """

    def __init__(self, nbytes: int, found: Array | None, message: Message | Loose | None) -> None:
        self.nbytes = nbytes
        self._found, self._message = found, message

    @classmethod
    def of(cls, spec: Any, blocks: int = 1) -> Data | None:
        """Return what a specification means, for as many blocks as it counts one of; or None."""
        usual = _usual(spec, blocks)
        found = _bytes(spec) if type(spec) is _MEMORY else usual and usual.bytes()
        if found is not None:
            return cls(found.size, found, None)
        message = message_of(spec, blocks) or _loose(spec, blocks)
        if message is None:
            return None
        return cls(message.nbytes, message.dense(), message)

    def open(self, *, sends: bool) -> Array:
        """Return the bytes where they lie, or room for them, filled if they are sent from here."""
        if self._found is not None:
            is_locked = sends and not self._found.flags.writeable
            return self._found.copy() if is_locked else self._found
        assert self._message is not None
        return self._message.pack() if sends else np.empty(self.nbytes, np.uint8)

    def end(self, data: Array) -> None:
        """Write what has come in `data` to where it belongs."""
        if self._found is None and self._message is not None:
            self._message.unpack(data)


class _Usual(NamedTuple):
    """What is used most: a buffer, maybe a count, and a datatype that MPI has."""

    buffer: Any
    length: int
    kind: np.dtype[Any]

    def bytes(self) -> Array | None:
        """Return its bytes where they lie; None: it says more than there are."""
        memory, nbytes = _memory(self.buffer), self.length * self.kind.itemsize
        return memory[:nbytes] if memory is not None and nbytes <= memory.size else None


def _usual(spec: Any, blocks: int = 1) -> _Usual | None:
    """Read it, quickly; None: it is something else."""
    if not isinstance(spec, (list, tuple)) or not 2 <= len(spec) <= 3:
        return None
    buffer, count = spec[0], spec[1]
    kind = _KNOWN.get(id(spec[-1]))
    if kind is None:
        return None
    if len(spec) == 2:
        whole = type(buffer) is _MEMORY and buffer.nbytes % (kind.itemsize * blocks) == 0
        return _Usual(buffer, buffer.nbytes // kind.itemsize, kind) if whole else None
    return _Usual(buffer, count * blocks, kind) if type(count) is int and count >= 0 else None


def size_of(spec: Any, blocks: int = 1) -> int | None:
    """Return the bytes of a message that is no array, where a look tells; None: it must be read."""
    usual = _usual(spec, blocks)
    if usual is not None:
        return usual.length * usual.kind.itemsize
    counted = _counted(spec)
    return None if counted is None else counted[0] * blocks * counted[1].Get_size()


def size_of_all(spec: Any) -> int | None:
    """Return the bytes of a message with a count for each rank, where a look tells; or None."""
    if not isinstance(spec, (list, tuple)) or len(spec) < 2:
        return None
    counts, datatype = spec[1], spec[-1]
    if isinstance(counts, tuple) and len(counts) == 2:  # counts and displacements
        counts = counts[0]
    if not isinstance(counts, (list, tuple, np.ndarray)) or not isinstance(datatype, MPI.Datatype):
        return None
    return int(sum(counts)) * datatype.Get_size()


def _counted(spec: Any) -> tuple[int, MPI.Datatype] | None:
    """Return count and datatype of a list that has both; None: it has not."""
    if not isinstance(spec, (list, tuple)) or not 3 <= len(spec) <= 4:
        return None
    count, datatype = spec[1], spec[-1]
    is_one = _is_number(count) and isinstance(datatype, MPI.Datatype)
    return (int(count), datatype) if is_one and datatype != MPI.DATATYPE_NULL else None


def _loose(spec: Any, blocks: int) -> Loose | None:
    """Return a message that only MPI can read, but whose size is known; None: it is not."""
    counted = _counted(spec)
    if counted is None or counted[0] < 0:
        return None
    count, datatype = counted
    whole = [spec[0], count * blocks, *spec[2:]]
    return Loose(whole, count * blocks * datatype.Get_size())


def numbers_of(spec: Any, blocks: int = 1) -> Array | None:
    """Return a message as a flat array of numbers that MPI reduces; None: it is something else.

    Parameters
    ----------
    spec : object
        What mpi4py's reducing verbs take.
    blocks : int
        The count is of each of so many blocks.
    """
    if type(spec) is _MEMORY:
        found = flat(spec)
        return found if found is not None and found.dtype.kind in "iufc" else None
    usual = _usual(spec, blocks)
    kind: np.dtype[Any] | None
    if usual is not None:
        data, kind = usual.bytes(), _NUMBERS.get(id(spec[-1]))
    else:
        message = message_of(spec, blocks)
        if message is None or message.datatype in (MPI.BYTE, MPI.CHAR, MPI.WCHAR):
            return None
        data, kind = message.dense(), _dtype(message.datatype)
    if data is None or kind is None or kind.kind not in "iufc":
        return None
    return data.view(kind) if data.size % kind.itemsize == 0 else None


def _bytes(array: Array) -> Array | None:
    """Return an array's bytes in the order of memory, without a copy; None: it has gaps."""
    found = flat(array)
    return None if found is None else as_bytes(found)


def flat(array: Array) -> Array | None:
    """Return the elements in the order of memory, without a copy.

    None: there are gaps, or mpi4py has no datatype for them.
    """
    if array.dtype.char not in _CHARS or not array.dtype.isnative:
        return None
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
    if parts is None or parts[0] is MPI.BOTTOM:
        return None
    buffer, count, displacement, given = parts
    memory, datatype = _memory(buffer), _datatype(given, buffer)
    if memory is None or datatype is None:
        return None
    begin, extent = datatype.Get_extent()
    goes_up = begin >= 0 and extent > 0
    return (memory, count, displacement, datatype, extent) if goes_up else None


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
    """Return the bytes of a buffer in this process's memory, in its order."""
    if type(buffer) is _MEMORY and buffer.flags.c_contiguous and not buffer.dtype.hasobject:
        return as_bytes(buffer.reshape(-1))
    if buffer is None:
        return np.empty(0, np.uint8)
    try:
        seen = memoryview(buffer)
        if not seen.nbytes:
            return np.empty(0, np.uint8)
        if seen.c_contiguous:
            return np.frombuffer(buffer, np.uint8)
        return as_bytes(np.asarray(seen).reshape(-1, order="F")) if seen.f_contiguous else None
    except (TypeError, ValueError, BufferError):
        return None


def _original(datatype: MPI.Datatype) -> MPI.Datatype:
    """Return what a duplicate is one of."""
    while datatype.combiner == MPI.COMBINER_DUP:
        datatype = datatype.decode()[0]
    return datatype


def _datatype(given: Any, buffer: Any) -> MPI.Datatype | None:
    """Return the datatype that is given, or that a buffer's format says."""
    if isinstance(given, MPI.Datatype):
        return _original(given) if given != MPI.DATATYPE_NULL else None
    if given is not None and not isinstance(given, str):
        return None
    try:
        if isinstance(given, str):
            return MPI.Datatype.fromcode(given)
        if isinstance(buffer, np.ndarray):
            kind = buffer.dtype
            fits = kind.isnative and kind.char in _CHARS
            return MPI.Datatype.fromcode(kind.char) if fits else None
        return MPI.Datatype.fromcode(memoryview(buffer).format)
    except (TypeError, ValueError, KeyError):
        return None


def _chars() -> str:
    """Return the type codes of arrays that mpi4py has datatypes for."""
    found = []
    for char in "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]:
        try:
            MPI.Datatype.fromcode(char)
        except (ValueError, TypeError, KeyError):
            continue
        found.append(char)
    return "".join(found)


_CHARS = _chars()
_KNOWN = _known()
#: Without those that are no numbers to MPI.
_NUMBERS = {
    number: kind
    for number, kind in _KNOWN.items()
    if number not in map(id, (MPI.BYTE, MPI.CHAR, MPI.WCHAR))
}

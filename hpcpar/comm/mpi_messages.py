"""Point-to-point messages over MPI: a header that says what comes, then the bytes.

All headers of a communicator have one MPI tag; the user's tag travels inside, and matching by
source and tag happens here. So no wildcard can ever take a message of the library's own, and no
second communicator is needed. Small payloads ride in the header; a large one follows under a tag
of its own, so that concurrent receives cannot take each other's.
"""

from __future__ import annotations

import struct
import threading
from typing import Any, NamedTuple

import numpy as np

from .._arrays import Array
from .backend import Arrived, Operation
from .matching import Matching
from .mpi_running import Stages

__all__ = ["Mailbox"]

_HEADER_TAG = 1
_FIRST_PAYLOAD_TAG = 16
_PAYLOAD_TAGS = 1 << 20
_INLINE = 4096
_CHUNK = 1 << 30
_FIXED = struct.Struct("<qqqI")  # user's tag, payload tag (-1 inline), payload bytes, kind bytes


class _Letter(NamedTuple):
    """A header that has come, and its payload where that was inside."""

    source: int
    tag: int
    payload_tag: int
    nbytes: int
    kind: str
    inline: Array


class Mailbox:
    """Messages of one group on this rank.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    mpi : module
        ``mpi4py.MPI``.
    """

    def __init__(self, comm: Any, mpi: Any) -> None:
        self._comm, self._mpi = comm, mpi
        largest: int = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)
        self._tags = min(_PAYLOAD_TAGS, largest - _FIRST_PAYLOAD_TAG)
        self._letters: list[_Letter] = []
        self._matching = Matching()
        self._sent: dict[int, int] = {}
        self._lock = threading.Lock()

    def stages(self, op: Operation) -> Stages:
        """Return the stages of a "send", "recv" or "probe"."""
        return {"send": self._send, "recv": self._recv, "probe": self._probe}[op.verb](op)

    def _send(self, op: Operation) -> Stages:
        assert op.send is not None
        assert op.root is not None
        inline = op.send.size <= _INLINE
        payload_tag = -1 if inline else self._next_tag(op.root)
        kind = op.kind.encode()
        fixed = _FIXED.pack(op.tag or 0, payload_tag, op.send.size, len(kind))
        letter = np.frombuffer(fixed + kind + (op.send.tobytes() if inline else b""), np.uint8)
        requests = [self._comm.Isend(letter, op.root, _HEADER_TAG)]
        if not inline:
            requests += [self._comm.Isend(p, op.root, payload_tag) for p in _pieces(op.send)]
        yield requests

    def _recv(self, op: Operation) -> Stages:
        assert op.accept is not None
        with self._lock:
            self._matching.post(op)
        while (letter := self._take(op)) is None:
            yield None
        target = op.accept(letter.kind)
        if letter.payload_tag < 0:
            target[...] = letter.inline
        else:
            tag = letter.payload_tag
            yield [self._comm.Irecv(p, letter.source, tag) for p in _pieces(target)]
        op.result = Arrived(letter.source, letter.tag, letter.kind, target)

    def _probe(self, op: Operation) -> Stages:
        with self._lock:
            self._collect_all()
            place = self._matching.find(op, self._letters)
            letter = None if place is None else self._letters[place]
        if letter is not None:
            op.result = Arrived(letter.source, letter.tag, letter.kind, None)
        yield from ()

    def _next_tag(self, dst: int) -> int:
        with self._lock:
            number = self._sent.get(dst, 0)
            self._sent[dst] = number + 1
        return _FIRST_PAYLOAD_TAG + number % self._tags

    def _take(self, op: Operation) -> _Letter | None:
        """Return the letter for `op`, if it has come."""
        with self._lock:
            self._collect_all()
            place = self._matching.take(op, self._letters)
            return None if place is None else self._letters.pop(place)

    def _collect_all(self) -> None:
        while (letter := self._collect()) is not None:
            self._letters.append(letter)

    def _collect(self) -> _Letter | None:
        status = self._mpi.Status()
        message = self._comm.Improbe(self._mpi.ANY_SOURCE, _HEADER_TAG, status)
        if message is None:
            return None
        data = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        message.Recv(data)
        tag, payload_tag, nbytes, length = _FIXED.unpack_from(data.data)
        end = _FIXED.size + length
        kind = data[_FIXED.size : end].tobytes().decode()
        return _Letter(status.Get_source(), tag, payload_tag, nbytes, kind, data[end:])


def _pieces(flat: Array) -> list[Array]:
    return [flat[i : i + _CHUNK] for i in range(0, flat.size, _CHUNK)]

"""Point to point: send, recv, sendrecv, probe. A header carries dtype and shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._arrays import Array, adopt, as_bytes
from ..errors import ArgumentError
from . import describe
from .agree import Header
from .backend import Arrived, Operation
from .layout import check_out
from .request import Request, Steps, View, adopt_out, check_rank

__all__ = ["MAX_TAG", "Incoming", "Message", "Probe", "Recv", "Send", "SendRecv"]

#: Tags above this do not fit every MPI.
MAX_TAG = (1 << 28) - 1


class Message(NamedTuple):
    """What `probe` found: a message that `recv` would take.

    Attributes
    ----------
    src : int
        Rank that sent it.
    tag : int
    dtype : numpy.dtype
    shape : tuple of int
    """

    src: int
    tag: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def _check_tag(tag: Any, verb: str) -> int:
    if isinstance(tag, bool) or not isinstance(tag, (int, np.integer)):
        raise ArgumentError(f"{verb}: tag {tag!r} must be an integer.")
    if not 0 <= tag <= MAX_TAG:
        raise ArgumentError(f"{verb}: tag {tag} must be in 0..{MAX_TAG}.")
    return int(tag)


class _PointToPoint(Request):
    """What the point-to-point verbs share: no agreement of the whole group."""

    collective = False

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        return [f"verb={self.verb}"]


class _Outgoing:
    """The sending half."""

    def __init__(self, view: View, x: Any, dst: Any, tag: Any, verb: str) -> None:
        self.array, _ = adopt(x, verb)
        self.dst = check_rank(dst, view.size, verb, "dst")
        self.tag = _check_tag(tag, verb)
        self.view = view

    def operation(self) -> Operation:
        """Return the sending operation."""
        memory = self.view.memory
        data = memory.bytes(memory.pack(self.array))
        kind = describe.kind_text(self.array)
        return Operation("send", data, root=self.dst, tag=self.tag, kind=kind)


class Incoming:
    """The receiving half."""

    def __init__(self, view: View, src: Any, tag: Any, out: Any, verb: str) -> None:
        self.view, self.verb = view, verb
        self.src = None if src is None else check_rank(src, view.size, verb, "src")
        self.tag = None if tag is None else _check_tag(tag, verb)
        self.given = out
        self.out = None if out is None else adopt_out(out, verb).view()
        if self.out is not None:
            check_out(self.out, self.out.shape, self.out.dtype, verb)
        self.buffer: Array | None = None

    def operation(self) -> Operation:
        """Return the receiving operation."""
        return Operation("recv", root=self.src, tag=self.tag, accept=self.accept)

    def accept(self, kind: str) -> Array:
        """Return the bytes to receive a message of `kind` into."""
        dtype, shape = describe.read_kind(kind)
        out = self.out
        fits = out is not None and out.shape == shape and out.dtype == dtype
        if out is not None and fits and out.flags.c_contiguous and out.flags.aligned:
            self.buffer = out
        else:
            self.buffer = self.view.memory.empty(shape, dtype)
        return as_bytes(self.buffer)

    def result(self, arrived: Arrived) -> Any:
        """Hand the message back; a wrong `out` is said only now, the message is consumed."""
        assert self.buffer is not None
        if self.out is None:
            return self.buffer
        if self.out is not self.buffer:
            where = f"{self.verb} from rank {arrived.source}"
            check_out(self.out, self.buffer.shape, self.buffer.dtype, where)
            self.out[...] = self.buffer
        return self.given


class Send(_PointToPoint):
    """Send an array to one rank."""

    verb = "send"

    def __init__(self, view: View, x: Any, dst: Any, tag: Any, blocking: bool) -> None:
        super().__init__(view)
        self.half = _Outgoing(view, x, dst, tag, self.verb)
        if blocking and self.half.dst == view.rank:
            raise ArgumentError(
                f"send: dst {dst} is this rank, which cannot receive while it sends. "
                "Use sendrecv, or async_op=True."
            )
        self.root = self.half.dst
        self.count, self.dtype = self.half.array.size, self.half.array.dtype

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        yield self.half.operation()
        return None


class Recv(_PointToPoint):
    """Receive an array from one rank, or from any."""

    verb = "recv"

    def __init__(self, view: View, src: Any, tag: Any, out: Any) -> None:
        super().__init__(view)
        self.half = Incoming(view, src, tag, out, self.verb)
        self.root = -1 if self.half.src is None else self.half.src

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        operation = self.half.operation()
        yield operation
        assert self.half.buffer is not None
        self.count, self.dtype = self.half.buffer.size, self.half.buffer.dtype
        return self.half.result(operation.result)


class SendRecv(_PointToPoint):
    """Send to one rank while receiving from another."""

    verb = "sendrecv"

    def __init__(self, view: View, x: Any, dst: Any, src: Any, tag: Any, out: Any) -> None:
        super().__init__(view)
        self.outgoing = _Outgoing(view, x, dst, tag, self.verb)
        self.incoming = Incoming(view, src, tag, out, self.verb)
        self.root = self.outgoing.dst
        self.count, self.dtype = self.outgoing.array.size, self.outgoing.array.dtype

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        send = self.outgoing.operation()
        if self.incoming.out is not None and send.send is not None:
            send.send = send.send.copy()  # out may be x: what leaves must not be what arrives
        recv = self.incoming.operation()
        yield [recv, send]
        return self.incoming.result(recv.result)


class Probe(_PointToPoint):
    """Look whether a message is there, without waiting and without taking it."""

    verb = "probe"

    def __init__(self, view: View, src: Any, tag: Any) -> None:
        super().__init__(view)
        self.half = Incoming(view, src, tag, None, self.verb)

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        operation = Operation("probe", root=self.half.src, tag=self.half.tag)
        yield operation
        found: Arrived | None = operation.result
        if found is None:
            return None
        dtype, shape = describe.read_kind(found.kind)
        return Message(found.source, found.tag, dtype, shape)

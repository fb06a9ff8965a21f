"""Messages between two ranks that share memory: what the core carries of them."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from .._arrays import Array, as_bytes
from .._core import Box, Message, Node, node_sizes
from ..errors import UnsupportedError
from .backend import Arrived, Direct, Operation, nanoseconds, nanoseconds_until
from .describe import read_kind
from .layout import check_out

__all__ = ["MESSAGES", "NodeMessages"]

#: The verbs that are carried here.
MESSAGES = ("send", "recv", "probe")
_ANY = -1
_SLICE = 40_000_000  # nanoseconds of a wait for one of several
_MOST_KIND = node_sizes()["kind"]

Failed: TypeAlias = Callable[[int, int], BaseException]


class NodeMessages:
    """The messages of one group on this rank.

    Parameters
    ----------
    node : Node
    key : int
        The group's.
    members : sequence of int
        Places of its ranks on the node.
    rank : int
    timeout : float or None
        Seconds that calls of the hot path may take.

    Attributes
    ----------
    limit : int
        The same in nanoseconds.
    """

    def __init__(
        self,
        node: Node,
        key: int,
        members: Sequence[int],
        rank: int,
        timeout: float | None,
    ) -> None:
        self._open: Box | None = Box(node, key, tuple(members), rank)
        self.limit = nanoseconds(timeout)

    def start(self, op: Operation, failed: Failed) -> None:
        """Begin `op`; `failed` makes an exception from an error's number and a rank."""
        if op.verb == "probe":
            found = self._box.probe(_peer(op), _tag(op))
            op.result = None if found is None else Arrived(*found, None)
            return
        if op.verb == "recv":
            op.state = self._message(op, None, failed)
            self._end(op, op.state.start(None))
            return
        op.state = self._message(op, _kind(op.kind), failed)
        self._end(op, op.state.start(op.send))

    def test(self, op: Operation) -> bool:
        """Move `op` on; return whether it has ended."""
        if op.state is not None:
            self._end(op, op.state.test())
        return op.state is None

    def wait(self, op: Operation) -> bool:
        """Sleep until `op` has ended; return False if its deadline passed first."""
        while op.state is not None:
            outcome = op.state.wait(nanoseconds_until(op.deadline))
            if outcome is None:
                return False
            self._end(op, outcome)
        return True

    def wait_all(self, ops: Sequence[Operation]) -> list[Operation]:
        """Wait for several at once; return those whose deadline passed first."""
        left = [op for op in ops if not self.test(op)]
        while left:
            limit = nanoseconds_until(left[0].deadline, _SLICE)
            outcome = left[0].state.wait(limit)
            self._end(left[0], outcome)
            if outcome is None and limit < _SLICE:
                return [op for op in left if not self.test(op)]
            left = [op for op in left if not self.test(op)]
        return []

    def cancel(self, op: Operation) -> None:
        """Give `op` up: a receive takes nothing any more, a send is withdrawn if it can be."""
        if op.state is not None:
            op.state.cancel()

    def missing(self, op: Operation) -> list[int] | None:
        """Return the rank that `op` waits for, if it is only one."""
        return None if op.root is None else [op.root]

    def close(self) -> Box:
        """Drop what came and nobody took; return the box, where more may come from others."""
        box, self._open = self._box, None
        box.empty()
        return box

    def direct(self, op: Operation, failed: Failed) -> Direct:
        """Return the one call that a message of this kind to or from one rank ends in."""
        message = self._message(op, _kind(op.kind), failed)
        return Direct((message, "x" if op.verb == "send" else "out"), None)

    @property
    def _box(self) -> Box:
        assert self._open is not None
        return self._open

    def direct_pair(self, send: Operation, recv: Operation, failed: Failed) -> Direct:
        """Return the one call of two messages of these kinds at the same time."""
        receive, sends = (self._message(op, _kind(op.kind), failed) for op in (recv, send))
        swap = _Swap(receive, sends, self.limit, failed, (_peer(recv), _peer(send)))
        return Direct((swap, "x", "out"), None)

    def _message(self, op: Operation, kind: bytes | None, failed: Failed) -> Message:
        sends = op.verb == "send"
        return Message(self._box, sends, _peer(op), _tag(op), kind, op.lane, failed, self.limit)

    def _end(self, op: Operation, outcome: bool | None) -> None:
        """Take what a receive has found; outcome None: it has not ended."""
        if outcome is False:
            outcome = self._take(op, op.state)
        if outcome:
            op.state = None

    def _take(self, op: Operation, message: Message) -> bool | None:
        source, tag, kind = message.found()
        assert op.accept is not None
        target: Array = op.accept(kind)
        op.result = Arrived(source, tag, kind, target)
        return message.take(target)


class _Swap:
    """Receives and sends at the same time; what comes must be as `out` is."""

    __slots__ = ("_failed", "_limit", "_receive", "_send", "_source", "_target")

    def __init__(
        self, receive: Message, send: Message, limit: int, failed: Failed, ranks: tuple[int, int]
    ) -> None:
        self._receive, self._send = receive, send
        self._limit, self._failed, (self._source, self._target) = limit, failed, ranks

    def __call__(self, x: Array, out: Array) -> bool:
        try:
            self._run(x, out)
        except BaseException:
            self._send.cancel()
            self._receive.cancel()
            raise
        return True

    def _run(self, x: Array, out: Array) -> None:
        arrived, sent = self._receive.start(out), self._send.start(x)
        if arrived is None or sent is None:
            arrived = self._wait(arrived, sent)
        if not arrived:
            self._refuse(out)

    def _wait(self, arrived: bool | None, sent: bool | None) -> bool:
        """Wait for both by turns, so that the end of either's rank is seen."""
        end = time.monotonic() + 1e-9 * self._limit
        while arrived is None or sent is None:
            left = nanoseconds_until(end, _SLICE)
            if arrived is None:
                arrived = self._receive.wait(left)
            elif sent is None:
                sent = self._send.wait(left)
            if sent is None:
                sent = self._send.test()
            if left < _SLICE and (arrived is None or sent is None):
                who = self._source if arrived is None else self._target
                raise self._failed(errno.ETIMEDOUT, who)
        return arrived

    def _refuse(self, out: Array) -> None:
        """Take what came and say that it does not fit."""
        source, _, kind = self._receive.found()
        dtype, shape = read_kind(kind)
        if self._receive.take(as_bytes(np.empty(shape, dtype))) is None:
            self._receive.wait(self._limit)
        check_out(out, shape, dtype, f"sendrecv from rank {source}")


def _peer(op: Operation) -> int:
    return _ANY if op.root is None else op.root


def _tag(op: Operation) -> int:
    return _ANY if op.tag is None else op.tag


def _kind(words: str) -> bytes:
    kind = words.encode()
    if len(kind) > _MOST_KIND:
        raise UnsupportedError(
            f"send: the array's dtype takes {len(kind)} bytes to describe, and messages inside a "
            f"machine carry {_MOST_KIND} at most. Send its fields one by one."
        )
    return kind

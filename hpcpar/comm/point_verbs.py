"""The point-to-point verbs as functions; see `verbs` for `group`, `timeout` and `async_op`."""

from __future__ import annotations

from typing import Any

from .group import Group
from .message_requests import Message
from .world import current

__all__ = [
    "probe",
    "recv",
    "send",
    "sendrecv",
]


def send(
    x: Any,
    dst: int,
    *,
    tag: int = 0,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Send `x` to rank `dst`; dtype and shape travel with it.

    Local, but large messages wait for the receiver.

    Raises
    ------
    ArgumentError
        No such rank, a tag outside 0..2**28-1, or `dst` is this rank (use `sendrecv`).
    UnsupportedError
        Arrays of Python objects.
    CollectiveTimeout
        Nobody received in time.
    """
    return (group or current()).send(x, dst, tag=tag, timeout=timeout, async_op=async_op)


def recv(
    src: int | None = None,
    *,
    tag: int | None = None,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Receive the next array from rank `src` with `tag`; None means any.

    Local, blocks until it is here.

    Raises
    ------
    ArgumentError
        No such rank; or `out` does not fit the message, which is then lost.
    CollectiveTimeout
        Nothing came in time; the group goes on.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> def body(g):
    ...     import numpy as np
    ...     return g.send(np.arange(2), 1) if g.rank == 0 else g.recv(0).tolist()
    >>> run_ranks(2, body)
    [None, [0, 1]]
    """
    return (group or current()).recv(src, tag=tag, out=out, timeout=timeout, async_op=async_op)


def sendrecv(
    x: Any,
    dst: int,
    src: int,
    *,
    tag: int = 0,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Send `x` to rank `dst` while receiving from rank `src`; cannot deadlock in rings.

    Local, blocks until both are done.

    Raises
    ------
    ArgumentError, UnsupportedError, CollectiveTimeout
        As `send` and `recv`.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(3, lambda g: int(g.sendrecv(g.rank, (g.rank + 1) % 3, (g.rank - 1) % 3)))
    [2, 0, 1]
    """
    return (group or current()).sendrecv(
        x, dst, src, tag=tag, out=out, timeout=timeout, async_op=async_op
    )


def probe(
    src: int | None = None, *, tag: int | None = None, group: Group | None = None
) -> Message | None:
    """Return what the next message from `src` with `tag` is, or None. Local, does not wait.

    Examples
    --------
    >>> import hpcpar as hp
    >>> hp.init().probe() is None
    True
    """
    return (group or current()).probe(src, tag=tag)

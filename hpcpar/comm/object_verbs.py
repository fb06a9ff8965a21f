"""The object verbs as functions: plain containers and arrays through the safe codec; blocking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .group import Group
from .world import current

__all__ = [
    "all_gather_object",
    "all_to_all_object",
    "broadcast_object",
    "gather_object",
    "recv_object",
    "scatter_object",
    "send_object",
]


def broadcast_object(
    obj: Any = None, *, root: int = 0, allow_pickle: bool = False, group: Group | None = None
) -> Any:
    """Return the root's object on every rank. Collective over `group`; blocks.

    Objects are numbers, strings, bytes, containers, NumPy arrays and scalars, dtypes and
    scipy.sparse arrays, nested; others only with ``allow_pickle=True`` on all ranks.

    Raises
    ------
    UnsupportedError
        The object holds something else; on every rank.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(2, lambda g: g.broadcast_object({"a": [1, "x"]} if g.rank == 0 else None))
    [{'a': [1, 'x']}, {'a': [1, 'x']}]
    """
    return (group or current()).broadcast_object(obj, root=root, allow_pickle=allow_pickle)


def all_gather_object(
    obj: Any, *, allow_pickle: bool = False, group: Group | None = None
) -> list[Any]:
    """Return the list of all ranks' objects, on every rank. Collective over `group`; blocks.

    Objects as in `broadcast_object`.

    Raises
    ------
    UnsupportedError
        This rank's object cannot travel; before any traffic.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(2, lambda g: g.all_gather_object("r" * g.rank))
    [['', 'r'], ['', 'r']]
    """
    return (group or current()).all_gather_object(obj, allow_pickle=allow_pickle)


def gather_object(
    obj: Any, *, root: int = 0, allow_pickle: bool = False, group: Group | None = None
) -> list[Any] | None:
    """Return the list of all ranks' objects on the root, None elsewhere.

    Collective over `group`; blocks.
    """
    return (group or current()).gather_object(obj, root=root, allow_pickle=allow_pickle)


def scatter_object(
    objs: Sequence[Any] | None = None,
    *,
    root: int = 0,
    allow_pickle: bool = False,
    group: Group | None = None,
) -> Any:
    """Return ``objs[rank]`` of the root's sequence. Collective over `group`; blocks."""
    return (group or current()).scatter_object(objs, root=root, allow_pickle=allow_pickle)


def all_to_all_object(
    objs: Sequence[Any], *, allow_pickle: bool = False, group: Group | None = None
) -> list[Any]:
    """Send ``objs[r]`` to rank r; return what comes, in rank order.

    Collective over `group`; blocks.
    """
    return (group or current()).all_to_all_object(objs, allow_pickle=allow_pickle)


def send_object(
    obj: Any, dst: int, *, tag: int = 0, allow_pickle: bool = False, group: Group | None = None
) -> None:
    """Send an object to rank `dst`; see `broadcast_object` for what may travel.

    Local, but large messages wait for the receiver.
    """
    (group or current()).send_object(obj, dst, tag=tag, allow_pickle=allow_pickle)


def recv_object(
    src: int | None = None,
    *,
    tag: int | None = None,
    allow_pickle: bool = False,
    group: Group | None = None,
) -> Any:
    """Receive an object from rank `src` with `tag`; None means any.

    Local, blocks until it is here.
    """
    return (group or current()).recv_object(src, tag=tag, allow_pickle=allow_pickle)

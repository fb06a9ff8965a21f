"""What operations on distributed arrays may do on their own, in the current context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ..errors import ArgumentError, UnsupportedError

__all__ = [
    "CommCounts",
    "Modes",
    "Policy",
    "comm_mode",
    "current",
    "fallback",
    "implicit_replication",
]

Policy: TypeAlias = Literal["error", "gather"]


@dataclass
class CommCounts:
    """How arrays were moved on their own inside `comm_mode`, on this rank.

    Attributes
    ----------
    redistributions : list of (str, str)
        The operation that wanted it, and from which layout to which.
    """

    redistributions: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.redistributions)


@dataclass(frozen=True)
class Modes:
    """What holds in a context.

    Attributes
    ----------
    fallback : {"error", "gather"}
        What happens where an operation has no rule for how its arguments lie.
    plain_is_replicated : bool
        Whether NumPy arrays beside distributed ones are taken as the same on every rank.
    counts : tuple of CommCounts
        Who counts, the blocks around this one too.
    forbids : bool
        Whether moving an array for an operation is an error.
    """

    fallback: Policy = "error"
    plain_is_replicated: bool = False
    counts: tuple[CommCounts, ...] = ()
    forbids: bool = False


_PLAIN = Modes()
_modes: ContextVar[Modes] = ContextVar("hpcpar_dtensor", default=_PLAIN)


def current() -> Modes:
    """Return what holds in this context. Local."""
    return _modes.get()


@contextmanager
def _with(modes: Modes) -> Iterator[None]:
    token = _modes.set(modes)
    try:
        yield
    finally:
        _modes.reset(token)


@contextmanager
def implicit_replication() -> Iterator[None]:
    """Take NumPy arrays as replicated where they meet distributed ones in the block. Local.

    They must be the same on every rank. Without this they are a TypeError.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> mesh = hp.init_device_mesh((1,), ("dp",))
    >>> x = hp.distribute(np.arange(3), mesh, hp.Shard(0))
    >>> with hp.dtensor.implicit_replication():
    ...     (x + np.ones(3, int)).full()
    array([1, 2, 3])
    """
    with _with(replace(current(), plain_is_replicated=True)):
        yield


@contextmanager
def fallback(policy: Policy) -> Iterator[None]:
    """Choose what happens in the block where an operation has no rule. Local.

    Parameters
    ----------
    policy : {"error", "gather"}
        "error" is what holds outside: UnsupportedError on every rank. "gather" computes with whole
        arrays on every rank.

    Raises
    ------
    ArgumentError
        Another policy.
    """
    if policy not in ("error", "gather"):
        raise ArgumentError(f"fallback: policy {policy!r} must be 'error' or 'gather'.")
    with _with(replace(current(), fallback=policy)):
        yield


@contextmanager
def comm_mode(*, forbid: bool = False) -> Iterator[CommCounts]:
    """Count the arrays that operations in the block move on their own. Local.

    Parameters
    ----------
    forbid : bool
        Moving one is an UnsupportedError, before any traffic; also in blocks inside. What a
        program asks for (`redistribute`, `full`) is no such move, nor are reductions over sharded
        axes; reducing what is Partial for a function that needs it is one.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     mesh = hp.init_device_mesh((2,), ("dp",), group=group)
    ...     x = hp.distribute(np.ones((2, 2)), mesh, hp.Shard(0))
    ...     with hp.dtensor.comm_mode() as moved:
    ...         y = x + x.redistribute(hp.Shard(1))
    ...     return len(moved)
    >>> run_ranks(2, body)
    [1, 1]
    """
    counts = CommCounts()
    outer = current()
    inner = replace(outer, counts=(*outer.counts, counts), forbids=forbid or outer.forbids)
    with _with(inner):
        yield counts


def note_move(verb: str, src: object, dst: object) -> None:
    """Count a move that an operation makes on its own, or refuse it. Local."""
    modes = current()
    if modes.forbids:
        raise UnsupportedError(
            f"{verb}: would move an array from {src} to {dst}, which comm_mode(forbid=True) "
            "forbids. Call redistribute yourself."
        )
    for counts in modes.counts:
        counts.redistributions.append((verb, f"{src} -> {dst}"))

"""One-sided access to symmetric arrays of other ranks of the node, in OpenSHMEM's words.

The target is named by one's own array, or a view of it: it is the same place of the other rank's
copy. That rank must keep it until the others are done: a barrier says so. Nothing but `wait_signal`
waits for anybody. What was put before a `signal` is there for who has seen the signal.
"""

from __future__ import annotations

import math
import time
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import Array
from .._core import add_word, store_word
from ..errors import ArgumentError, CollectiveTimeout, UnsupportedError
from . import where
from .layout import check_out
from .request import check_rank
from .settings import check_timeout
from .world import current

if TYPE_CHECKING:
    from .backend import Backend
    from .group import Group

__all__ = ["fetch_add", "get", "put", "signal", "wait_signal"]

_COMPARE = ("eq", "ne", "ge", "gt", "le", "lt")
_SLICE_NS = 40_000_000  # between two looks at deaths, deadlines and the system's signals
_WORDS = (np.dtype(np.int64), np.dtype(np.uint64))


def put(dst: Array, x: Any, rank: int, *, group: Group | None = None) -> None:
    """Write `x` to the place of `dst` in the copy of another rank. Local.

    Parameters
    ----------
    dst : ndarray
        My symmetric array, or a view of it; C-contiguous. It is not written to itself.
    x : array-like
        Of the shape of `dst`, or one that broadcasts to it.
    rank : int
        Of `group`; my own is allowed.
    group : Group, optional
        Default: the group of the innermost ``with group:``, else the world.

    Raises
    ------
    ArgumentError
        `dst` is not symmetric, not contiguous, or the rank has no part in it.
    UnsupportedError
        There is no engine: the ranks do not share memory.

    Examples
    --------
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     x = hp.symmetric.zeros(2, group=group)
    ...     hp.symmetric.put(x, group.rank + 1, (group.rank + 1) % group.size, group=group)
    ...     group.barrier()
    ...     return x.tolist()
    >>> run_ranks(2, body)
    [[2.0, 2.0], [1.0, 1.0]]
    """
    verb, group = "symmetric.put", group or current()
    theirs = _theirs(verb, dst, rank, group, carrier(verb, group))
    try:
        theirs[...] = x
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{verb}: x does not fit into dst: {error}.") from error


def get(src: Array, rank: int, *, out: Array | None = None, group: Group | None = None) -> Array:
    """Return what lies at the place of `src` in the copy of another rank. Local.

    Parameters
    ----------
    src : ndarray
        My symmetric array, or a view of it; C-contiguous. It is not read itself.
    rank : int
    out : ndarray, optional
        Receives it.
    group : Group, optional

    Raises
    ------
    ArgumentError, UnsupportedError
        As `put`.

    Examples
    --------
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     x = hp.symmetric.zeros(2, group=group)
    ...     x[:] = group.rank
    ...     group.barrier()
    ...     got = hp.symmetric.get(x, 1 - group.rank, group=group)
    ...     group.barrier()
    ...     return got.tolist()
    >>> run_ranks(2, body)
    [[1.0, 1.0], [0.0, 0.0]]
    """
    verb, group = "symmetric.get", group or current()
    theirs = _theirs(verb, src, rank, group, carrier(verb, group))
    if out is None:
        return theirs.copy()
    check_out(out, theirs.shape, theirs.dtype, verb)
    out[...] = theirs
    return out


def fetch_add(x: Array, value: int, rank: int, *, group: Group | None = None) -> int:
    """Add to a number of another rank in one step, and return what it was. Local.

    Nobody is woken: for that there is ``signal(add=True)``.

    Parameters
    ----------
    x : ndarray
        One element, int64 or uint64, of my symmetric array: names the place.
    value : int
        Sums wrap.
    rank : int
    group : Group, optional

    Raises
    ------
    ArgumentError, UnsupportedError
        As `put`; more than one element, or another dtype.

    Examples
    --------
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     ticket = hp.symmetric.zeros(1, "int64", group=group)
    ...     mine = hp.symmetric.fetch_add(ticket, 1, 0, group=group)
    ...     group.barrier()
    ...     return mine
    >>> sorted(run_ranks(3, body))
    [0, 1, 2]
    """
    verb, group = "symmetric.fetch_add", group or current()
    word = _word(verb, x, rank, group, carrier(verb, group))
    return int(np.uint64(add_word(word, _wrapped(value))).astype(x.dtype))


def signal(
    x: Array, value: int, rank: int, *, add: bool = False, group: Group | None = None
) -> None:
    """Set a number of another rank, or add to it, and wake who waits for it. Local.

    What this rank has `put` before is there when the signal is seen.

    Parameters
    ----------
    x : ndarray
        One element, int64 or uint64, of my symmetric array: names the place.
    value : int
    rank : int
    add : bool
        Add `value` instead.
    group : Group, optional

    Raises
    ------
    ArgumentError, UnsupportedError
        As `fetch_add`.

    Examples
    --------
    See `wait_signal`.
    """
    verb, group = "symmetric.signal", group or current()
    backend = carrier(verb, group)
    word = _word(verb, x, rank, group, backend)
    (add_word if add else store_word)(word, _wrapped(value))
    if backend.heap is not None:
        backend.heap.core.ring(backend.places[rank])


def wait_signal(
    x: Array,
    value: int,
    *,
    compare: str = "ge",
    timeout: float | None = None,
    group: Group | None = None,
) -> int:
    """Sleep until a number of mine compares as asked; return it. Blocks.

    Parameters
    ----------
    x : ndarray
        One element, int64 or uint64, of my symmetric array, which others `signal`.
    value : int
    compare : {"ge", "gt", "eq", "ne", "le", "lt"}
        The wait ends when ``x >= value``, and so on.
    timeout : float, optional
        Seconds; default: the group's.
    group : Group, optional

    Raises
    ------
    CollectiveTimeout
        It did not within that time.
    ArgumentError, UnsupportedError
        As `fetch_add`.

    Examples
    --------
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     data = hp.symmetric.zeros(3, group=group)
    ...     ready = hp.symmetric.zeros(1, "int64", group=group)
    ...     if group.rank == 0:
    ...         hp.symmetric.put(data, 7, 1, group=group)
    ...         hp.symmetric.signal(ready, 1, 1, group=group)
    ...     else:
    ...         hp.symmetric.wait_signal(ready, 1, group=group)
    ...     group.barrier()
    ...     return data.tolist()
    >>> run_ranks(2, body)
    [[0.0, 0.0, 0.0], [7.0, 7.0, 7.0]]
    """
    verb, group = "symmetric.wait_signal", group or current()
    backend = carrier(verb, group)
    if compare not in _COMPARE:
        raise ArgumentError(f"{verb}: compare {compare!r} must be one of {_COMPARE}.")
    word = _word(verb, x, group.rank, group, backend)
    limit = check_timeout(timeout, verb, group.settings.timeout)
    end = math.inf if limit is None else time.monotonic() + limit
    is_signed = x.dtype.kind == "i"
    if value < 0 and not is_signed:
        raise ArgumentError(f"{verb}: value {value} must be 0 or more, as x is uint64.")
    asked = (_COMPARE.index(compare), _wrapped(value), is_signed)
    if backend.heap is None:
        raise _no_memory(verb, group)
    while (seen := backend.heap.core.wait_word(word, *asked, _SLICE_NS)) is None:
        with where.located(group.here):
            backend.heap.check_alive(backend.places, group.rank)
        if time.monotonic() > end:
            raise CollectiveTimeout(
                f"{verb}: the number is {word[()]}, and not {compare} {value} after {limit:g} s "
                f"{group.here()}."
            )
    return int(np.uint64(seen).astype(x.dtype))


def carrier(verb: str, group: Group) -> Backend:
    """Return who carries a group, or raise what its verbs would: closed, failed, not my group."""
    with where.located(group.here):
        runner = group._member(verb)
        runner.check_usable(verb)
    return runner.backend


def _theirs(verb: str, mine: Array, rank: int, group: Group, backend: Backend) -> Array:
    """Return the place of my array in the copy of another rank."""
    other = check_rank(rank, group.size, verb, "rank")
    if not isinstance(mine, np.ndarray) or not mine.flags.c_contiguous:
        raise ArgumentError(f"{verb}: the place must be named by a C-contiguous NumPy array.")
    if other == group.rank or mine.size == 0:
        return mine
    if backend.heap is None:
        raise _no_memory(verb, group)
    theirs = backend.heap.copy_of(mine, backend.places[other])
    if theirs is None:
        raise ArgumentError(
            f"{verb}: rank {other} has no copy of this array, or has dropped it {group.here()}. "
            "Make it with hp.symmetric.empty on a group of both, and keep it until both are done."
        )
    return theirs


def _no_memory(verb: str, group: Group) -> UnsupportedError:
    return UnsupportedError(
        f"{verb}: the ranks of this group share no memory (backend {group.backend}) "
        f"{group.here()}. Use send and recv."
    )


def _word(verb: str, x: Array, rank: int, group: Group, backend: Backend) -> Array:
    if not isinstance(x, np.ndarray) or x.size != 1 or x.dtype not in _WORDS:
        raise ArgumentError(f"{verb}: x must be one element, int64 or uint64.")
    word = _theirs(verb, x, rank, group, backend).reshape(())
    if not word.flags.aligned or not word.flags.writeable:
        raise ArgumentError(f"{verb}: x must be aligned to 8 bytes, and writable.")
    return word


def _wrapped(value: int) -> int:
    return index(value) & (1 << 64) - 1

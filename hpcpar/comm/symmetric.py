"""Symmetric arrays: they lie in memory that all ranks of a node share, so collectives copy less.

An array made by `empty` or `zeros` is an ordinary NumPy array for everything else. Where all ranks
of a call give symmetric arrays, of any block and at any place in it, each reads and writes the
others' where they lie: all_reduce (with a symmetric `out`, or in place), reduce, reduce_scatter,
all_gather, broadcast, gather, scatter, all_to_all, scan (not in place). The result is the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import Array, adopt
from ..errors import ArgumentError, MismatchError, UnsupportedError
from . import describe, window
from .heap import PAGE, Heap, find_gap, whole_pages
from .one_sided import carrier, fetch_add, get, put, signal, wait_signal
from .world import current

if TYPE_CHECKING:
    from .group import Group

__all__ = [
    "concatenated",
    "empty",
    "empty_like",
    "fetch_add",
    "get",
    "is_symmetric",
    "put",
    "signal",
    "wait_signal",
    "zeros",
]


def empty(
    shape: int | Sequence[int], dtype: Any = np.float64, *, group: Group | None = None
) -> Array:
    """Return a new array in memory that the ranks of a node share; its values are arbitrary.

    Collective over `group`; blocks. The memory is free again, for all, when every rank has dropped
    its array and all views of it, at the next call of this function.

    Parameters
    ----------
    shape : int or sequence of int
        The same on every rank.
    dtype : dtype
        The same on every rank; no Python objects.
    group : Group, optional
        Default: the group of the innermost ``with group:``, else the world.

    Returns
    -------
    ndarray
        C-contiguous, beginning on a page. An ordinary array where there is no engine to share
        memory (the `mpi` and `fake` backends), or nobody to share it with.

    Raises
    ------
    ArgumentError, UnsupportedError
        A negative length; a dtype with objects.
    MismatchError
        Ranks ask for different shapes or dtypes; all raise, and the group still works.
    MemoryError
        A rank has not that much; all raise, and the group still works.

    Examples
    --------
    >>> import hpcpar as hp
    >>> group = hp.init()
    >>> x = hp.symmetric.empty(3, dtype="float32")
    >>> x[:] = group.rank + 1
    >>> group.all_reduce(x, out=x).tolist() == [sum(range(group.size + 1))] * 3
    True
    """
    return _make("symmetric.empty", shape, dtype, group or current())


def zeros(
    shape: int | Sequence[int], dtype: Any = np.float64, *, group: Group | None = None
) -> Array:
    """Return a new array of zeros, otherwise like `empty`. Collective over `group`; blocks.

    Examples
    --------
    >>> import hpcpar as hp
    >>> group = hp.init()
    >>> hp.symmetric.zeros((2, 2)).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return _make("symmetric.zeros", shape, dtype, group or current(), clear=True)


def empty_like(x: Any, *, group: Group | None = None) -> Array:
    """Return a new array of the shape and dtype of `x`, otherwise like `empty`.

    Collective over `group`; blocks.

    Examples
    --------
    >>> import hpcpar as hp, numpy as np
    >>> group = hp.init()
    >>> hp.symmetric.empty_like(np.ones((2, 3), "int8")).shape
    (2, 3)
    """
    like, _ = adopt(x, "symmetric.empty_like")
    native = like.dtype.newbyteorder("=")
    return _make("symmetric.empty_like", like.shape, native, group or current())


def concatenated(group: Group, nbytes: int) -> Array:
    """Return the parts of all ranks of a node side by side, as one array that all of them see.

    Collective over `group`; blocks. What a rank writes to its part, row ``group.rank``, the others
    see after a barrier: a gather that copies nothing. Parts lie in memory near their rank.

    Parameters
    ----------
    group : Group
        Its ranks share memory.
    nbytes : int
        Bytes of each rank's part, the same on all.

    Returns
    -------
    ndarray of uint8
        Shape (size, nbytes), zeros; ``.view(dtype)`` where the lengths allow. It is symmetric,
        but there is one for all: let each rank write its own part only.

    Raises
    ------
    ArgumentError, MismatchError, MemoryError
        As `empty`.
    UnsupportedError
        The ranks share no memory.

    Examples
    --------
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     whole = hp.symmetric.concatenated(group, 16).view("float64")
    ...     whole[group.rank] = group.rank + 1
    ...     group.barrier()
    ...     return whole.ravel().tolist()
    >>> run_ranks(2, body)[1]
    [1.0, 1.0, 2.0, 2.0]
    """
    verb = "symmetric.concatenated"
    if not isinstance(nbytes, (int, np.integer)):
        raise ArgumentError(f"{verb}: nbytes {nbytes!r} must be a number of bytes.")
    (length,), _ = _check(verb, nbytes, np.uint8)
    heap = carrier(verb, group).heap
    if group.size == 1:
        return np.zeros((1, length), np.uint8)
    if heap is None:
        raise UnsupportedError(
            f"{verb}: the ranks of this group share no memory (backend {group.backend}) "
            f"{group.here()}. Use all_gather."
        )
    whole = share(verb, group, length * group.size, length).reshape(group.size, length)
    whole[group.rank] = 0
    group.barrier()
    return whole


def is_symmetric(x: Any, *, group: Group | None = None) -> bool:
    """Whether an array, or what it is a view of, is symmetric and may still be used so. Local.

    Parameters
    ----------
    x : array
    group : Group, optional
        Any group of the world that the array was made in.

    Examples
    --------
    >>> import hpcpar as hp, numpy as np
    >>> group = hp.init()
    >>> hp.symmetric.is_symmetric(np.ones(3))
    False
    """
    runner = (group or current())._runner
    heap = None if runner is None else runner.backend.heap
    return heap is not None and isinstance(x, np.ndarray) and x.size > 0 and heap.holds(x)


def _make(
    verb: str, shape: int | Sequence[int], dtype: Any, group: Group, *, clear: bool = False
) -> Array:
    lengths, kind = _check(verb, shape, dtype)
    backend = carrier(verb, group)
    heap = backend.heap
    if heap is None or group.size == 1:
        return (np.zeros if clear else np.empty)(lengths, kind)
    nbytes = whole_pages(max(1, prod(lengths) * kind.itemsize))
    wanted = lengths, describe.dtype_text(kind)
    at, key = _agree(verb, group, heap, wanted, nbytes, group.size)
    _reserve(verb, group, heap, at, nbytes, lambda: heap.reserve(at, nbytes))
    memory = heap.take(at, nbytes, key, backend.places)
    if clear:
        memory[...] = 0
    group.barrier()  # whoever makes the next one sees this one, or puts something into it
    return memory[: prod(lengths) * kind.itemsize].view(kind).reshape(lengths)


def share(verb: str, group: Group, size: int, part: int = 0) -> Array:
    """Return bytes that lie once, in the window of the group's first rank; values are arbitrary.

    Each rank gets the memory for its `part` bytes first, so that they lie near it.
    """
    backend = carrier(verb, group)
    heap, places = backend.heap, backend.places
    assert heap is not None
    nbytes, home = whole_pages(max(1, size)), places[0]
    at, key = _agree(verb, group, heap, (size, "bytes"), nbytes, 1)
    data = at + PAGE + group.rank * part
    _reserve(verb, group, heap, at, nbytes, lambda: heap.touch(home, data, part))
    own = nbytes if group.rank == 0 else 0
    _reserve(verb, group, heap, at, nbytes, lambda: heap.reserve(at, own))
    return heap.take(at, nbytes, key, places, home)[:size]


def zeros_for_all(nbytes: int, group: Group) -> Array:
    """Return bytes of zeros, symmetric if ranks can share that much. Collective over `group`."""
    try:
        return zeros(nbytes, np.uint8, group=group)
    except MemoryError:  # on all ranks alike
        return np.zeros(nbytes, np.uint8)


def _check(
    verb: str, shape: int | Sequence[int], dtype: Any
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    kind = np.dtype(dtype).newbyteorder("=")
    lengths = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in lengths):
        raise ArgumentError(f"{verb}: shape {shape!r} must be lengths of 0 or more.")
    if kind.hasobject:
        raise UnsupportedError(f"{verb}: dtype {kind} holds Python objects, which no rank shares.")
    return tuple(int(n) for n in lengths), kind


def _agree(
    verb: str, group: Group, heap: Heap, wanted: tuple[Any, str], nbytes: int, copies: int
) -> tuple[int, int]:
    """Claim a place for `nbytes` on all ranks; return it, and a key for the block."""
    while True:
        key = int.from_bytes(os.urandom(8), "little") | 1
        rows = group.all_gather_object((wanted, heap.spans(), window.free_memory(), key))
        _compare(verb, group, [row[0] for row in rows])
        free = [row[2] for row in rows if row[2] is not None]
        if free and copies * nbytes > min(free):
            raise MemoryError(
                f"{verb}: {copies * nbytes} bytes are needed on this machine, and {min(free)} are "
                f"free {group.here()}. Use smaller arrays, or fewer ranks."
            )
        taken = [span for row in rows for span in row[1]]
        at = find_gap(taken, PAGE + nbytes, heap.begin, heap.end)
        if at is None:
            raise MemoryError(
                f"{verb}: {nbytes} bytes are nowhere free in the {heap.end - heap.begin} that "
                f"ranks of this node share {group.here()}. Drop arrays first, or raise the limits "
                "on address space and file size (ulimit -v, ulimit -f)."
            )
        is_mine = heap.claim(at, nbytes)
        if group.all_gather(np.array([is_mine]), sizes="equal").all():
            return at, rows[0][3]
        if is_mine:  # another thread of another rank was faster
            heap.unclaim(at, nbytes)


def _compare(verb: str, group: Group, wanted: Sequence[tuple[Any, str]]) -> None:
    for field, name in enumerate(("shape", "dtype")):
        values = [one[field] for one in wanted]
        for rank, value in enumerate(values):
            if value != values[0]:
                raise MismatchError(
                    f"{verb}: ranks disagree on {name}: rank 0 has {values[0]}, rank {rank} has "
                    f"{value} {group.here()}. Nothing was made; the group still works."
                )


def _reserve(
    verb: str, group: Group, heap: Heap, at: int, nbytes: int, get: Callable[[], None]
) -> None:
    """Call `get` on all ranks; where one gets no memory, all give back what they have."""
    error = None
    try:
        get()
    except MemoryError as caught:
        error = caught
    failed = np.flatnonzero(group.all_gather(np.array([error is not None]), sizes="equal"))
    if failed.size:
        heap.give_back(at, nbytes)
        raise error or MemoryError(
            f"{verb}: rank {failed[0]} has not {nbytes} bytes more {group.here()}."
        )

"""One copy per node of what all its ranks only read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import Array, adopt, as_bytes, contiguous
from .one_sided import carrier
from .root import on_root
from .symmetric import share
from .world import current

if TYPE_CHECKING:
    from .group import Group

__all__ = ["node_shared"]


def node_shared(x: Any, *, group: Group | None = None) -> Array:
    """Return a read-only array that lies once in the memory of each node, for all its ranks.

    Collective over `group`; blocks. For tables that are too large to have one for each rank.

    Parameters
    ----------
    x : array, or callable that returns one
        A callable is called on the first rank of each node only; an array counts there only, and
        may be None elsewhere. Other ranks wait without a deadline.
    group : Group, optional
        Default: the group of the innermost ``with group:``, else the world.

    Returns
    -------
    ndarray
        C-contiguous and read-only. The memory is free again when all ranks of the node have
        dropped it, at the next call. Where ranks of a node do not share memory (the `mpi`
        backend) each has a copy.

    Raises
    ------
    Exception
        What the callable raised, on all ranks of the node.
    UnsupportedError
        A dtype with Python objects.
    MemoryError
        There is not that much memory.

    Examples
    --------
    >>> import hpcpar as hp, numpy as np
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     table = hp.node_shared(lambda: np.arange(4) ** 2)
    ...     return table[group.rank]
    >>> [int(n) for n in run_ranks(3, body)]
    [0, 1, 4]
    """
    node = (group or current()).node
    made: list[Array] = []
    like, shape = on_root(lambda: _describe(x, made), group=node)
    if node.size == 1 or carrier("node_shared", node).heap is None:
        found: Array = node.broadcast(made[0] if made else None, root=0)
    else:
        found = _shared(node, made, like.dtype, shape)
    found.flags.writeable = False
    return found


def _describe(x: Any, made: list[Array]) -> tuple[Array, tuple[int, ...]]:
    """Keep the array in `made`; return an empty one of its dtype, and its shape."""
    given = x() if callable(x) else x
    array, _ = adopt(given, "node_shared")
    made.append(contiguous(array))
    return np.empty(0, made[0].dtype), array.shape


def _shared(node: Group, made: list[Array], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    memory = share("node_shared", node, count * dtype.itemsize)
    if made:
        memory[...] = as_bytes(made[0].reshape(-1))
    node.barrier()
    return memory.view(dtype).reshape(shape)

"""The verbs as functions: each calls the method of `group`, or of the default group.

All also take ``timeout`` (seconds; None = the group's) and ``async_op``
(True returns a `Work`; the arrays given are then read-only until it is done). Without ``out`` a
new array is returned; ``out=x`` works in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .group import Group
from .world import current

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "permute",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
]


def all_reduce(
    x: Any,
    op: Any = "sum",
    *,
    weight: float | None = None,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce `x` over all ranks; every rank gets the same bits.

    Collective over `group`; blocks unless `async_op`.

    Parameters
    ----------
    x : array, scalar or tree (dict, list, tuple, nested) of them
        Same shape and dtype on every rank. A tree is packed into one operation per dtype.
    op : {"sum", "mean", "avg", "prod", "min", "max", "band", "bor", "bxor"} or premul_sum(factor)
        "avg" is "mean". Half types are accumulated in float32; NaN wins in min and max.
    weight : float, optional
        With "mean": this rank's weight; the result is sum(w * x) / sum(w).
    out : like x, optional
        Receives the result.
    group : Group, optional
        Default: the group of the innermost ``with group:``, else the world.

    Returns
    -------
    like x
        Of x's shape, dtype and kind.

    Raises
    ------
    UnsupportedError
        The dtype x op table has no entry. Before any traffic.
    MismatchError
        Ranks disagree on dtype, shape, op or tree. On every rank; the group still works.
    CollectiveTimeout
        A rank did not come in time; the group is failed afterwards.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> import numpy as np
    >>> run_ranks(2, lambda g: g.all_reduce(np.array([1.0, 2.0]) * (g.rank + 1)).tolist())
    [[3.0, 6.0], [3.0, 6.0]]
    """
    return (group or current()).all_reduce(
        x, op, weight=weight, out=out, timeout=timeout, async_op=async_op
    )


def reduce(
    x: Any,
    op: Any = "sum",
    *,
    root: int = 0,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce `x` over all ranks; the root gets the result, the others None.

    Collective over `group`. Arguments as in `all_reduce`; `root` is a rank in the group, and
    `out` receives on the root only.

    Raises
    ------
    ArgumentError, UnsupportedError, MismatchError, CollectiveTimeout
        As `all_reduce`; the root must agree too.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(3, lambda g: g.reduce(g.rank + 1, root=2))
    [None, None, 6]
    """
    return (group or current()).reduce(
        x, op, root=root, out=out, timeout=timeout, async_op=async_op
    )


def scan(
    x: Any,
    op: Any = "sum",
    *,
    exclusive: bool = False,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce `x` over the ranks 0 to mine, or to the one before mine where `exclusive`.

    Collective over `group`. Arguments as in `all_reduce`, without "mean". Rank 0 of an exclusive
    scan gets the neutral element.

    Raises
    ------
    ArgumentError, UnsupportedError, MismatchError, CollectiveTimeout
        As `all_reduce`.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(3, lambda g: (g.scan(g.rank + 1), g.scan(g.rank + 1, exclusive=True)))
    [(1, 0), (3, 1), (6, 3)]
    """
    return (group or current()).scan(
        x, op, exclusive=exclusive, out=out, timeout=timeout, async_op=async_op
    )


def reduce_scatter(
    x: Any,
    op: Any = "sum",
    *,
    axis: int = 0,
    sizes: Sequence[int] | None = None,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce `x` over all ranks; each rank gets its part along `axis`.

    Collective over `group`.

    Parameters
    ----------
    x : array of shape (..., n, ...)
        Same shape and dtype on every rank; n along `axis`.
    op
        As in `all_reduce`.
    sizes : sequence of int, optional
        Each rank's part of n. Default: the uneven rule, chunk = ceil(n / size).
    out : array, optional

    Returns
    -------
    array
        Of shape (..., sizes[rank], ...).

    Raises
    ------
    ArgumentError, UnsupportedError, MismatchError, CollectiveTimeout
        As `all_reduce`; axis and sizes must agree too.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> import numpy as np
    >>> run_ranks(2, lambda g: g.reduce_scatter(np.arange(3)).tolist())
    [[0, 2], [4]]
    """
    return (group or current()).reduce_scatter(
        x, op, axis=axis, sizes=sizes, out=out, timeout=timeout, async_op=async_op
    )


def barrier(
    *, group: Group | None = None, timeout: float | None = None, async_op: bool = False
) -> Any:
    """Wait until every rank of `group` has called it. Collective over `group`; blocks.

    Raises
    ------
    CollectiveTimeout
        A rank did not come in time; the message names it where the backend can know.
    """
    return (group or current()).barrier(timeout=timeout, async_op=async_op)


def broadcast(
    x: Any = None,
    *,
    root: int = 0,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Return the root's array, scalar or tree on every rank.

    Collective over `group`.

    Parameters
    ----------
    x : array, scalar or tree
        On the root: what is sent. Elsewhere optional; if given, it must match the root's.
    root : int
        Rank in the group.
    out : like x, optional
        Receives the result. With ``init(check="off")`` it is given on all ranks or on none.

    Raises
    ------
    MismatchError
        x or out of some rank does not match the root's, or the root refused its own.
    ArgumentError, UnsupportedError, CollectiveTimeout
        As `all_reduce`.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(2, lambda g: g.broadcast({"lr": 0.5} if g.rank == 0 else None))
    [{'lr': 0.5}, {'lr': 0.5}]
    """
    return (group or current()).broadcast(x, root=root, out=out, timeout=timeout, async_op=async_op)


def all_gather(
    x: Any,
    *,
    axis: int = 0,
    sizes: Sequence[int] | str | None = None,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Return all ranks' arrays concatenated along `axis`, in rank order, on every rank.

    Collective over `group`. Any dtype without Python objects.

    Parameters
    ----------
    x : array of shape (..., n_r, ...), or scalar
        n_r along `axis` may differ by rank. Scalars and 0-d arrays give shape (size,).
    sizes : None, "equal" or sequence of int
        None: lengths are exchanged. "equal": promised to be the same, and checked. Ints: known.
    out : array, optional
        Shape of the result. With promised sizes `x` may be this rank's block of it.

    Raises
    ------
    ArgumentError, UnsupportedError, MismatchError, CollectiveTimeout
        As `all_reduce`; dtype and the other axes must agree.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> import numpy as np
    >>> run_ranks(2, lambda g: g.all_gather(np.full(g.rank + 1, g.rank)).tolist())
    [[0, 1, 1], [0, 1, 1]]
    """
    return (group or current()).all_gather(
        x, axis=axis, sizes=sizes, out=out, timeout=timeout, async_op=async_op
    )


def gather(
    x: Any,
    *,
    root: int = 0,
    axis: int = 0,
    sizes: Sequence[int] | str | None = None,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Return all ranks' arrays concatenated along `axis` on the root, None elsewhere.

    Collective over `group`. Arguments as in `all_gather`.

    Raises
    ------
    ArgumentError, UnsupportedError, MismatchError, CollectiveTimeout
        As `all_gather`; the root must agree too.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(2, lambda g: g.gather(g.rank, root=1) is None)
    [True, False]
    """
    return (group or current()).gather(
        x, root=root, axis=axis, sizes=sizes, out=out, timeout=timeout, async_op=async_op
    )


def scatter(
    x: Any = None,
    *,
    root: int = 0,
    axis: int = 0,
    sizes: Sequence[int] | None = None,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Return this rank's part, along `axis`, of the root's array.

    Collective over `group`. x, axis and sizes count on the root only.

    Parameters
    ----------
    x : array of shape (..., n, ...)
        On the root.
    sizes : sequence of int, optional
        Each rank's part of n. Default: the uneven rule, chunk = ceil(n / size).

    Raises
    ------
    MismatchError
        Ranks disagree on the root, `out` of some rank does not fit, or the root refused.
    ArgumentError, UnsupportedError, CollectiveTimeout
        As `all_reduce`.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> import numpy as np
    >>> run_ranks(3, lambda g: g.scatter(np.arange(4) if g.rank == 0 else None).tolist())
    [[0, 1], [2, 3], []]
    """
    return (group or current()).scatter(
        x, root=root, axis=axis, sizes=sizes, out=out, timeout=timeout, async_op=async_op
    )


def all_to_all(
    x: Any,
    *,
    axis: int = 0,
    sizes: Sequence[int] | Sequence[Sequence[int]] | str | None = None,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Send a part of `x`, along `axis`, to every rank; return the parts for me in rank order.

    Collective over `group`.

    Parameters
    ----------
    x : array of shape (..., n_r, ...)
    sizes : sequence of int, optional
        Lengths that I send to each rank. Default: the uneven rule. "equal": all parts of all
        ranks are of one size; or a row of lengths for each rank, what it sends to each. Both are
        promised and checked, and nothing is exchanged before the data.

    Raises
    ------
    ArgumentError, UnsupportedError, MismatchError, CollectiveTimeout
        As `all_gather`. A wrong `out` is raised after the traffic, when its size is known.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> import numpy as np
    >>> run_ranks(2, lambda g: g.all_to_all(np.arange(2) + 10 * g.rank).tolist())
    [[0, 10], [1, 11]]
    """
    return (group or current()).all_to_all(
        x, axis=axis, sizes=sizes, out=out, timeout=timeout, async_op=async_op
    )


def permute(
    x: Any,
    pairs: Sequence[tuple[int, int]],
    *,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Send `x` along (source, destination) `pairs`; return what I receive, or None.

    Collective over `group`. Each rank is at most once a source and once a destination.

    Raises
    ------
    ArgumentError, UnsupportedError, MismatchError, CollectiveTimeout
        As `all_reduce`; the pairs must agree. Shapes and dtypes may differ by rank.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(3, lambda g: g.permute(g.rank, [(0, 1), (1, 2)]))
    [None, 0, 1]
    """
    return (group or current()).permute(x, pairs, out=out, timeout=timeout, async_op=async_op)

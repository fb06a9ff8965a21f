"""The uneven rule: how a length is cut over ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..errors import ArgumentError

__all__ = ["Table", "check_sizes", "read_table", "starts", "uneven", "uneven_slice"]


def uneven(length: int, parts: int) -> tuple[int, ...]:
    """Return the lengths of `length` cut over `parts` ranks.

    The chunk is ``ceil(length / parts)``; rank r holds
    ``[min(n, r * chunk), min(n, (r + 1) * chunk))``, so the last ranks may be short or empty.

    Examples
    --------
    >>> uneven(10, 4)
    (3, 3, 3, 1)
    >>> uneven(5, 4)
    (2, 2, 1, 0)
    """
    chunk = -(-length // parts)
    return tuple(min(length, (r + 1) * chunk) - min(length, r * chunk) for r in range(parts))


def uneven_slice(length: int, parts: int, rank: int) -> slice:
    """Return the slice of `length` that `rank` of `parts` holds.

    Examples
    --------
    >>> uneven_slice(10, 4, 3)
    slice(9, 10, None)
    """
    chunk = -(-length // parts)
    return slice(min(length, rank * chunk), min(length, (rank + 1) * chunk))


def starts(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return where each part begins.

    Examples
    --------
    >>> starts((3, 0, 2))
    (0, 3, 3)
    """
    return tuple(accumulate(sizes, initial=0))[:-1]


def read_table(sizes: Any, parts: int, verb: str) -> Table | None:
    """Return what every rank sends to every rank, if sizes tell that; else None.

    Raises
    ------
    ArgumentError
        Another number of rows than ranks, a row that does not fit.

    Examples
    --------
    >>> read_table([(0, 2), (1, 0)], 2, "all_to_all")
    ((0, 2), (1, 0))
    """
    if type(sizes) is Table:
        return sizes
    rows = sizes if isinstance(sizes, Sequence | np.ndarray) and not isinstance(sizes, str) else ()
    if not len(rows) or np.ndim(rows[0]) != 1:
        return None
    if len(rows) != parts:
        raise ArgumentError(f"{verb}: sizes of {len(rows)} rows needs {parts}, one per rank.")
    return Table(check_sizes(row, parts, None, verb) for row in rows)


class Table(tuple[tuple[int, ...], ...]):
    """What every rank sends to every rank, checked; its hash is made once."""

    def __hash__(self) -> int:
        found = self.__dict__.get("hash")
        if found is None:
            found = self.__dict__["hash"] = super().__hash__()
        return int(found)


def check_sizes(sizes: Sequence[int], parts: int, total: int | None, verb: str) -> tuple[int, ...]:
    """Return `sizes` as a tuple of ints that fits `parts` ranks and sums to `total`.

    Raises
    ------
    ArgumentError
        Wrong number of sizes, a size that is no integer or negative, or a wrong sum.
    """
    try:
        given = tuple(sizes)
    except TypeError:
        raise ArgumentError(
            f"{verb}: sizes {sizes!r} must be a sequence of {parts} ints."
        ) from None
    if len(given) != parts:
        raise ArgumentError(f"{verb}: sizes {given} needs {parts} entries, one per rank.")
    for size in given:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
            raise ArgumentError(f"{verb}: sizes {given} must hold ints >= 0, found {size!r}.")
    if total is not None and sum(given) != total:
        raise ArgumentError(f"{verb}: sizes {given} sum to {sum(given)}, needs {total}.")
    return tuple(int(size) for size in given)

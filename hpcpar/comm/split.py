"""Who goes into which group of a split: by color, ordered by key, then rank. Pure functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError

__all__ = ["members_of", "split_row"]


def split_row(color: Any, key: Any) -> npt.NDArray[np.int64]:
    """Return what a rank says of itself: whether it has a color, the color, the key.

    Raises
    ------
    ArgumentError
        One of them is no integer of 64 bits.
    """
    _check_int64("color", 0 if color is None else color)
    _check_int64("key", key)
    return np.array([color is not None, color or 0, key], np.int64)


def members_of(row: npt.NDArray[np.int64], table: npt.NDArray[np.int64]) -> list[int]:
    """Return the ranks of my color, out of every rank's row.

    Examples
    --------
    >>> rows = np.array([split_row(0, 9), split_row(1, 0), split_row(0, 1)])
    >>> members_of(rows[0], rows)
    [2, 0]
    """
    if table.strides == (0, 0):  # no data moved: all ranks are alike
        table = np.broadcast_to(row, table.shape)
    mine = [r for r, (has, color, _) in enumerate(table) if has and color == row[1]]
    return sorted(mine, key=lambda r: (int(table[r, 2]), r))


def _check_int64(name: str, value: Any) -> None:
    fits = isinstance(value, (int, np.integer)) and -(2**63) <= value < 2**63
    if isinstance(value, bool) or not fits:
        raise ArgumentError(f"split: {name} {value!r} must be an integer of 64 bits.")

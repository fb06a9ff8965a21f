"""Arrays at chosen places in memory, so that placement is the same in every run.

A copy whose target begins a few bytes behind its source, modulo a page, runs up to 30 times slower
on some processors (loads wait for stores with the same low address bits). Large NumPy arrays
happen to lie so now and then; a benchmark that takes what comes measures that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arrays import Array
from ..comm import symmetric
from ..comm.group import Group
from ..errors import UnsupportedError

__all__ = ["PAGE", "TARGET", "can_share", "placed", "placed_shared", "placed_symmetric"]

PAGE = 4096
#: Where in a page results begin; operands begin at 0. Half a page apart is never close.
TARGET = 2048


def placed(count: int, dtype: np.dtype[Any], start: int = 0) -> Array:
    """Return an array of zeros, shape ``(count,)``, that begins `start` bytes into a page. Local.

    Zeros are written, so that every page is there before the clock runs.
    """
    assert 0 <= start < PAGE
    nbytes = count * dtype.itemsize
    room = np.empty(nbytes + 2 * PAGE, np.uint8)
    first = -room.__array_interface__["data"][0] % PAGE + start
    room[first : first + nbytes] = 0
    return room[first : first + nbytes].view(dtype)


def placed_symmetric(count: int, dtype: np.dtype[Any], group: Group, start: int = 0) -> Array:
    """Return the same in memory that the ranks share. Collective over `group`."""
    assert 0 <= start < PAGE
    room = symmetric.zeros(start + count * dtype.itemsize, np.uint8, group=group)
    return room[start:].view(dtype)


def placed_shared(count: int, dtype: np.dtype[Any], group: Group) -> Array:
    """Return one array for all ranks, of equal parts, at the start of a page. Collective."""
    part = count // group.size * dtype.itemsize
    return symmetric.concatenated(group, part).reshape(-1).view(dtype)


def can_share(group: Group) -> bool:
    """Whether all ranks can see one array. Collective over `group`."""
    try:
        symmetric.concatenated(group, 1)
    except UnsupportedError:  # on all ranks
        return False
    return True

"""Running sums and their like along any axis: parts first, then what came before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import check_axis
from ..comm.reductions import neutral
from ..errors import UnsupportedError
from .base import D, relaid
from .forms import rising
from .shapes import reshape

__all__ = ["JOINS", "accumulate"]

#: How what came before is joined to a part, and the reduction that joins parts.
JOINS: dict[str, tuple[np.ufunc, Callable[..., Any] | None]] = {
    "sum": (np.add, np.cumsum),
    "prod": (np.multiply, np.cumprod),
    "max": (np.maximum, None),
    "min": (np.minimum, None),
}


def accumulate(op: str, x: D, axis: int | None = None, dtype: npt.DTypeLike | None = None) -> D:
    """Return the running reduction along an axis. Collective where it is sharded.

    Parameters
    ----------
    op : {"sum", "prod", "max", "min"}
    x
    axis
        None: along all elements in C order.
    dtype
        As for NumPy's `cumsum`.
    """
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    along = check_axis(axis, x.ndim, f"cumulative {op}")
    partition = rising(x.layout.partition, along)
    local = x.moved_to(partition, f"cumulative {op}")
    join, function = JOINS[op]
    if function is None:
        made = join.accumulate(local, axis=along, dtype=dtype)
    else:
        made = function(local, axis=along, dtype=dtype)
    split = partition.splits[along]
    if split and op in ("max", "min") and made.dtype.kind == "c":
        raise UnsupportedError(f"cumulative {op}: complex numbers along a sharded axis.")
    if split:
        made = _after_others(made, op, join, along, x, split)
    return type(x).wrap(made, relaid(x.layout, partition))


def _after_others(
    made: Any, op: str, join: np.ufunc, axis: int, x: D, split: tuple[int, ...]
) -> Any:
    """Join what the ranks before this one have."""
    group = x.mesh.line(split)
    shape = [1 if a == axis else n for a, n in enumerate(made.shape)]
    nothing = -0.0 if op == "sum" and made.dtype.kind in "fc" else neutral(op, made.dtype)
    total = np.full(shape, nothing, made.dtype)
    if made.shape[axis]:
        total[...] = made.take([-1], axis=axis)
    before = group.scan(total, op, exclusive=True)
    return join(before, made, out=made) if group.rank else made

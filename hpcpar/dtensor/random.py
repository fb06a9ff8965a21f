"""Random distributed arrays: each element's number depends on its key and place alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from .. import random as streams
from .._arrays import Array
from ..mesh.boxes import Box, shape_of
from ..mesh.device_mesh import DeviceMesh
from ..mesh.layout import Placements
from ..random import Key
from .array import DTensor
from .factories import whole_layout

__all__ = ["normal", "uniform"]


def uniform(
    key: Key,
    shape: Sequence[int],
    mesh: DeviceMesh,
    placements: Placements,
    *,
    dtype: npt.DTypeLike = np.float32,
) -> DTensor:
    """Draw from [0, 1): the same bits as `hpcpar.random.uniform`, on any mesh. Local.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> key, mesh = hp.random.Key(1), hp.init_device_mesh((1,), ("dp",))
    >>> x = hp.dtensor.random.uniform(key, (2, 3), mesh, hp.Shard(1))
    >>> np.array_equal(x.full(), hp.random.uniform(key, (2, 3)))
    True
    """
    return _drawn(streams.uniform, key, shape, mesh, placements, dtype)


def normal(
    key: Key,
    shape: Sequence[int],
    mesh: DeviceMesh,
    placements: Placements,
    *,
    dtype: npt.DTypeLike = np.float32,
) -> DTensor:
    """Draw from the normal distribution: the same bits as `hpcpar.random.normal`. Local."""
    return _drawn(streams.normal, key, shape, mesh, placements, dtype)


def _drawn(
    draw: Callable[..., Array],
    key: Key,
    shape: Sequence[int],
    mesh: DeviceMesh,
    placements: Placements,
    dtype: npt.DTypeLike,
) -> DTensor:
    layout = whole_layout(mesh, placements, shape, dtype, "random")
    box = layout.box
    return DTensor(None if box is None else _box(draw, key, box, layout.shape, dtype), layout)


def _box(
    draw: Callable[..., Array], key: Key, box: Box, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> Array:
    """Draw a box, run by run of elements that follow each other in the whole array."""
    whole = [start == 0 and stop == n for (start, stop), n in zip(box, shape, strict=True)]
    inner = len(shape)
    while inner and whole[inner - 1]:
        inner -= 1
    first = max(0, inner - 1)  # this axis and the whole ones behind it are one run
    out = np.empty(shape_of(box), dtype)
    strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    run = shape_of(box)[first:]
    for outer in product(*(range(start, stop) for start, stop in box[:first])):
        start = sum(i * s for i, s in zip(outer, strides, strict=False))
        start += box[first][0] * strides[first] if box else 0
        at = tuple(i - edge[0] for i, edge in zip(outer, box, strict=False))
        out[at] = draw(key, run, dtype, start)
    return out

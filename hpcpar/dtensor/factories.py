"""Distributed arrays from arrays, from parts, from numbers and from random keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import Array, adopt
from ..errors import ArgumentError, MismatchError, UnsupportedError
from ..mesh.boxes import within
from ..mesh.device_mesh import DeviceMesh
from ..mesh.layout import Layout, Placements
from ..mesh.partition import Partition, places
from ..mesh.redistribute import redistribute
from .array import DTensor

__all__ = ["distribute", "empty", "from_local", "full", "ones", "whole_layout", "zeros"]


def distribute(
    x: Any, mesh: DeviceMesh, placements: Placements, *, root: int | None = None
) -> DTensor:
    """Return an array as one that lies on a mesh.

    Parameters
    ----------
    x : array
        The whole array: on every rank, or on the root only.
    mesh : DeviceMesh
    placements
        As in `Layout`; no Partial.
    root : int, optional
        Rank in the mesh's group that has `x`, which others give as None. None: every rank has the
        same `x`, nothing is sent and nothing compared.

    Returns
    -------
    DTensor
        With memory of its own. Collective over the mesh's ranks and the root where one is given,
        else local.

    Raises
    ------
    ArgumentError
        Placements that do not fit, or Partial ones.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     mesh = hp.init_device_mesh((2,), ("dp",), group=group)
    ...     x = np.arange(4) if group.rank == 1 else None
    ...     return hp.distribute(x, mesh, hp.Shard(0), root=1).to_local().tolist()
    >>> run_ranks(2, body)
    [[0, 1], [2, 3]]
    """
    if root is not None:
        return _from_root(x, mesh, placements, root)
    array = adopt(x, "distribute")[0]
    layout = whole_layout(mesh, placements, array.shape, array.dtype, "distribute")
    box = layout.box
    if box is None:
        return DTensor(None, layout)
    outer = tuple((0, n) for n in array.shape)
    return DTensor(np.array(array[within(box, outer)], order="C"), layout)


def whole_layout(
    mesh: DeviceMesh,
    placements: Placements,
    shape: int | Sequence[int],
    dtype: npt.DTypeLike,
    verb: str,
) -> Layout:
    """Return a layout without Partial, as what is made anew has it. Local."""
    layout = Layout(mesh, placements, (shape,) if isinstance(shape, int) else shape, dtype)
    if layout.partition.partial:
        raise ArgumentError(
            f"{verb}: {layout}: a whole array has no parts to reduce. Give Replicate or Shard, and "
            "redistribute to Partial if you want that."
        )
    return layout


def _from_root(x: Any, mesh: DeviceMesh, placements: Placements, root: int) -> DTensor:
    alone = DeviceMesh([root], ("root",), group=mesh.group)
    is_root = alone.coordinate is not None
    array, said = _told(x) if is_root else (None, None)
    everyone = mesh.union(alone)
    at = everyone.ranks.index(mesh.group.ranks[root])
    said = everyone.broadcast_object(said, root=at)
    if isinstance(said, str):
        raise UnsupportedError(f"{said} [on the root, rank {root}]")
    shape, dtype = said
    target = whole_layout(mesh, placements, shape, dtype, "distribute")
    return DTensor(redistribute(array, Layout(alone, {}, shape, dtype), target), target)


def _told(x: Any) -> tuple[Array | None, Any]:
    """Return the root's array and what it tells the others: of what kind, or what is wrong."""
    try:
        array = adopt(x, "distribute")[0]
    except UnsupportedError as error:
        return None, str(error)
    return array, (array.shape, array.dtype)


def from_local(
    local: Any, mesh: DeviceMesh, placements: Placements, *, shape: Sequence[int] | None = None
) -> DTensor:
    """Return the array whose parts the ranks have: of any lengths, which are exchanged.

    Parameters
    ----------
    local : array
        What this rank has; no copy is made.
    mesh : DeviceMesh
    placements
        As in `Layout`, without cuts.
    shape : sequence of int, optional
        Of the whole array, where it is known and cut by the uneven rule: nothing is sent then.

    Returns
    -------
    DTensor
        Collective over the mesh unless `shape` is given.

    Raises
    ------
    ArgumentError
        Placements that do not fit; a part that does not fit `shape`.
    MismatchError
        Parts that are no parts of one array; on all ranks.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     mesh = hp.init_device_mesh((2,), ("dp",), group=group)
    ...     mine = np.full(1 + 2 * group.rank, group.rank)
    ...     return hp.dtensor.from_local(mine, mesh, hp.Shard(0)).full().tolist()
    >>> run_ranks(2, body)
    [[0, 1, 1, 1], [0, 1, 1, 1]]
    """
    if shape is not None:
        array = adopt(local, "from_local")[0]
        return DTensor(array, Layout(mesh, placements, shape, array.dtype))
    found, said = _told(local)
    told = mesh.along(*mesh.names).all_gather_object(said)
    kinds = {(len(each[0]), each[1]) if isinstance(each, tuple) else each for each in told}
    if found is None or len(kinds) > 1:
        raise MismatchError(
            f"from_local: the parts are {', '.join(sorted(set(map(str, told))))}, by which they "
            "are no parts of one array."
        )
    array = found
    guess = Layout(mesh, placements, (0,) * array.ndim, array.dtype).partition
    shapes = dict(zip(places(mesh.shape), (s for s, _ in told), strict=True))
    cuts = [_cuts(guess, axis, shapes) for axis in range(array.ndim)]
    whole = tuple(each[-1] for each in cuts)
    made = Partition(guess.grid, whole, guess.splits, tuple(cuts), guess.partial)
    return DTensor(array, Layout.of(mesh, made, array.dtype))


def _cuts(
    guess: Partition, axis: int, shapes: dict[tuple[int, ...], tuple[int, ...]]
) -> tuple[int, ...]:
    """Return where the parts along an axis begin, whose lengths all their ranks must agree on."""
    lengths: dict[int, int] = {}
    for place, shape in shapes.items():
        known = lengths.setdefault(guess.part(axis, place), shape[axis])
        if known != shape[axis]:
            raise MismatchError(
                f"from_local: the parts do not fit along axis {axis}: their shapes are "
                f"{list(shapes.values())} by place on the mesh."
            )
    return tuple(accumulate((lengths[part] for part in sorted(lengths)), initial=0))


# -- numbers ---------------------------------------------------------------------------------------


def full(
    shape: int | Sequence[int],
    value: Any,
    mesh: DeviceMesh,
    placements: Placements,
    *,
    dtype: npt.DTypeLike | None = None,
) -> DTensor:
    """Return an array of equal numbers. Local.

    Examples
    --------
    >>> import hpcpar as hp
    >>> mesh = hp.init_device_mesh((1,), ("dp",))
    >>> hp.dtensor.full((2,), 7, mesh, hp.Shard(0)).full()
    array([7, 7])
    """
    kind = np.asarray(value).dtype if dtype is None else np.dtype(dtype)
    layout = whole_layout(mesh, placements, shape, kind, "full")
    here = layout.local_shape
    return DTensor(None if here is None else np.full(here, value, kind), layout)


def zeros(
    shape: int | Sequence[int],
    mesh: DeviceMesh,
    placements: Placements,
    *,
    dtype: npt.DTypeLike = np.float64,
) -> DTensor:
    """Return an array of zeros. Local."""
    return full(shape, 0, mesh, placements, dtype=dtype)


def ones(
    shape: int | Sequence[int],
    mesh: DeviceMesh,
    placements: Placements,
    *,
    dtype: npt.DTypeLike = np.float64,
) -> DTensor:
    """Return an array of ones. Local."""
    return full(shape, 1, mesh, placements, dtype=dtype)


def empty(
    shape: int | Sequence[int],
    mesh: DeviceMesh,
    placements: Placements,
    *,
    dtype: npt.DTypeLike = np.float64,
) -> DTensor:
    """Return an array of any numbers. Local."""
    layout = whole_layout(mesh, placements, shape, dtype, "empty")
    here = layout.local_shape
    return DTensor(None if here is None else np.empty(here, dtype), layout)

"""Layout: an array's shape and dtype, and how it lies on a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .._arrays import as_dtype
from ..errors import ArgumentError
from .boxes import Box
from .device_mesh import DeviceMesh
from .partition import Partition, make_partition
from .placement import Partial, Placement, Replicate, Shard

__all__ = ["Layout", "Placements"]

#: One placement for each mesh axis, or by the names of mesh axes: others replicate.
Placements = Sequence[Placement] | Mapping[str, Placement] | Placement

_MOST = 4096  # layouts that a mesh remembers; then it forgets all


class Layout:
    """How an array lies on a mesh; never changes. Making one is local.

    Parameters
    ----------
    mesh : DeviceMesh
    placements
        One for each mesh axis; or a mapping from names of mesh axes, where the others replicate.
        Where several mesh axes split one array axis, the first of the sequence, or of the mapping,
        is the slowest. A single placement does for a mesh of one axis.
    shape : tuple of int
        Of the whole array.
    dtype : dtype

    Attributes
    ----------
    mesh : DeviceMesh
    partition : Partition
        Which box each place of the mesh holds.
    dtype : numpy.dtype

    Raises
    ------
    ArgumentError
        Placements that do not fit the mesh or the array.

    Examples
    --------
    >>> from hpcpar.mesh import init_device_mesh
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     mesh = init_device_mesh((2, 2), ("dp", "tp"), group=group)
    ...     layout = Layout(mesh, {"tp": Shard(0), "dp": Shard(0)}, (8, 3), "float32")
    ...     return layout.box, layout
    >>> run_ranks(4, body)[1]
    (((4, 6), (0, 3)), Layout((8, 3), float32, tp: Shard(0), dp: Shard(0)))
    """

    __slots__ = ("_hash", "dtype", "mesh", "partition")

    mesh: DeviceMesh
    partition: Partition
    dtype: np.dtype[Any]
    _hash: int

    def __new__(
        cls,
        mesh: DeviceMesh,
        placements: Placements,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
    ) -> Self:
        """Return the layout of placements, which may be there already."""
        chosen, order = _in_order(mesh, placements)
        made = make_partition(mesh.shape, _checked_shape(shape), chosen, order)
        return cls.of(mesh, made, as_dtype(dtype))

    @classmethod
    def of(cls, mesh: DeviceMesh, partition: Partition, dtype: np.dtype[Any]) -> Self:
        """Return the layout of a partition: equal ones of one mesh are one object. Local."""
        key = partition, dtype
        found: Self | None = mesh.memo.get(key)
        if found is None:
            if partition.grid != mesh.shape:
                raise ArgumentError(f"Layout: {partition} is for another mesh than {mesh}.")
            if len(mesh.memo) >= _MOST:
                mesh.memo.clear()
            found = mesh.memo[key] = object.__new__(cls)
            found.mesh, found.partition, found.dtype = mesh, partition, dtype
            found._hash = hash((mesh, partition, dtype))
        return found

    @property
    def placements(self) -> tuple[Placement, ...]:
        """One placement for each mesh axis."""
        return _placements(self.partition)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.partition.shape

    @property
    def ndim(self) -> int:
        """Number of axes of the array."""
        return len(self.partition.shape)

    @property
    def box(self) -> Box | None:
        """What this rank holds; None where it is not in the mesh."""
        place = self.mesh.coordinate
        return None if place is None else self.partition.box(place)

    @property
    def local_shape(self) -> tuple[int, ...] | None:
        """Shape of what this rank holds; None where it is not in the mesh."""
        place = self.mesh.coordinate
        return None if place is None else self.partition.local_shape(place)

    def replace(
        self,
        placements: Placements | None = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> Layout:
        """Return it with other placements, shape or dtype. Local."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        if placements is None and shape is None:
            return Layout.of(self.mesh, self.partition, kind)
        chosen = self.by_name if placements is None else placements
        return Layout(self.mesh, chosen, self.shape if shape is None else shape, kind)

    @property
    def by_name(self) -> dict[str, Placement]:
        """Placements by names of mesh axes, those first that split first."""
        order = [m for split in self.partition.splits for m in split]
        order += [m for m in range(self.mesh.ndim) if m not in order]
        placements = self.placements
        return {self.mesh.names[m]: placements[m] for m in order}

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Layout)
            and self._hash == other._hash
            and self.dtype == other.dtype
            and self.partition == other.partition
            and self.mesh == other.mesh
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        said = [f"{name}: {p!r}" for name, p in self.by_name.items() if p != Replicate()]
        return f"Layout({self.shape}, {self.dtype}, {', '.join(said) or 'replicated'})"


def _placements(partition: Partition) -> tuple[Placement, ...]:
    """Return one placement for each mesh axis; the cuts are with the last that splits an axis."""
    found: list[Placement] = [Replicate()] * len(partition.grid)
    for m, op in partition.partial:
        found[m] = Partial(op)
    for axis, split in enumerate(partition.splits):
        for m in split:
            found[m] = Shard(axis)
        if (
            split
            and partition.cuts[axis]
            != make_partition(
                [partition.grid[m] for m in split], [partition.shape[axis]], [Shard(0)] * len(split)
            ).cuts[0]
        ):
            found[split[-1]] = Shard(axis, partition.cuts[axis])
    return tuple(found)


def _in_order(
    mesh: DeviceMesh, placements: Placements
) -> tuple[Sequence[Placement], list[int] | None]:
    """Return one placement for each mesh axis, and the order in which axes split."""
    if isinstance(placements, Replicate | Shard | Partial):
        return (placements,), None
    if not isinstance(placements, Mapping):
        return tuple(placements), None
    unknown = [name for name in placements if name not in mesh.names]
    if unknown:
        raise ArgumentError(f"placements: {unknown} are no axes of {mesh}.")
    chosen = [placements.get(name, Replicate()) for name in mesh.names]
    return chosen, [mesh.names.index(name) for name in placements]


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        found = tuple(int(n) for n in shape)
    except (TypeError, ValueError):
        raise ArgumentError(f"shape {shape!r} must be a sequence of whole numbers.") from None
    if any(n < 0 for n in found):
        raise ArgumentError(f"shape {found} must not be negative.")
    return found

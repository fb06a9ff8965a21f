"""A distributed array's data: this rank's part, and the layout of the whole."""

from __future__ import annotations

import math
from typing import Any, Self, TypeVar

import numpy as np

from .._arrays import Array
from ..comm.chained import Calls, run_chained
from ..errors import ArgumentError, UnsupportedError
from ..mesh.boxes import Box, Place
from ..mesh.device_mesh import DeviceMesh
from ..mesh.layout import Layout, Placements
from ..mesh.partition import Partition
from ..mesh.placement import Placement
from ..mesh.redistribute import has_traffic, moving, reading, redistribute
from .forms import unreduced, whole
from .modes import note_move

__all__ = ["D", "Distributed", "Pieces", "relaid", "replicated", "typed"]


def typed(layout: Layout, dtype: np.dtype[Any]) -> Layout:
    """Return the layout with another dtype. Local."""
    return Layout.of(layout.mesh, layout.partition, dtype)


def relaid(layout: Layout, partition: Partition) -> Layout:
    """Return the layout of another partition on the same mesh, with the same dtype. Local."""
    return Layout.of(layout.mesh, partition, layout.dtype)


def replicated(layout: Layout) -> Layout:
    """Return the layout in which every rank holds all. Local."""
    return relaid(layout, whole(layout.partition.grid, layout.partition.shape))


#: Where parts of an array go, with this rank's own one first.
Pieces = list[tuple[Place, Array]]


class Distributed:
    """What operations know of a distributed array; `DTensor` adds NumPy's interface."""

    __slots__ = ("_local", "layout")

    _local: Array
    layout: Layout

    def __init__(self, local: Array | None, layout: Layout) -> None:
        shape = layout.local_shape
        if shape is None and local is None:
            shape, local = (0,), np.empty(0, layout.dtype)
        if not isinstance(local, np.ndarray) or (local.shape, local.dtype) != (shape, layout.dtype):
            raise ArgumentError(
                f"DTensor: local must be an array of shape {shape} and dtype {layout.dtype} for "
                f"{layout}, not {_told(local)} {layout.mesh.group.here()}."
            )
        self._local, self.layout = local, layout

    @classmethod
    def wrap(cls, local: Any, layout: Layout) -> Self:
        """Return the array of a part that is known to fit; the layout takes its dtype. Local."""
        if type(local) is not np.ndarray:
            local = np.asarray(local)
        if local.dtype != layout.dtype:
            layout = typed(layout, local.dtype)
        made = cls.__new__(cls)
        made._local, made.layout = local, layout
        return made

    # -- what it is ----------------------------------------------------------------------------

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh that it lies on."""
        return self.layout.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """One placement for each mesh axis."""
        return self.layout.placements

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.layout.partition.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        return self.layout.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.layout.partition.shape)

    @property
    def size(self) -> int:
        """Number of elements of the whole array."""
        return math.prod(self.layout.partition.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.layout.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.itemsize

    # -- where it is -----------------------------------------------------------------------------

    def to_local(self) -> Array:
        """Return what this rank holds: a view, not a copy. Local."""
        return self._local

    def shards(self) -> list[tuple[Box, Array]]:
        """Return what this rank holds with its place in the whole array. Local.

        Raises
        ------
        UnsupportedError
            It is Partial: its parts are not those of the array.
        """
        if self.layout.partition.partial:
            raise UnsupportedError(f"shards: {self.layout} is not reduced. Redistribute it first.")
        box = self.layout.box
        return [] if box is None else [(box, self._local)]

    def redistribute(
        self,
        placements: Placements | None = None,
        *,
        mesh: DeviceMesh | None = None,
        max_nbytes: int | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Return the array in another layout. Collective over both meshes.

        Parameters
        ----------
        placements
            As in `Layout`; None keeps them.
        mesh : DeviceMesh, optional
            None keeps it.
        max_nbytes : int, optional
            Bytes that a rank may need beside what it holds and gets.
        timeout : float, optional
            Seconds, for each step.
        async_op : bool
            Return a `Work`.

        Returns
        -------
        DTensor or Work
            Itself where nothing changes; else with memory of its own.

        Raises
        ------
        ArgumentError
            Placements that do not fit.
        """
        wanted = self.layout.by_name if placements is None else placements
        target = Layout(self.mesh if mesh is None else mesh, wanted, self.shape, self.dtype)
        if target == self.layout and not async_op:
            return self
        calls = self._moving(target, max_nbytes)
        return run_chained("redistribute", calls, timeout=timeout, async_op=async_op)

    def _moving(self, target: Layout, max_nbytes: int | None) -> Calls:
        held = None if self.mesh.coordinate is None else self._local
        local = yield from moving(held, self.layout, target, max_nbytes=max_nbytes)
        return type(self)(local, target)

    def full(self, *, timeout: float | None = None) -> Array:
        """Return the whole array on every rank of the mesh. Collective over it.

        Examples
        --------
        >>> import numpy as np
        >>> import hpcpar as hp
        >>> from hpcpar.testing import run_ranks
        >>> def body(group):
        ...     mesh = hp.init_device_mesh((2,), ("dp",), group=group)
        ...     return hp.distribute(np.arange(3), mesh, hp.Shard(0)).full().tolist()
        >>> run_ranks(2, body)
        [[0, 1, 2], [0, 1, 2]]
        """
        self.check_here("full")
        target = replicated(self.layout)
        if target == self.layout:
            return self._local.copy()
        whole: Array = redistribute(self._local, self.layout, target, timeout=timeout)
        return whole

    def check_here(self, verb: str) -> None:
        """Raise if this rank is not in the mesh. Local."""
        if self.layout.mesh.coordinate is None:
            raise UnsupportedError(f"{verb}: this rank is not in {self.mesh}.")

    def moved_to(self, partition: Partition, verb: str) -> Array:
        """Return this rank's part in another partition, for an operation that wants it."""
        self.check_here(verb)
        if partition == self.layout.partition:
            return self._local
        target = relaid(self.layout, partition)
        if has_traffic(self.layout, target):
            note_move(verb, self.layout, target)
        local: Array = redistribute(self._local, self.layout, target)
        return local

    def reduced(self) -> Self:
        """Return it with what is Partial reduced. Collective where something is."""
        self.check_here("reduce")
        held = self.layout.partition
        if not held.partial:
            return self
        target = relaid(self.layout, unreduced(held, ()))
        local: Array = redistribute(self._local, self.layout, target)
        return self.wrap(local, target)

    def everywhere(self, plain: Array) -> Self:
        """Return a plain array as one that is the same on every rank of the mesh. Local."""
        partition = whole(self.mesh.shape, plain.shape)
        return type(self)(plain, Layout.of(self.mesh, partition, plain.dtype))

    def readable(self, partition: Partition, verb: str) -> Array | Pieces:
        """Return this rank's part in another partition to read from, perhaps in pieces."""
        self.check_here(verb)
        if partition == self.layout.partition:
            return self._local
        target = relaid(self.layout, partition)
        if has_traffic(self.layout, target):
            note_move(verb, self.layout, target)
        found: Array | Pieces = run_chained(verb, reading(self._local, self.layout, target))
        return found


#: A kind of distributed array, which operations return as they got it.
D = TypeVar("D", bound=Distributed)


def _told(local: Any) -> str:
    if isinstance(local, np.ndarray):
        return f"shape {local.shape} and dtype {local.dtype}"
    return f"a {type(local).__name__}"

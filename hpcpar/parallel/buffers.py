"""The memory of gradient buckets: shared by the ranks of a node where that can be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..comm.symmetric import zeros_for_all
from .bucket import BUCKET_NBYTES, Bucket, Layouts, plan_buckets, plan_memory, plan_room

__all__ = ["Buffers", "Layout", "Planner", "chunks"]


@dataclass(frozen=True)
class Planner:
    """What a plan of buckets follows from; pure.

    Attributes
    ----------
    layouts
        Name to (shape, dtype of the gradient), in registration order.
    groups
        Number of the group that reduces a parameter, where it is not 0.
    first_cap, cap
        Bytes at which buckets close.
    """

    layouts: Layouts
    groups: Mapping[str, int]
    first_cap: int
    cap: int

    def plan(self, ready: Sequence[str] | None = None) -> tuple[Bucket, ...]:
        """Return the buckets, for the order `ready` in which gradients were seen to arrive."""
        order = list(self.layouts) if ready is None else list(reversed(ready))
        layouts = {name: self.layouts[name] for name in order}
        return plan_buckets(layouts, self.groups, first_cap=self.first_cap, cap=self.cap)

    def room(self, num_groups: int, dtype: np.dtype[Any] | None) -> list[int]:
        """Return bytes per group that hold the buckets of any order."""
        return plan_room(self.layouts, self.groups, num_groups, self.cap, dtype)


@dataclass(frozen=True)
class Layout:
    """Buckets and where they lie.

    Attributes
    ----------
    buckets
        In launch order.
    flats
        The buffer of each.
    """

    buckets: tuple[Bucket, ...]
    flats: tuple[Array, ...] = field(repr=False)

    @cached_property
    def views(self) -> dict[str, Array]:
        """Every gradient by name, as a view of its bucket's buffer."""
        found: dict[str, Array] = {}
        for bucket, flat in zip(self.buckets, self.flats, strict=True):
            found.update(bucket.views(flat))
        return found

    @cached_property
    def bucket_of(self) -> Mapping[str, int]:
        """Index of the bucket of each gradient."""
        return {name: i for i, bucket in enumerate(self.buckets) for name in bucket.names}

    def stretches(self, names: Collection[str]) -> list[Array]:
        """Return the parts of buffers in which only gradients of `names` lie."""
        found: list[Array] = []
        for bucket, flat in zip(self.buckets, self.flats, strict=True):
            members = zip(bucket.names, bucket.starts, bucket.counts, strict=True)
            for is_wanted, run in groupby(members, key=lambda member: member[0] in names):
                _, starts, counts = zip(*run, strict=True)
                if is_wanted:
                    found.append(flat[starts[0] : starts[-1] + counts[-1]])
        return found


class Buffers:
    """Memory for the buckets of any plan of the same parameters. Collective over each group.

    Parameters
    ----------
    planner
        The parameters.
    groups
        The groups that reduce them, as the planner numbers them.
    dtype
        Of all buffers; None: the planner's.
    """

    def __init__(
        self, planner: Planner, groups: Sequence[Group], dtype: np.dtype[Any] | None = None
    ) -> None:
        self._planner, self._groups, self._dtype = planner, groups, dtype
        rooms = planner.room(len(groups), dtype)
        pairs = zip(rooms, groups, strict=True)
        self._memory = [zeros_for_all(room, group) for room, group in pairs]

    def companion(self, dtype: np.dtype[Any]) -> Buffers:
        """Return memory for the same buckets in another dtype. Collective over each group."""
        return Buffers(self._planner, self._groups, dtype)

    def lay_out(self, buckets: Sequence[Bucket]) -> Layout:
        """Return the buckets' buffers, over what lay there before. Local."""
        stored = [replace(b, dtype=self._dtype or b.dtype) for b in buckets]
        flats = {}
        for number, memory in enumerate(self._memory):
            members = [i for i, bucket in enumerate(stored) if bucket.group == number]
            spans, _ = plan_memory([stored[i] for i in members])
            for i, (begin, end) in zip(members, spans, strict=True):
                flats[i] = memory[begin:end].view(stored[i].dtype)
        return Layout(tuple(stored), tuple(flats[i] for i in range(len(stored))))


def chunks(arrays: Sequence[Array]) -> Iterator[list[Any]]:
    """Yield lists of arrays that are worth one operation each."""
    chunk: list[Array] = []
    nbytes = 0
    for array in arrays:
        chunk.append(array)
        nbytes += array.nbytes
        if nbytes >= BUCKET_NBYTES:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk

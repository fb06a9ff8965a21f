"""Which gradients travel together: a pure plan that every rank computes alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from .._arrays import Array
from ..errors import ArgumentError

__all__ = [
    "BUCKET_NBYTES",
    "FIRST_BUCKET_NBYTES",
    "Bucket",
    "Layouts",
    "plan_buckets",
    "plan_memory",
    "plan_room",
]

_LINE = 64  # buckets begin apart, and aligned if their memory is

#: The first bucket is small, so that the first reduction starts early in the backward pass.
FIRST_BUCKET_NBYTES = 2**20
#: The other buckets are large, so that each reduction runs at full bandwidth.
BUCKET_NBYTES = 25 * 2**20

Layouts: TypeAlias = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
_Kind: TypeAlias = tuple[np.dtype[Any], int]  # what one bucket may hold: a dtype, a group


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients lie in one flat buffer, without gaps, in launch order.

    Attributes
    ----------
    dtype
        The one dtype of the buffer.
    names, shapes
        The members in the order in which they lie in the buffer.
    group
        Number of the group that reduces it.
    """

    dtype: np.dtype[Any]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    group: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of each member."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def starts(self) -> tuple[int, ...]:
        """First element of each member in the buffer."""
        return tuple(accumulate(self.counts, initial=0))[:-1]

    @property
    def count(self) -> int:
        """Elements of the buffer."""
        return sum(self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self.count * self.dtype.itemsize

    def views(self, flat: Array) -> dict[str, Array]:
        """Return each member as a view of `flat`, the buffer of shape ``(count,)``."""
        members = zip(self.names, self.shapes, self.starts, self.counts, strict=True)
        return {
            name: flat[start : start + count].reshape(shape)
            for name, shape, start, count in members
        }


def plan_buckets(
    layouts: Layouts,
    groups: Mapping[str, int] | None = None,
    *,
    first_cap: int = FIRST_BUCKET_NBYTES,
    cap: int = BUCKET_NBYTES,
) -> tuple[Bucket, ...]:
    """Cut parameters into buckets. Local and pure: the same on every rank with the same input.

    Parameters are taken in reverse order, which is about the order in which a backward pass
    finishes them. None is split; a bucket has one dtype and one group, and closes once it holds
    at least its cap.

    Parameters
    ----------
    layouts
        Name to (shape, dtype), the first to become ready last: in registration order, or in the
        reverse of an order that was observed.
    groups
        Number of the group that reduces a parameter, where it is not 0.
    first_cap, cap
        Bytes at which the first bucket of a dtype and group, and the later ones, close.

    Returns
    -------
    tuple of Bucket
        In launch order: by the position of the member that becomes ready last.

    Raises
    ------
    ArgumentError
        A cap below 1 byte.

    References
    ----------
    Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3.

    Examples
    --------
    >>> import numpy as np
    >>> f4 = np.dtype("float32")
    >>> plan = plan_buckets({"w": ((2, 3), f4), "b": ((3,), f4)}, first_cap=12)
    >>> [(b.names, b.nbytes) for b in plan]
    [(('b',), 12), (('w',), 24)]
    """
    for name, value in (("first_cap", first_cap), ("cap", cap)):
        if value < 1:
            raise ArgumentError(f"plan_buckets: {name} {value} must be at least 1 byte.")
    order = list(reversed(list(layouts)))
    plan: list[Bucket] = []
    open_ones: dict[_Kind, list[str]] = {}
    filled: dict[_Kind, int] = {}
    limits: dict[_Kind, int] = {}
    for name in order:
        kind = _kind(name, layouts, groups)
        open_ones.setdefault(kind, []).append(name)
        filled[kind] = filled.get(kind, 0) + _nbytes(layouts[name])
        if filled[kind] >= limits.get(kind, first_cap):
            plan.append(_bucket(layouts, kind, open_ones.pop(kind)))
            filled[kind], limits[kind] = 0, cap
    plan += [_bucket(layouts, kind, names) for kind, names in open_ones.items()]
    last = {name: position for position, name in enumerate(order)}
    return tuple(sorted(plan, key=lambda bucket: last[bucket.names[-1]]))


def plan_room(
    layouts: Layouts,
    groups: Mapping[str, int] | None,
    num_groups: int,
    cap: int,
    dtype: np.dtype[Any] | None = None,
) -> list[int]:
    """Return bytes per group that hold the buckets of these parameters in any order. Pure.

    `dtype` is that of the buffers, where it is not the parameters' own.

    Examples
    --------
    >>> import numpy as np
    >>> plan_room({"w": ((2, 3), np.dtype("float32"))}, None, 1, cap=100)
    [88]
    """
    sums: dict[_Kind, list[int]] = {}
    for name in layouts:
        total = sums.setdefault(_kind(name, layouts, groups), [0, 0])
        total[0] += _nbytes(layouts[name])
        total[1] += 1
    rooms = [0] * num_groups
    for (own, group), (nbytes, members) in sums.items():
        stored = nbytes // own.itemsize * (dtype or own).itemsize
        # all but the first and the last bucket hold at least `cap`
        rooms[group] += stored + _LINE * min(members, nbytes // cap + 2)
    return rooms


def plan_memory(buckets: Sequence[Bucket]) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return where each bucket begins and ends in one block of memory, and its bytes. Pure.

    Examples
    --------
    >>> import numpy as np
    >>> f4 = np.dtype("float32")
    >>> plan_memory(plan_buckets({"w": ((2, 3), f4), "b": ((3,), f4)}, first_cap=12))
    (((0, 12), (64, 88)), 88)
    """
    spans: list[tuple[int, int]] = []
    end = 0
    for bucket in buckets:
        begin = -(-end // _LINE) * _LINE
        end = begin + bucket.nbytes
        spans.append((begin, end))
    return tuple(spans), end


def _kind(name: str, layouts: Layouts, groups: Mapping[str, int] | None) -> _Kind:
    return layouts[name][1], (groups or {}).get(name, 0)


def _nbytes(layout: tuple[tuple[int, ...], np.dtype[Any]]) -> int:
    shape, dtype = layout
    return math.prod(shape) * dtype.itemsize


def _bucket(layouts: Layouts, kind: _Kind, names: list[str]) -> Bucket:
    dtype, group = kind
    return Bucket(dtype, tuple(names), tuple(tuple(layouts[n][0]) for n in names), group)

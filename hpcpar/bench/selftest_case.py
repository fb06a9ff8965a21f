"""What one case of ``hpcpar selftest`` calls: a plain value, equal on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

__all__ = ["BLOCK", "VERBS", "Case", "Data", "Place", "Verb"]

Data = Literal["bits", "whole", "rough"]
Place = Literal["new", "out", "in"]

#: Cases between two meetings of all ranks; inside a block they run on as fast as each can.
BLOCK = 8


@dataclass(frozen=True, slots=True)
class Verb:
    """What the planner knows of a verb.

    Attributes
    ----------
    reduces, rooted, cuts, joins : bool
        Whether it has an op, or a root; whether it cuts what a rank passes, joins what a rank gets.
    promises : tuple of str
        Ways to say the lengths: "rule", "told", "equal", "found"; see `Case.sizes`.
    places : tuple of {"new", "out", "in"}
    alike : bool
        Whether all ranks get the same, so that their bits must agree.
    """

    reduces: bool = False
    rooted: bool = False
    cuts: bool = False
    joins: bool = False
    promises: tuple[str, ...] = ("rule",)
    places: tuple[Place, ...] = ("new", "out")
    alike: bool = False


_ANYWHERE: tuple[Place, ...] = ("new", "out", "in")
_JOINING = ("found", "told", "equal")

#: The verbs that are drawn.
VERBS = {
    "all_reduce": Verb(reduces=True, places=_ANYWHERE, alike=True),
    "reduce": Verb(reduces=True, rooted=True, places=_ANYWHERE),
    "scan": Verb(reduces=True, places=_ANYWHERE),
    "reduce_scatter": Verb(reduces=True, cuts=True, promises=("rule", "told")),
    "broadcast": Verb(rooted=True, places=_ANYWHERE, alike=True),
    "all_gather": Verb(joins=True, promises=_JOINING, alike=True),
    "gather": Verb(rooted=True, joins=True, promises=_JOINING),
    "scatter": Verb(rooted=True, cuts=True, promises=("rule", "told")),
    "all_to_all": Verb(cuts=True, joins=True, promises=("rule", "told", "equal"), places=_ANYWHERE),
    "permute": Verb(promises=("found",)),
    "sendrecv": Verb(promises=("found",), places=_ANYWHERE),
    "barrier": Verb(places=("new",)),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One case: everything that its ranks do, and nothing that only one of them knows.

    Tuples with one entry for each rank go by rank in the group.

    Attributes
    ----------
    seed, number, size : int
        What it was drawn from: the seed, its place in the sequence, the ranks of the world.
    members : tuple of int
        Ranks of the world that take part, in the group's order.
    verb : str
        A key of `VERBS`.
    dtype : dtype
    op : str
        "" for verbs that do not reduce.
    factor : float
        Of "premul_sum".
    weights : tuple of int
        Of a weighted mean; else empty.
    data : {"bits", "whole", "rough"}
        Random bits, which only move; numbers whose reduction is exact; floats whose sum is not.
    root : int
        -1 for verbs without.
    exclusive : bool
        Of scan.
    pairs : tuple of (int, int)
        Sources and destinations of permute and sendrecv.
    shape : tuple of int
        Of what a rank passes, with 0 along the axis; () for a 0-d array.
    axis : int
    sizes : str
        "rule": the uneven rule; "told": lengths are given; "equal": promised; "found": exchanged.
    table : tuple of tuple of int
        For each rank: lengths along the axis of its parts (one part where nothing is cut).
    place : {"new", "out", "in"}
        Result: a new array, ``out=``, ``out=x``.
    layouts, out_layouts : tuple of str
        For each rank.
    calls : int
        Times that it is called, each with other values.
    async_op : bool
        All calls begin before the first is waited for.
    delays : tuple of float
        Seconds that each rank waits before the call.
    symmetric : tuple of bool
        Whose arrays lie in symmetric memory; empty: nobody's.
    """

    seed: int
    number: int
    size: int
    members: tuple[int, ...]
    verb: str
    dtype: np.dtype[Any]
    op: str = ""
    factor: float = 1.0
    weights: tuple[int, ...] = ()
    data: Data = "bits"
    root: int = -1
    exclusive: bool = False
    pairs: tuple[tuple[int, int], ...] = ()
    shape: tuple[int, ...] = (0,)
    axis: int = 0
    sizes: str = "rule"
    table: tuple[tuple[int, ...], ...] = ()
    place: Place = "new"
    layouts: tuple[str, ...] = ()
    out_layouts: tuple[str, ...] = ()
    calls: int = 1
    async_op: bool = False
    delays: tuple[float, ...] = ()
    symmetric: tuple[bool, ...] = ()

    @property
    def kind(self) -> Verb:
        """What all cases of the verb share."""
        return VERBS[self.verb]

    def shape_of(self, member: int) -> tuple[int, ...]:
        """Return the shape of what a member passes."""
        return self.with_length(sum(self.table[member]))

    def with_length(self, length: int) -> tuple[int, ...]:
        """Return the shape with `length` along the axis."""
        if not self.shape:
            return ()
        return (*self.shape[: self.axis], length, *self.shape[self.axis + 1 :])

    def describe(self) -> dict[str, str]:
        """Return what differs from the plainest case, as text by name, for the report."""
        hidden = {"seed", "number", "size", "shape", *(() if self.kind.cuts else ("table",))}
        shown = {
            field.name: str(getattr(self, field.name))
            for field in fields(self)
            if field.name not in hidden and getattr(self, field.name) != field.default
        }
        shown["shapes"] = str(tuple(self.shape_of(m) for m in range(len(self.members))))
        return shown

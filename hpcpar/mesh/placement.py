"""Placements: what the ranks along one axis of a mesh hold of an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..comm.reductions import OPS
from ..errors import ArgumentError

__all__ = ["Partial", "Placement", "Replicate", "Shard"]


@dataclass(frozen=True)
class Replicate:
    """Every rank along the mesh axis holds the same.

    Examples
    --------
    >>> Replicate()
    Replicate()
    """


@dataclass(frozen=True)
class Shard:
    """Each rank along the mesh axis holds a part along one axis of the array.

    Parameters
    ----------
    axis : int
        Of the array; negative ones count from the end.
    cuts : None, "balanced" or sequence of int
        Where the parts begin and end. None: the uneven rule, ``chunk = ceil(n / k)``. "balanced":
        no two parts differ by more than one element, the longer ones first. Else the boundaries of
        all parts, k + 1 numbers that rise from 0 to n, or fall from n to 0. Where several mesh axes
        split one array axis, those of the last of them, for all their parts.

    Raises
    ------
    ArgumentError
        An axis that is no whole number, cuts that do not rise or fall.

    Examples
    --------
    >>> Shard(0), Shard(1, cuts=(0, 5, 6))
    (Shard(0), Shard(1, cuts=(0, 5, 6)))
    """

    axis: int
    cuts: tuple[int, ...] | str | None = None

    def __init__(self, axis: int, cuts: Sequence[int] | str | None = None) -> None:
        if not _is_whole(axis):
            raise ArgumentError(f"Shard: axis {axis!r} must be a whole number.")
        object.__setattr__(self, "axis", int(axis))
        object.__setattr__(self, "cuts", _checked_cuts(cuts))

    def __repr__(self) -> str:
        cuts = "" if self.cuts is None else f", cuts={self.cuts!r}"
        return f"Shard({self.axis}{cuts})"


@dataclass(frozen=True)
class Partial:
    """What the ranks along the mesh axis hold gives the array when it is reduced.

    Parameters
    ----------
    op : {"sum", "mean", "prod", "min", "max", "band", "bor", "bxor"}
        "avg" is "mean".

    Raises
    ------
    ArgumentError
        No such operation.

    Examples
    --------
    >>> Partial(), Partial("avg")
    (Partial(), Partial('mean'))
    """

    op: str = "sum"

    def __post_init__(self) -> None:
        op = "mean" if self.op == "avg" else self.op
        if op not in OPS:
            raise ArgumentError(f"Partial: op {self.op!r} must be one of {', '.join(OPS)}.")
        object.__setattr__(self, "op", op)

    def __repr__(self) -> str:
        return "Partial()" if self.op == "sum" else f"Partial({self.op!r})"


Placement: TypeAlias = Replicate | Shard | Partial


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _checked_cuts(cuts: Sequence[int] | str | None) -> tuple[int, ...] | str | None:
    if cuts is None or (isinstance(cuts, str) and cuts == "balanced"):
        return cuts
    if isinstance(cuts, str) or not all(map(_is_whole, cuts)) or len(cuts) < 2:
        raise ArgumentError(
            f"Shard: cuts {cuts!r} must be None, 'balanced', or at least two whole numbers."
        )
    found = tuple(map(int, cuts))
    rises = found[0] == 0 and list(found) == sorted(found)
    falls = found[-1] == 0 and list(found) == sorted(found, reverse=True)
    if not rises and not falls:
        raise ArgumentError(f"Shard: cuts {found} must rise from 0 or fall to 0.")
    return found

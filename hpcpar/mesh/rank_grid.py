"""Ranks at the places of a grid with named axes: pure, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .._arrays import Array
from ..errors import ArgumentError

__all__ = ["RankGrid", "degrees"]


def degrees(names: Sequence[str], shape: Sequence[int]) -> str:
    """Return the sizes of axes and their product, in words. Pure.

    Examples
    --------
    >>> degrees(("dp", "tp"), (2, 3))
    'dp=2 x tp=3 = 6 ranks'
    """
    factors = " x ".join(f"{name}={size}" for name, size in zip(names, shape, strict=True))
    return f"{factors} = {math.prod(shape)} ranks"


class RankGrid:
    """Distinct ranks in an array whose axes have names; never changes.

    Parameters
    ----------
    ranks : array_like of int
        Of any shape with at least one axis and one rank.
    names : sequence of str
        One for each axis, all different.

    Attributes
    ----------
    ranks : ndarray of int64
        Read-only.
    names : tuple of str

    Raises
    ------
    ArgumentError
        Ranks that are no distinct whole numbers of at least 0, another number of names, a name
        that is empty or comes twice.

    Examples
    --------
    >>> grid = RankGrid([[0, 1, 2], [3, 4, 5]], ("dp", "tp"))
    >>> grid
    RankGrid(dp=2 x tp=3 = 6 ranks)
    >>> grid.take(("dp",), grid.coordinate(4)).ranks
    array([1, 4])
    """

    def __init__(self, ranks: object, names: Sequence[str]) -> None:
        self.names = _checked_names(names)
        self.ranks = _checked_ranks(ranks, len(self.names))

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.ranks.shape

    def __repr__(self) -> str:
        return f"RankGrid({degrees(self.names, self.shape)})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RankGrid)
            and self.names == other.names
            and np.array_equal(self.ranks, other.ranks)
        )

    def __hash__(self) -> int:
        return hash((self.names, self.shape, self.ranks.tobytes()))

    def axis(self, name: str) -> int:
        """Return the number of the axis with this name."""
        if name not in self.names:
            raise ArgumentError(
                f"mesh: no axis {name!r}; there are {', '.join(map(repr, self.names))}."
            )
        return self.names.index(name)

    def _axes(self, names: Sequence[str]) -> list[int]:
        if not names or len(set(names)) != len(names):
            raise ArgumentError(f"mesh: axes {tuple(names)} must be different, at least one.")
        return [self.axis(name) for name in names]

    def coordinate(self, rank: int) -> tuple[int, ...] | None:
        """Return where a rank is, or None if it is not in the grid."""
        (found,) = np.nonzero(self.ranks.reshape(-1) == rank)
        return tuple(map(int, np.unravel_index(found[0], self.shape))) if found.size else None

    def take(self, names: Sequence[str], at: Sequence[int]) -> RankGrid:
        """Return the grid of some axes, in the order given, through the place `at`."""
        axes = self._axes(names)
        fixed = [slice(None) if axis in axes else at[axis] for axis in range(len(self.names))]
        left = sorted(axes)
        order = [left.index(axis) for axis in axes]
        return RankGrid(self.ranks[tuple(fixed)].transpose(order), names)

    def permute(self, names: Sequence[str]) -> RankGrid:
        """Return it with its axes in another order.

        Examples
        --------
        >>> RankGrid([[0, 1], [2, 3]], ("a", "b")).permute(("b", "a")).ranks.tolist()
        [[0, 2], [1, 3]]
        """
        if len(names) != len(self.names):
            raise ArgumentError(f"permute: {tuple(names)} must be all axes {self.names}.")
        return RankGrid(self.ranks.transpose(self._axes(names)), names)

    def merge(self, names: Sequence[str], name: str) -> RankGrid:
        """Return it with some axes made one, which lies where the first of them did.

        Along the new axis the last of them runs fastest.

        Examples
        --------
        >>> grid = RankGrid(np.arange(8).reshape(2, 2, 2), ("dp", "cp", "tp"))
        >>> grid.merge(("dp", "tp"), "all").ranks.tolist()
        [[0, 2], [1, 3], [4, 6], [5, 7]]
        """
        axes = self._axes(names)
        rest = [axis for axis in range(len(self.names)) if axis not in axes]
        before = [axis for axis in rest if axis < axes[0]]
        after = [axis for axis in rest if axis > axes[0]]
        moved = self.ranks.transpose(before + axes + after)
        shape = [self.shape[axis] for axis in before] + [-1] + [self.shape[axis] for axis in after]
        kept = [self.names[axis] for axis in before], [self.names[axis] for axis in after]
        return RankGrid(moved.reshape(shape), [*kept[0], name, *kept[1]])

    def split(self, name: str, sizes: Mapping[str, int]) -> RankGrid:
        """Return it with one axis made several, the last of which runs fastest.

        Parameters
        ----------
        name
            The axis.
        sizes
            New names and their sizes; one of these may be -1: what is left.

        Examples
        --------
        >>> RankGrid(range(6), ("dp",)).split("dp", {"shard": 3, "copy": -1}).ranks.tolist()
        [[0, 1], [2, 3], [4, 5]]
        """
        axis = self.axis(name)
        length = self.shape[axis]
        parts = fill_in(tuple(sizes), tuple(sizes.values()), length, f"split: axis {name!r}")
        shape = [*self.shape[:axis], *parts, *self.shape[axis + 1 :]]
        names = [*self.names[:axis], *sizes, *self.names[axis + 1 :]]
        return RankGrid(self.ranks.reshape(shape), names)


def fill_in(names: Sequence[str], sizes: Sequence[int], total: int, what: str) -> tuple[int, ...]:
    """Return the sizes, what is left in the place of one -1; their product must be `total`. Pure.

    Examples
    --------
    >>> fill_in(("dp", "tp"), (-1, 2), 8, "the group")
    (4, 2)
    """
    whole = [isinstance(size, int | np.integer) and not isinstance(size, bool) for size in sizes]
    open_ones = [size for size in sizes if size == -1]
    if not all(whole) or len(open_ones) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise ArgumentError(f"{what}: sizes {tuple(sizes)} must be at least 1; one may be -1.")
    known = math.prod(size for size in sizes if size != -1)
    if open_ones and total % known == 0:
        return tuple(total // known if size == -1 else int(size) for size in sizes)
    if open_ones or known != total:
        factors = " x ".join(f"{n}={s}" for n, s in zip(names, sizes, strict=True))
        raise ArgumentError(f"{what} has {total} ranks, not {factors} = {known}{_rest(open_ones)}.")
    return tuple(map(int, sizes))


def _rest(open_ones: Sequence[int]) -> str:
    return " times a whole number" if open_ones else ""


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(n, str) and n for n in names):
        raise ArgumentError(
            f"mesh: names {names!r} must be a sequence of names, one for each axis."
        )
    if len(set(names)) != len(names):
        raise ArgumentError(f"mesh: names {tuple(names)} must all be different.")
    return tuple(names)


def _checked_ranks(ranks: object, ndim: int) -> Array:
    try:
        made = np.array(ranks)
    except ValueError as error:
        raise ArgumentError(f"mesh: ranks are no array: {error}.") from error
    if made.ndim != ndim or ndim == 0:
        raise ArgumentError(f"mesh: {ndim} names for {made.ndim} axes of ranks; at least one.")
    if made.size == 0 or made.dtype.kind not in "iu" or made.min() < 0:
        raise ArgumentError("mesh: ranks must be whole numbers of at least 0, at least one.")
    if np.unique(made).size != made.size:
        raise ArgumentError(f"mesh: a rank comes twice in {made.tolist()}.")
    made = made.astype(np.int64)
    made.flags.writeable = False
    return made

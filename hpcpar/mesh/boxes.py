"""Boxes of an array: a start and a stop for each axis. Pure."""

from __future__ import annotations

import math
from types import EllipsisType
from typing import TypeAlias

__all__ = ["Box", "Place", "count", "intersect", "minus", "shape_of", "within"]

Box: TypeAlias = tuple[tuple[int, int], ...]
Place: TypeAlias = tuple[slice | EllipsisType, ...]


def shape_of(box: Box) -> tuple[int, ...]:
    """Return the lengths of a box.

    Examples
    --------
    >>> shape_of(((2, 5), (0, 1)))
    (3, 1)
    """
    return tuple(stop - start for start, stop in box)


def count(box: Box) -> int:
    """Return the number of elements of a box."""
    return math.prod(shape_of(box))


def intersect(a: Box, b: Box) -> Box | None:
    """Return what two boxes share, or None if that is nothing.

    Examples
    --------
    >>> intersect(((0, 4), (0, 4)), ((2, 6), (1, 3)))
    ((2, 4), (1, 3))
    >>> intersect(((0, 2),), ((2, 4),)) is None
    True
    """
    shared = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def minus(a: Box, b: Box) -> list[Box]:
    """Return boxes that hold what is in `a` and not in `b`, each element once.

    Examples
    --------
    >>> minus(((0, 3), (0, 3)), ((1, 2), (1, 3)))
    [((0, 1), (0, 3)), ((2, 3), (0, 3)), ((1, 2), (0, 1))]
    """
    shared = intersect(a, b)
    if shared is None:
        return [a]
    left, inner = [], list(a)
    for axis, ((start, stop), (low, high)) in enumerate(zip(a, shared, strict=True)):
        for edge in ((start, low), (high, stop)):
            if edge[0] < edge[1]:
                left.append((*inner[:axis], edge, *inner[axis + 1 :]))
        inner[axis] = (low, high)
    return left


def within(box: Box, outer: Box) -> Place:
    """Return where a box lies in an array that holds `outer`: an index that always gives a view.

    Examples
    --------
    >>> within(((4, 6),), ((3, 9),))
    (slice(1, 3, None), Ellipsis)
    """
    return (
        *(
            slice(start - begin, stop - begin)
            for (start, stop), (begin, _) in zip(box, outer, strict=True)
        ),
        ...,
    )

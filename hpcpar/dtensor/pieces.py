"""Arrays that are here in pieces: what this rank has, and the little that neighbours gave.

To join them would copy all for the sake of a row; a ufunc runs piece by piece instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .._arrays import Array
from ..mesh.boxes import Box, Place, intersect, within
from ..mesh.layout import Layout
from .base import Pieces

__all__ = ["NUMBERS", "in_pieces", "whole_of"]

NUMBERS = (bool, int, float, complex, np.generic)


def whole_of(held: Any) -> Any:
    """Return an argument as it is, or joined if it is in pieces."""
    if not isinstance(held, list):
        return held
    whole = np.empty(_shape_of(held), held[0][1].dtype)
    for place, part in held:
        whole[place] = part
    return whole


def in_pieces(
    function: Callable[..., Any],
    held: Sequence[Any],
    layout: Layout,
    out: tuple[Any, ...] | None,
    options: dict[str, Any],
) -> Array | None:
    """Run a ufunc piece by piece, without joining what came to what is here.

    None where that does not do: for other functions, several results, arguments that are stretched,
    memory that is read and written.
    """
    shape = layout.local_shape or ()
    arrays = [each for each in held if not isinstance(each, NUMBERS)]
    if not isinstance(function, np.ufunc) or function.nout > 1 or options:
        return None
    if any(_shape_of(each) != shape for each in arrays):
        return None
    if out is None:
        result = np.empty(shape, _result_dtype(function, held))
    else:
        result = out[0].to_local()
        if any(np.may_share_memory(result, part) for part in _all_parts(arrays)):
            return None
    cells: list[tuple[Box, list[Any]]] = [(tuple((0, n) for n in shape), [])]
    for each in held:
        cells = [cell for box, parts in cells for cell in _cut(box, parts, each)]
    for box, parts in cells:
        function(*parts, out=result[_slices(box)])
    return result


def _cut(box: Box, parts: list[Any], each: Any) -> Iterator[tuple[Box, list[Any]]]:
    """Yield the parts of a box in which an argument lies in one piece."""
    if isinstance(each, NUMBERS):
        yield box, [*parts, each]
    for place, array in each if isinstance(each, list) else ():
        piece = tuple((s.start, s.stop) for s in place if isinstance(s, slice))
        shared = intersect(box, piece)
        if shared is not None:
            inner = within(shared, box)
            yield shared, [*(_inside(part, inner) for part in parts), array[within(shared, piece)]]
    if isinstance(each, np.ndarray):
        yield box, [*parts, each[_slices(box)]]


def _inside(part: Any, place: Place) -> Any:
    return part if isinstance(part, NUMBERS) else part[place]


def _slices(box: Box) -> Place:
    return (*(slice(start, stop) for start, stop in box), ...)


def _shape_of(each: Array | Pieces) -> tuple[int, ...]:
    """Return the shape of an array that may be in pieces, which fill it."""
    if isinstance(each, np.ndarray):
        return each.shape
    stops = [[s.stop for s in place if isinstance(s, slice)] for place, _ in each]
    return tuple(max(ends) for ends in zip(*stops, strict=True))


def _all_parts(arrays: Sequence[Any]) -> Iterator[Array]:
    for each in arrays:
        yield from (part for _, part in each) if isinstance(each, list) else (each,)


def _result_dtype(function: np.ufunc, held: Sequence[Any]) -> np.dtype[Any]:
    """Return the dtype of a result, by a call with nothing."""
    nothing = [
        each if isinstance(each, NUMBERS) else np.empty(0, next(_all_parts([each])).dtype)
        for each in held
    ]
    found: np.dtype[Any] = function(*nothing).dtype
    return found

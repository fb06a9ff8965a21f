"""Who sends which box to whom, so that boxes held here become boxes held there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import ArgumentError
from .boxes import Box, count, intersect, minus

__all__ = ["Boxes", "Piece", "in_rounds", "pieces"]

#: For each rank the boxes that it holds, or wants.
Boxes = Sequence[Sequence[Box]]


class Piece(NamedTuple):
    """A box that goes from a box of one rank to a box of another, or of the same."""

    src: int
    src_box: int
    dst: int
    dst_box: int
    box: Box


def pieces(src: Boxes, dst: Boxes) -> list[Piece]:
    """Return what must go where, each wanted element once, by destination.

    What a rank holds itself it takes from there. Of several ranks that hold a box, the one that has
    least to send so far sends it; of equal ones the nearest.

    Raises
    ------
    ArgumentError
        Some rank wants elements that nobody holds.

    Examples
    --------
    Three rows on the first of two ranks, cut anew:

    >>> for piece in pieces([[((0, 3),)], []], [[((0, 2),)], [((2, 3),)]]):
    ...     print(piece.src, "->", piece.dst, piece.box)
    0 -> 0 ((0, 2),)
    0 -> 1 ((2, 3),)
    """
    held = _Held(src)
    return [
        piece
        for rank, wanted in enumerate(dst)
        for number, box in enumerate(wanted)
        for piece in _to(held, rank, number, box)
    ]


class _Held:
    """Boxes that are held, each once, with the ranks that hold it."""

    def __init__(self, src: Boxes) -> None:
        self._mine = src
        self._sent = [0] * len(src)
        self._holders: dict[Box, list[tuple[int, int]]] = {}
        for rank, boxes in enumerate(src):
            for number, box in enumerate(boxes):
                if count(box):
                    self._holders.setdefault(box, []).append((rank, number))
        self._boxes = list(self._holders)
        ndim = len(self._boxes[0]) if self._boxes else 0
        self._bounds = np.array(self._boxes, np.int64).reshape(len(self._boxes), ndim, 2)

    def touching(self, box: Box) -> list[Box]:
        """Return the boxes that share elements with this one."""
        if not self._boxes:
            return []
        low, high = np.array(box, np.int64).reshape(-1, 2).T
        shared = np.maximum(self._bounds[..., 0], low) < np.minimum(self._bounds[..., 1], high)
        (found,) = np.nonzero(shared.all(axis=-1))
        return [self._boxes[i] for i in found]

    def sources(self, box: Box, rank: int) -> Iterator[tuple[Box, int, int]]:
        """Yield boxes that touch this one, and who may send of them: the rank itself first."""
        own = self._mine[rank] if rank < len(self._mine) else ()
        yield from ((held, rank, number) for number, held in enumerate(own))
        for held in self.touching(box):
            holders = self._holders[held]
            yield held, *min(holders, key=lambda each: (self._sent[each[0]], abs(each[0] - rank)))

    def send(self, src: int, dst: int, box: Box) -> None:
        """Count what a rank sends to another."""
        self._sent[src] += count(box) * (src != dst)


def _to(held: _Held, rank: int, number: int, box: Box) -> Iterator[Piece]:
    """Yield the pieces of one wanted box."""
    missing = [box] if count(box) else []
    for source, src, src_box in held.sources(box, rank):
        left: list[Box] = []
        for part in missing:
            shared = intersect(part, source)
            if shared is None:
                left.append(part)
                continue
            held.send(src, rank, shared)
            yield Piece(src, src_box, rank, number, shared)
            left += minus(part, shared)
        missing = left
        if not missing:
            return
    if missing:
        raise ArgumentError(f"exchange: nobody holds {missing[0]}, which rank {rank} wants.")


def in_rounds(found: Sequence[Piece], num_ranks: int, most: int | None) -> list[list[Piece]]:
    """Return the pieces between ranks, cut so that no rank has more than `most` at a time.

    Parameters
    ----------
    found
        All pieces.
    num_ranks
        How many ranks there are.
    most
        Elements that a rank may have on their way in a round, sent and received; at least 2. None:
        all go in one.

    Examples
    --------
    >>> whole = pieces([[((0, 4),)], []], [[], [((0, 4),)]])
    >>> [[piece.box for piece in some] for some in in_rounds(whole, 2, 3)]
    [[((0, 2),)], [((2, 4),)]]
    """
    between = [piece for piece in found if piece.src != piece.dst]
    if most is None:
        return [between] if between else []
    used = np.zeros((0, num_ranks), np.int64)
    first = np.zeros(num_ranks, np.int64)  # rounds before this are full for the rank
    rounds: list[list[Piece]] = []
    for piece in between:
        for box in _slabs(piece.box, most):
            ends, size = [piece.src, piece.dst], count(box)
            at = int(first[ends].max())
            while at < len(rounds) and (used[at, ends] + size > most).any():
                at += 1
            if at == len(rounds):
                rounds.append([])
                used = np.vstack([used, np.zeros((1, num_ranks), np.int64)])
            rounds[at].append(piece._replace(box=box))
            used[at, ends] += size
            for rank in ends:
                if used[at, rank] >= most and first[rank] == at:
                    first[rank] = at + 1
    return rounds


def _slabs(box: Box, most: int) -> Iterator[Box]:
    """Yield a box in halves until each has at most `most` elements."""
    if count(box) <= most:
        yield box
        return
    axis = next(axis for axis, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[axis]
    middle = start + (stop - start + 1) // 2
    for edge in ((start, middle), (middle, stop)):
        yield from _slabs((*box[:axis], edge, *box[axis + 1 :]), most)

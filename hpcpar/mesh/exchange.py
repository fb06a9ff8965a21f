"""Boxes of arrays from where they are to where they are wanted, by one exchange among all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._arrays import Array, as_dtype, memory_overlaps
from ..comm.attach import as_group
from ..comm.chained import Calls, run_chained
from ..comm.group import Group
from ..comm.sizes import Table
from ..errors import ArgumentError, MismatchError
from .boxes import Box, Place, count, shape_of, within
from .exchange_plan import Boxes, Piece, in_rounds, pieces

__all__ = ["Exchange", "Routes", "elements", "plan_exchange"]


def plan_exchange(
    src_boxes: Boxes,
    dst_boxes: Boxes,
    dtype: npt.DTypeLike,
    *,
    group: Group | None = None,
    max_nbytes: int | None = None,
) -> Exchange:
    """Return a plan that turns boxes held by ranks into boxes wanted by ranks.

    Collective over `group`, to compare what the ranks were given.

    Parameters
    ----------
    src_boxes
        For each rank the boxes that it holds, each a (start, stop) for every axis of one array; or
        one box for each rank. Several ranks may hold the same elements.
    dst_boxes
        The same for what each rank wants.
    dtype
        Of the elements.
    group
        None is the current group.
    max_nbytes
        Bytes that a rank may need beside its arrays; more rounds are made for it. None: one round.

    Returns
    -------
    Exchange
        Call it as often as you like, with new values.

    Raises
    ------
    ArgumentError
        Another number of ranks, boxes of different ndim, elements that nobody holds.
    MismatchError
        The ranks were given different boxes; on all of them.

    Examples
    --------
    Rows become columns:

    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     rows = [((0, 1), (0, 2)), ((1, 2), (0, 2))]
    ...     columns = [((0, 2), (0, 1)), ((0, 2), (1, 2))]
    ...     plan = plan_exchange(rows, columns, "int64", group=group)
    ...     return plan(np.array([[10, 11]]) + 10 * group.rank).ravel().tolist()
    >>> run_ranks(2, body)
    [[10, 20], [11, 21]]
    """
    group = as_group(group)
    wanted = as_dtype(dtype)
    src, dst = (
        _checked_boxes(src_boxes, "src_boxes", group),
        _checked_boxes(dst_boxes, "dst_boxes", group),
    )
    said = hashlib.blake2b(repr((src, dst, str(wanted), max_nbytes)).encode(), digest_size=16)
    told = group.all_gather(np.frombuffer(said.digest(), np.uint8)[None], sizes="equal")
    others = [rank for rank, its in enumerate(told) if (its != told[0]).any()]
    if others:
        raise MismatchError(f"plan_exchange: ranks {others} were given other boxes than rank 0.")
    return Exchange(group, src, dst, wanted, max_nbytes=max_nbytes)


class Exchange:
    """A plan made by `plan_exchange`, with the buffers that it needs."""

    def __init__(
        self,
        group: Group,
        src: Boxes,
        dst: Boxes,
        dtype: np.dtype[Any],
        *,
        max_nbytes: int | None = None,
    ) -> None:
        self.group, self.dtype = group, dtype
        self._routes = Routes(src, dst, group.rank, most=elements(max_nbytes, dtype))
        self._buffers = self._routes.buffers(dtype)

    @property
    def nbytes_sent(self) -> int:
        """Bytes that this rank sends to others."""
        return self._routes.num_sent * self.dtype.itemsize

    @property
    def num_rounds(self) -> int:
        """How many exchanges among the ranks it takes."""
        return len(self._routes.rounds)

    def __repr__(self) -> str:
        return f"<Exchange {self.num_rounds} rounds, {self.nbytes_sent} bytes sent here>"

    def __call__(
        self,
        x: Any,
        out: Any = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Move the values. Collective over the group, unless no rank needs another's.

        Parameters
        ----------
        x : array, or list of arrays
            What this rank holds: of the shape of its box. A list where it was given several boxes.
        out : like the result, optional
            Receives it; nothing is allocated then, unless it is asynchronous.

        Returns
        -------
        array, or list of arrays
            What this rank wants.

        Raises
        ------
        ArgumentError
            Other shapes or dtypes than planned, `out` overlaps `x`. Local, before any traffic.
        """
        held, wanted = self._check(x, self._routes.src, "x"), self._results(out)
        if out is not None and any(memory_overlaps(a, b) for a in held for b in wanted):
            raise ArgumentError(f"exchange: out overlaps x {self.group.here()}.")
        # Others of this plan may be on their way.
        buffers = self._routes.buffers(self.dtype) if async_op else self._buffers
        calls = self._routes.run(self.group, held, wanted, buffers)
        return run_chained("exchange", calls, timeout=timeout, async_op=async_op)

    def _results(self, out: Any) -> list[Array]:
        if out is None:
            return self._routes.results(self.dtype)
        return self._check(out, self._routes.dst, "out")

    def _check(self, given: Any, boxes: Sequence[Box], name: str) -> list[Array]:
        arrays = [given] if len(boxes) == 1 and not isinstance(given, list) else given
        shapes = [shape_of(box) for box in boxes]
        fits = isinstance(arrays, list) and [
            (getattr(a, "shape", None), getattr(a, "dtype", None)) for a in arrays
        ] == [(shape, self.dtype) for shape in shapes]
        if not fits:
            raise ArgumentError(
                f"exchange: {name} must have shape{'s' * (len(shapes) != 1)} "
                f"{', '.join(map(str, shapes)) or 'none: []'} and dtype {self.dtype}, as planned "
                f"{self.group.here()}."
            )
        return list(arrays)


class Routes:
    """What one rank copies, sends and receives; no memory of its own.

    Parameters
    ----------
    src, dst : for each rank the boxes that it holds and wants
    me : int
        The rank.
    most : int, optional
        Elements on their way at a time.
    """

    def __init__(self, src: Boxes, dst: Boxes, me: int, *, most: int | None = None) -> None:
        found = pieces(src, dst)
        self.src, self.dst = src[me], dst[me]
        self._own = [
            (p.src_box, within(p.box, self.src[p.src_box]), p.dst_box, self._place(p))
            for p in found
            if p.src == p.dst == me
        ]
        self.rounds = [self._round(some, me, len(src)) for some in in_rounds(found, len(src), most)]
        self.num_sent = sum(some.num_sent for some in self.rounds)

    def _place(self, piece: Piece) -> Place:
        return within(piece.box, self.dst[piece.dst_box])

    def _round(self, found: Sequence[Piece], me: int, num_ranks: int) -> _Round:
        sent = sorted((p for p in found if p.src == me), key=lambda p: p.dst)
        received = sorted((p for p in found if p.dst == me), key=lambda p: p.src)
        table = [[0] * num_ranks for _ in range(num_ranks)]
        for piece in found:
            table[piece.src][piece.dst] += count(piece.box)
        return _Round(
            _in_turn(sent, [(p.src_box, within(p.box, self.src[p.src_box])) for p in sent]),
            sum(table[me]),
            Table(map(tuple, table)),
            _in_turn(received, [(p.dst_box, self._place(p)) for p in received]),
            sum(count(p.box) for p in received),
        )

    def buffers(self, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """Return memory for what is on its way, sent and received."""
        sent = max((some.num_sent for some in self.rounds), default=0)
        received = max((some.num_received for some in self.rounds), default=0)
        return np.empty(sent, dtype), np.empty(received, dtype)

    def results(self, dtype: np.dtype[Any]) -> list[Array]:
        """Return memory for what is wanted."""
        return [np.empty(shape_of(box), dtype) for box in self.dst]

    def run(
        self,
        group: Group,
        held: Sequence[Array],
        wanted: Sequence[Array],
        buffers: tuple[Array, Array],
    ) -> Calls:
        """Move the values; the result is `wanted`, or its only array."""
        for src_box, here, dst_box, there in self._own:
            wanted[dst_box][there] = held[src_box][here]
        for some in self.rounds:
            into = yield from self._swap(some, group, held, buffers)
            for number, at, part, shape in some.received:
                wanted[number][at] = into[part].reshape(shape)
        return wanted[0] if len(self.dst) == 1 else wanted

    def collect(self, group: Group, held: Sequence[Array], buffers: tuple[Array, Array]) -> Calls:
        """Move the values of one round; the result tells where in the only box parts go.

        What this rank holds itself comes first, as views of it; the rest are views of a buffer.
        """
        found = [(there, held[src_box][here]) for src_box, here, _, there in self._own]
        for some in self.rounds:
            into = yield from self._swap(some, group, held, buffers)
            found += [(at, into[part].reshape(shape)) for _, at, part, shape in some.received]
        return found

    def _swap(
        self,
        some: _Round,
        group: Group,
        held: Sequence[Array],
        buffers: tuple[Array, Array],
    ) -> Calls:
        """Send a round's parts and return what came."""
        out, into = buffers[0][: some.num_sent], buffers[1][: some.num_received]
        for number, at, part, shape in some.sent:
            out[part].reshape(shape)[...] = held[number][at]
        yield partial(group.all_to_all, out, sizes=some.sizes, out=into)
        return into


#: Which array, where in it, where in the buffer, of what shape.
_Stop = tuple[int, Place, slice, tuple[int, ...]]


class _Round(NamedTuple):
    """What goes at once, in the order of the ranks."""

    sent: list[_Stop]
    num_sent: int
    sizes: Table
    received: list[_Stop]
    num_received: int


def _in_turn(found: Sequence[Piece], places: Sequence[tuple[int, Place]]) -> list[_Stop]:
    """Return the pieces with their parts of a buffer, one after the other."""
    ends = accumulate(count(piece.box) for piece in found)
    return [
        (number, at, slice(end - count(piece.box), end), shape_of(piece.box))
        for piece, (number, at), end in zip(found, places, ends, strict=True)
    ]


def elements(max_nbytes: int | None, dtype: np.dtype[Any]) -> int | None:
    """Return how many elements these bytes hold; at least one. Local."""
    if max_nbytes is None:
        return None
    if (
        isinstance(max_nbytes, bool)
        or not isinstance(max_nbytes, int)
        or max_nbytes < dtype.itemsize
    ):
        raise ArgumentError(
            f"max_nbytes {max_nbytes!r} must be an int of at least an element's {dtype.itemsize}."
        )
    return max_nbytes // dtype.itemsize


def _checked_boxes(boxes: Any, name: str, group: Group) -> list[list[Box]]:
    """Return a list of boxes for each rank, all of one ndim."""
    try:
        listed = [[each] if _is_box(each) else list(each) for each in boxes]
        made = [
            [tuple((int(start), int(stop)) for start, stop in box) for box in each]
            for each in listed
        ]
    except (TypeError, ValueError):
        raise ArgumentError(
            f"plan_exchange: {name} must hold a box, or a list of boxes, for each rank; a box is a "
            f"(start, stop) for each axis {group.here()}."
        ) from None
    if len(made) != group.size:
        raise ArgumentError(
            f"plan_exchange: {name} is for {len(made)} ranks of {group.size} {group.here()}."
        )
    every = [box for each in made for box in each]
    if len({len(box) for box in every}) > 1 or any(a > b or a < 0 for box in every for a, b in box):
        raise ArgumentError(
            f"plan_exchange: {name} must hold boxes of one number of axes, with 0 <= start <= stop "
            f"{group.here()}."
        )
    return made


def _is_box(each: Any) -> bool:
    """Whether it is one box, not a list of them: a tuple of pairs of numbers."""
    return isinstance(each, tuple) and all(
        isinstance(pair, tuple) and all(isinstance(n, (int, np.integer)) for n in pair)
        for pair in each
    )

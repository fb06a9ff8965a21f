"""The moving verbs: broadcast, all_gather, gather, scatter, permute. Any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import Array, Restore, adopt, check_axis, count_of
from ..errors import ArgumentError, HpcparError, UnsupportedError
from . import describe
from . import sizes as cuts
from .agree import Header
from .backend import Operation
from .layout import block_shape, rows_before
from .request import Operand, Request, Steps, View, adopt_out, check_rank

__all__ = ["AllGather", "Gather", "Permute", "Scatter"]


class _Gathering(Request):
    """What all_gather and gather share: my block of a concatenation along an axis."""

    def __init__(self, view: View, x: Any, axis: int, sizes: Any, out: Any) -> None:
        super().__init__(view)
        array, restore = adopt(x, self.verb)
        self.scalar = array.ndim == 0
        self.block = array.reshape(1) if self.scalar else array
        self.axis = check_axis(axis, self.block.ndim, self.verb)
        self.length = self.block.shape[self.axis]
        self.given_sizes = sizes
        self.sizes = self._promised(sizes)
        self.exchanges = self.sizes is None
        self.compares = self.promised_equal = isinstance(sizes, str)
        self.operand = Operand(self.block, restore, None, self.verb)
        self.count, self.dtype = self.block.size, self.block.dtype
        self._take_out(out)

    def _take_out(self, out: Any) -> None:
        """Take `out`; if it is wrong, the others must hear of it or be kept company."""
        try:
            self.operand.give(out, self.verb)
            shape = None if self.sizes is None else self.result_shape(self.sizes)
            self.operand.check(shape, self.verb, *self._own_place())
        except HpcparError as error:
            self.refused = error
            self.operand.give(None, self.verb)

    def _own_place(self) -> tuple[tuple[Any, ...], str]:
        """Return where in `out` my block goes, and may come from."""
        if self.sizes is None:
            return (...,), "Promise sizes to work in place, with x as out's block of this rank."
        begin = sum(self.sizes[: self.view.rank])
        rows = slice(begin, begin + self.length)
        text = ", ".join([":"] * self.axis + [f"{rows.start}:{rows.stop}"])
        return (slice(None),) * self.axis + (rows, ...), f"To work in place, let x be out[{text}]."

    def _promised(self, sizes: Any) -> tuple[int, ...] | None:
        if sizes is None:
            return None
        if isinstance(sizes, str):
            if sizes != "equal":
                raise ArgumentError(f"{self.verb}: sizes {sizes!r} must be None, 'equal' or ints.")
            return (self.length,) * self.view.size
        given = cuts.check_sizes(sizes, self.view.size, None, self.verb)
        if given[self.view.rank] != self.length:
            raise ArgumentError(
                f"{self.verb}: sizes {given} promise {given[self.view.rank]} from rank "
                f"{self.view.rank}, x has {self.length} along axis {self.axis}."
            )
        return given

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        shape = self.block.shape
        if not self.promised_equal:
            shape = block_shape(shape, self.axis, -1)
        shown = str(shape).replace("-1", "*")
        promise = self.sizes if self.sizes is not None else "exchanged"
        if self.promised_equal:
            promise = "equal"
        return [
            f"verb={self.verb}",
            f"dtype={describe.dtype_text(self.block.dtype)}",
            f"shape={shown}",
            f"axis={self.axis}",
            f"sizes={promise}",
        ]

    def agreed_nbytes(self) -> int:
        """Return the bytes by which ranks decide alike."""
        shape = self.result_shape(self.sizes or (0,))
        return describe.nbytes_of(self.block.dtype, shape)

    def local(self) -> list[str]:
        """Say what is wrong with `out`, or what it is."""
        if self.refused is not None:
            return [f"refused={self.refused}"]
        return [] if self.operand.out is None else [f"out={describe.kind_text(self.operand.out)}"]

    def objection(self, headers: Sequence[Header]) -> str | None:
        """Compare every rank's `out` with the result, whose length is known now."""
        needed = self.block.dtype, self.result_shape(self.lengths(headers))
        return _wrong_out(self.verb, headers, [needed] * len(headers))

    def lengths(self, headers: Sequence[Header] | None) -> tuple[int, ...]:
        """Return every rank's length along the axis."""
        if self.sizes is not None:
            return self.sizes
        assert headers is not None
        return tuple(h.length for h in headers)

    def result_shape(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the concatenation."""
        return block_shape(self.block.shape, self.axis, sum(lengths))

    @property
    def unit(self) -> int:
        """Bytes of what has length 1 along the axis."""
        return describe.nbytes_of(self.block.dtype, block_shape(self.block.shape, self.axis, 1))

    def gathered(self, lengths: Sequence[int], verb: str, root: int | None) -> Steps:
        """Receive the concatenation and hand it back."""
        memory, shape = self.view.memory, self.result_shape(lengths)
        direct = rows_before(shape, self.axis) == 1
        recv, unit = self.operand.target(memory, shape, direct), self.unit
        yield Operation(
            verb,
            memory.bytes(memory.pack(self.block)),
            memory.bytes(recv),
            root=root,
            recv_counts=[n * unit for n in lengths],
        )
        if self.refused is not None:  # no headers went: the others are in step only now
            raise self.refused
        return self.operand.hand_back(memory.join(recv, shape, lengths, self.axis))


def _wrong_out(
    verb: str, headers: Sequence[Header], results: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]
) -> str | None:
    """Name the first rank whose `out` is not of its result's dtype and shape."""
    for rank, (header, result) in enumerate(zip(headers, results, strict=True)):
        given, needed = header.field("out"), describe.kind_text_of(*result)
        if given is not None and given != needed:
            return f"{verb}: out of rank {rank} is {given}, its result is {needed}"
    return None


class AllGather(_Gathering):
    """Every rank gets all ranks' arrays, concatenated along an axis."""

    verb = "all_gather"

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        lengths = self.lengths(headers)
        return (yield from self.gathered(lengths, "all_gather", None))


class Gather(_Gathering):
    """The root gets all ranks' arrays, concatenated along an axis; the others None."""

    verb = "gather"

    def __init__(self, view: View, x: Any, root: int, axis: int, sizes: Any, out: Any) -> None:
        self.view = view
        self.root = self.check_root(root)
        super().__init__(view, x, axis, sizes, out if view.rank == self.root else None)

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        return [*super().agreed(), f"root={self.root}"]

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        if self.view.rank == self.root:
            return (yield from self.gathered(self.lengths(headers), "gather", self.root))
        memory, unit = self.view.memory, self.unit
        yield Operation(
            "gather",
            memory.bytes(memory.pack(self.block)),
            root=self.root,
            recv_counts=[n * unit for n in self.lengths(headers)],
        )
        return None


class Scatter(Request):
    """Each rank gets its part, along an axis, of the root's array."""

    verb = "scatter"

    def __init__(self, view: View, x: Any, root: int, axis: int, sizes: Any, out: Any) -> None:
        super().__init__(view)
        self.root = self.check_root(root)
        # Without checks, out= on one rank promises it on all: then everybody knows what comes.
        self.exchanges = not (view.trusting and out is not None)
        self.given_axis, self.given_sizes = axis, sizes
        self.out = out
        self.array: Array | None = None
        self.restore: Restore | None = None
        self.out_array: Array | None = None
        try:
            if view.rank == self.root:
                self._take(x, axis, sizes)
            self._take_out(out)
        except HpcparError as error:
            self.refused = error
            if not self.exchanges:
                raise

    def _take_out(self, out: Any) -> None:
        if out is None:
            return
        given = adopt_out(out, self.verb)
        both = Operand(given if self.array is None else self.array, None, out, self.verb)
        if self.exchanges or self.array is None:
            both.check_memory(self.verb)
        else:
            mine = self.sizes[self.view.rank]
            both.check(block_shape(self.array.shape, self.axis, mine), self.verb)
        self.out_array = both.out

    def _take(self, x: Any, axis: int, sizes: Any) -> None:
        if x is None:
            raise ArgumentError(f"scatter: x is None on rank {self.root}, which is the root.")
        array, self.restore = adopt(x, self.verb)
        if array.ndim == 0:
            raise ArgumentError("scatter: x is 0-d, it needs an axis to cut.")
        self.axis = check_axis(axis, array.ndim, self.verb)
        length = array.shape[self.axis]
        self.sizes = (
            cuts.uneven(length, self.view.size)
            if sizes is None
            else cuts.check_sizes(sizes, self.view.size, length, self.verb)
        )
        self.array = array
        self.count, self.dtype = array.size, array.dtype

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        return ["verb=scatter", f"root={self.root}"]

    def fingerprint(self) -> list[str] | None:
        """Add what comes, which all know where all parts are alike."""
        if self.out_array is None or (self.array is not None and len({*self.sizes}) > 1):
            return None
        return [*self.agreed(), f"out={describe.kind_text(self.out_array)}"]

    def local(self) -> list[str]:
        """Name what only this rank knows."""
        if self.refused is not None:
            return [f"refused={self.refused}"]
        fields = []
        if self.array is not None:
            kind = describe.kind_text(self.array)
            sizes = describe.sizes_text(self.sizes, self.array.shape[self.axis])
            fields = [f"kind={kind}", f"axis={self.axis}", f"sizes={sizes}"]
        if self.out_array is not None:
            fields.append(f"out={describe.kind_text(self.out_array)}")
        return fields

    def _parts(self, headers: Sequence[Header]) -> tuple[Any, list[tuple[int, ...]], int]:
        root = headers[self.root].fields()
        if "kind" not in root:  # every peer is a copy of this rank
            raise UnsupportedError(
                "scatter: x is None, and on the fake backend no root sends. Pass x on every rank."
            )
        dtype, shape = describe.read_kind(root["kind"])
        axis = int(root["axis"])
        sizes = describe.read_sizes(root["sizes"], shape[axis], self.view.size)
        return dtype, [block_shape(shape, axis, n) for n in sizes], axis

    def objection(self, headers: Sequence[Header]) -> str | None:
        """Say what the headers break, the same on every rank."""
        dtype, shapes, _ = self._parts(headers)
        return _wrong_out(self.verb, headers, [(dtype, shape) for shape in shapes])

    def _mine(self, headers: Sequence[Header] | None) -> tuple[Any, tuple[int, ...]]:
        """Return dtype and shape of what comes here: the root says it, or `out` promises it."""
        if headers is None:
            assert self.out_array is not None
            return self.out_array.dtype, self.out_array.shape
        dtype, shapes, _ = self._parts(headers)
        return dtype, shapes[self.view.rank]

    def counts(self) -> list[int]:
        """Return the bytes of each rank's part, on the root."""
        if self.array is None:
            return []
        dtype, shape = self.array.dtype, self.array.shape
        return [describe.nbytes_of(dtype, block_shape(shape, self.axis, n)) for n in self.sizes]

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        dtype, mine = self._mine(headers)
        memory = self.view.memory
        operand = Operand(memory.empty((0,), dtype), self.restore, None, self.verb)
        operand.out, operand.given = self.out_array, self.out
        recv = operand.target(memory, mine)
        send, counts = None, self.counts()
        if self.array is not None:
            send = memory.bytes(memory.cut(self.array, self.sizes, self.axis))
        yield Operation("scatter", send, memory.bytes(recv), root=self.root, send_counts=counts)
        return operand.hand_back(recv.reshape(mine))


class Permute(Request):
    """Send to one rank and receive from one, by a list of (source, destination) pairs."""

    verb = "permute"
    exchanges = True

    def __init__(self, view: View, x: Any, pairs: Any, out: Any) -> None:
        super().__init__(view)
        array, restore = adopt(x, self.verb)
        self.operand = Operand(array, restore, None, self.verb)
        self.pairs = _check_pairs(pairs, view.size)
        try:
            self.operand.give(out, self.verb)
            self.operand.check_memory(self.verb)
        except HpcparError as error:
            self.refused = error
        self.destination = dict(self.pairs).get(view.rank)
        self.source = {d: s for s, d in self.pairs}.get(view.rank)
        self.count, self.dtype = array.size, array.dtype

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        return ["verb=permute", f"pairs={self.pairs}"]

    def local(self) -> list[str]:
        """Name what only this rank knows."""
        if self.refused is not None:
            return [f"refused={self.refused}"]
        fields = [f"kind={describe.kind_text(self.operand.array)}"]
        if self.operand.out is not None:
            fields.append(f"out={describe.kind_text(self.operand.out)}")
        return fields

    def objection(self, headers: Sequence[Header]) -> str | None:
        """Say what the headers break, the same on every rank."""
        for source, destination in self.pairs:
            sent, given = headers[source].field("kind"), headers[destination].field("out")
            if given is not None and given != sent:
                return f"permute: out of rank {destination} is {given}, it receives {sent}"
        return None

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        assert headers is not None
        memory, size = self.view.memory, self.view.size
        dtype: np.dtype[Any] = np.dtype(np.uint8)
        shape: tuple[int, ...] = (0,)
        if self.source is not None:
            dtype, shape = describe.read_kind(headers[self.source].fields()["kind"])
        recv = memory.empty((count_of(shape),), dtype)
        send = memory.bytes(memory.pack(self.operand.array))
        yield Operation(
            "all_to_all",
            send[: send.size if self.destination is not None else 0],
            memory.bytes(recv),
            send_counts=[send.size if r == self.destination else 0 for r in range(size)],
            recv_counts=[recv.nbytes if r == self.source else 0 for r in range(size)],
        )
        return None if self.source is None else self.operand.hand_back(recv.reshape(shape))


def _check_pairs(pairs: Any, size: int) -> list[tuple[int, int]]:
    try:
        found = [(s, d) for s, d in pairs]
    except (TypeError, ValueError):
        raise ArgumentError(
            f"permute: pairs {pairs!r} must be (source, destination) pairs."
        ) from None
    for name, ranks in (("source", [s for s, _ in found]), ("destination", [d for _, d in found])):
        for rank in ranks:
            check_rank(rank, size, "permute", name)
        if len(set(ranks)) != len(ranks):
            raise ArgumentError(f"permute: pairs {found} name a {name} twice; each rank once.")
    return [(int(s), int(d)) for s, d in found]

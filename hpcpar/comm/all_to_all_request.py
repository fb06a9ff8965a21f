"""all_to_all: a part for every rank; lengths are exchanged, or promised. Any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import adopt, as_bytes, check_axis
from ..errors import ArgumentError
from . import describe
from . import sizes as cuts
from .agree import Header
from .backend import Operation
from .layout import block_shape, rows_before
from .request import Operand, Request, Steps, View

__all__ = ["AllToAll"]

_LONGEST = 200  # characters of a table in a message


class AllToAll(Request):
    """Each rank sends a part of its array to every rank and joins what it receives."""

    verb = "all_to_all"

    def __init__(self, view: View, x: Any, axis: int, sizes: Any, out: Any) -> None:
        super().__init__(view)
        array, restore = adopt(x, self.verb)
        if array.ndim == 0:
            raise ArgumentError("all_to_all: x is 0-d, it needs an axis to cut.")
        self.axis = check_axis(axis, array.ndim, self.verb)
        self.given_sizes = sizes
        self.promised_equal = isinstance(sizes, str)
        self.table = cuts.read_table(sizes, view.size, self.verb)
        self.compares = self.promised_equal or self.table is not None
        if self.table is not None:
            sizes = self.table[view.rank]
        self.sizes = self._lengths(array.shape[self.axis], sizes)
        self.operand = Operand(array, restore, out, self.verb)
        self.operand.check(None, self.verb)
        self.count, self.dtype = array.size, array.dtype

    def _lengths(self, length: int, sizes: Any) -> tuple[int, ...]:
        size = self.view.size
        if sizes is None:
            return cuts.uneven(length, size)
        if not isinstance(sizes, str):
            return cuts.check_sizes(sizes, size, length, self.verb)
        if sizes != "equal":
            raise ArgumentError(
                f"all_to_all: sizes {sizes!r} must be None, 'equal', ints or a row for each rank."
            )
        if length % size:
            raise ArgumentError(
                f"all_to_all: sizes 'equal' needs a length that {size} ranks divide, axis "
                f"{self.axis} has {length}."
            )
        return (length // size,) * size

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        shape = self.operand.array.shape
        if not self.promised_equal:
            shape = block_shape(shape, self.axis, -1)
        shown = str(shape).replace("-1", "*")
        known = "exchanged" if self.table is None else _table_text(self.table)
        return [
            "verb=all_to_all",
            f"sizes={'equal' if self.promised_equal else known}",
            f"dtype={describe.dtype_text(self.operand.array.dtype)}",
            f"shape={shown}",
            f"axis={self.axis}",
        ]

    def agreed_nbytes(self) -> int:
        """Return the bytes by which ranks decide alike."""
        if self.table is not None:
            return sum(map(sum, self.table)) * self.unit
        return self.operand.array.nbytes if self.promised_equal else 0

    @property
    def unit(self) -> int:
        """Bytes of one index along the axis."""
        shape = block_shape(self.operand.array.shape, self.axis, 1)
        return describe.nbytes_of(self.operand.array.dtype, shape)

    @property
    def promised(self) -> tuple[int, ...] | None:
        """The lengths that come, where they were promised."""
        if self.table is not None:
            return tuple(row[self.view.rank] for row in self.table)
        return self.sizes if self.promised_equal else None

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        array, memory, unit = self.operand.array, self.view.memory, self.unit
        lengths = self.promised
        if lengths is None:
            lengths = yield from _exchange_counts(self.sizes, self.view)
        shape = block_shape(array.shape, self.axis, sum(lengths))
        direct = self._goes_to_out(shape) and rows_before(shape, self.axis) == 1
        recv = self.operand.target(memory, shape, direct)
        yield Operation(
            "all_to_all",
            memory.bytes(memory.cut(array, self.sizes, self.axis)),
            memory.bytes(recv),
            send_counts=[n * unit for n in self.sizes],
            recv_counts=[n * unit for n in lengths],
            equal=self.promised_equal,
        )
        # Only now is it known what out must be: the traffic is over, the ranks stay in step.
        self.operand.check(shape, self.verb)
        return self.operand.hand_back(memory.join(recv, shape, lengths, self.axis))

    def _goes_to_out(self, shape: tuple[int, ...]) -> bool:
        """Whether `out` can take what comes as it comes: it is not x, and of the right kind."""
        array, out = self.operand.array, self.operand.out
        alike = out is not None and out.shape == shape and out.dtype == array.dtype
        return alike and not self.operand.in_place


def _table_text(table: Sequence[Sequence[int]]) -> str:
    """Return a table as words for a header: itself, or a digest of a long one."""
    text = str([list(row) for row in table])
    if len(text) <= _LONGEST:
        return text
    from hashlib import blake2b  # loads OpenSSL

    return blake2b(text.encode(), digest_size=8).hexdigest()


def _exchange_counts(counts: Sequence[int], view: View) -> Steps:
    """Tell every rank how much it gets from me; return how much I get from each."""
    send = np.asarray(counts, np.int64)
    if view.memory.empty((1,), send.dtype).strides == (0,):  # no data moves: all ranks are alike
        return (counts[view.rank],) * view.size
    recv = np.empty_like(send)
    ones = [8] * view.size
    yield Operation(
        "all_to_all",
        as_bytes(send),
        as_bytes(recv),
        send_counts=ones,
        recv_counts=ones,
        kind="counts",
        equal=True,
    )
    return tuple(int(n) for n in recv)

"""What MPI cannot reduce: all-to-all, our reduction in rank order, all-gather; the same bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from .._arrays import Array
from .._core import reduce
from .backend import Operation
from .mpi_running import Stages
from .sizes import uneven

__all__ = ["OWN", "Carrier"]


class Carrier(Protocol):
    """Who moves the blocks."""

    rank: int
    size: int

    def cut(self, flat: Array, counts: Sequence[int]) -> list[Array]:
        """Return the blocks of a flat array."""

    def pairwise(
        self,
        op: Operation,
        sends: Sequence[Array | None],
        receives: Sequence[Array | None] | None,
    ) -> Stages:
        """Send a block to and receive one from every rank."""


def _parts_of(backend: Carrier, op: Operation, sizes: Sequence[int]) -> Array:
    assert op.send is not None
    return np.empty((backend.size, sizes[backend.rank]), op.send.dtype)


def _collect(backend: Carrier, op: Operation, parts: Array, sizes: Sequence[int]) -> Stages:
    """Fill `parts` with every rank's block that is mine to reduce."""
    assert op.send is not None
    sends = [block.view(np.uint8) for block in backend.cut(op.send, sizes)]
    yield from backend.pairwise(op, sends, [row.view(np.uint8) for row in parts])


def _all_reduce(backend: Carrier, op: Operation) -> Stages:
    assert op.recv is not None
    sizes = uneven(op.recv.size, backend.size)
    parts = _parts_of(backend, op, sizes)
    yield from _collect(backend, op, parts, sizes)
    mine = np.empty(sizes[backend.rank], op.recv.dtype)
    reduce(mine, list(parts), op.op, op.factors, op.divisor)
    blocks = [block.view(np.uint8) for block in backend.cut(op.recv, sizes)]
    yield from backend.pairwise(op, [mine.view(np.uint8)] * backend.size, blocks)


def _reduce(backend: Carrier, op: Operation) -> Stages:
    assert op.send is not None
    sizes = uneven(op.send.size, backend.size)
    parts = _parts_of(backend, op, sizes)
    yield from _collect(backend, op, parts, sizes)
    mine = np.empty(sizes[backend.rank], op.send.dtype)
    reduce(mine, list(parts), op.op, op.factors, op.divisor)
    sends = [mine.view(np.uint8) if r == op.root else None for r in range(backend.size)]
    blocks = None
    if op.recv is not None:
        blocks = [block.view(np.uint8) for block in backend.cut(op.recv, sizes)]
    yield from backend.pairwise(op, sends, blocks)


def _reduce_scatter(backend: Carrier, op: Operation) -> Stages:
    assert op.recv is not None
    parts = _parts_of(backend, op, op.send_counts)
    yield from _collect(backend, op, parts, op.send_counts)
    reduce(op.recv, list(parts), op.op, op.factors, op.divisor)


def _scan(backend: Carrier, op: Operation) -> Stages:
    """Send to every later rank; each reduces what came, in rank order."""
    assert op.send is not None
    assert op.recv is not None
    last = backend.rank if op.verb == "scan" else backend.rank - 1
    rows = np.empty((last + 1, op.send.size), op.send.dtype)
    data, mine = op.send.view(np.uint8), backend.rank
    sends = [data if r > mine or (r == mine <= last) else None for r in range(backend.size)]
    receives = [rows[r].view(np.uint8) if r <= last else None for r in range(backend.size)]
    yield from backend.pairwise(op, sends, receives)
    if len(rows):
        factors = None if op.factors is None else op.factors[: len(rows)]
        reduce(op.recv, list(rows), op.op, factors, op.divisor)


#: The stages of each verb that reduces.
OWN: dict[str, Callable[[Carrier, Operation], Stages]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scan": _scan,
    "exscan": _scan,
}

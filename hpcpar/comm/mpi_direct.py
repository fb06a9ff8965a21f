"""MPI's blocking calls on plain arrays, as closures for the hot path."""

from __future__ import annotations

from typing import Any

from .._arrays import Array
from .backend import Direct, Operation

__all__ = ["direct_call"]


def direct_call(comm: Any, mpi: Any, op: Operation, handle: Any) -> Direct | None:
    """Return ``call(x, out, in_place)``, the same MPI call that the long way of `op` makes."""
    if op.verb == "reduce_scatter":
        return _reduce_scatter(comm.Reduce_scatter, list(op.send_counts), handle)
    if op.verb == "all_gather" and len(set(op.recv_counts)) == 1 and op.recv_counts[0]:
        return _all_gather(comm.Allgather, mpi.BYTE)
    return None


def _reduce_scatter(reduce_scatter: Any, counts: list[int], handle: Any) -> Direct:
    def call(x: Array, out: Array, in_place: bool) -> None:
        reduce_scatter(x, out, counts, handle)

    return call


def _all_gather(allgather: Any, byte: Any) -> Direct:
    def call(x: Array, out: Array, in_place: bool) -> None:
        allgather([x, byte], [out, byte])

    return call

"""MPI's blocking calls on plain arrays, for the hot path: what the long way makes, and no other."""

from __future__ import annotations

from typing import Any

from .._arrays import Array
from .backend import Direct, Operation

__all__ = ["direct_call"]


def direct_call(comm: Any, mpi: Any, op: Operation, handle: Any) -> Direct | None:
    """Return ``call, handle, in_place`` of the MPI call that the long way of `op` makes."""
    if op.verb == "all_reduce":
        return comm.Allreduce, handle, mpi.IN_PLACE
    if op.verb == "reduce_scatter":
        return _reduce_scatter(comm.Reduce_scatter), (list(op.send_counts), handle), None
    if op.verb == "all_gather" and len(set(op.recv_counts)) == 1 and op.recv_counts[0]:
        return _all_gather(comm.Allgather), mpi.BYTE, None
    if op.verb == "broadcast" and op.send is not None and op.send.size:
        handle = (op.root, mpi.BYTE)
        is_root = comm.Get_rank() == op.root
        return _broadcast(comm.Bcast, is_root), handle, mpi.IN_PLACE
    return None


def _reduce_scatter(reduce_scatter: Any) -> Any:
    def call(x: Array, out: Array, handle: Any) -> None:
        """Reduce and scatter by the counts of the plan."""
        reduce_scatter(x, out, *handle)

    return call


def _all_gather(allgather: Any) -> Any:
    def call(x: Array, out: Array, byte: Any) -> None:
        """Gather bytes."""
        allgather([x, byte], [out, byte])

    return call


def _broadcast(bcast: Any, is_root: bool) -> Any:
    def call(x: Any, out: Array, handle: Any) -> None:
        """Broadcast bytes; the root's own out is a copy, where it is not x itself."""
        root, byte = handle
        if is_root and isinstance(x, type(out)):
            out[...] = x
        bcast([out, byte], root)

    return call

"""MPI's blocking calls on plain arrays, for the hot path: what the long way makes, and no other.

They go straight to the functions of the MPI that mpi4py has loaded, so they cost less than through
mpi4py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from .._arrays import Array
from .._core import ForeignCall
from .backend import Direct, Operation, Way
from .sizes import starts

__all__ = ["TAG", "DirectCalls", "are_equal"]

TAG = 0  # of our own collectives; messages on the same communicator have other tags


class DirectCalls:
    """Makes the hot path's calls on one communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    mpi : module
        mpi4py.MPI.
    """

    def __init__(self, comm: Any, mpi: Any) -> None:
        self._comm, self._mpi = comm, mpi
        self._status = mpi.Status()  # of receives, read by nobody

    def make(self, op: Operation, reduction: Any) -> Direct | None:
        """Return how the MPI call is made that the long way of `op` makes; None: not by one call.

        `reduction` is the mpi4py.MPI.Op of the verbs that reduce.
        """
        # A preloaded library may be a profiler that wants to see the calls: mpi4py's it sees.
        maker = None if "LD_PRELOAD" in os.environ else _MAKERS.get(op.verb)
        return None if maker is None else maker(self, op, reduction)

    # -- calls -----------------------------------------------------------------------------

    def _call(self, name: str, *args: Any, status: tuple[int, ...] = ()) -> ForeignCall:
        """Return ``MPI_<name>(*args, comm[, status])``; handles of mpi4py stand for themselves."""
        plain = tuple(self._plain(arg) for arg in (*args, self._comm, *status))
        return ForeignCall(_address(self._mpi.__file__, f"MPI_{name}"), plain, self._mpi.Exception)

    def _plain(self, arg: Any) -> Any:
        is_handle = isinstance(arg, (self._mpi.Comm, self._mpi.Datatype, self._mpi.Op))
        return self._mpi._handleof(arg) if is_handle else arg

    def _way(self, name: str, *args: Any) -> Way:
        return (self._call(name, *args), "x", "out")

    def _reducing(self, name: str, op: Operation, reduction: Any, count: int) -> Direct:
        assert op.send is not None
        args = "out", count, self._mpi.Datatype.fromcode(op.send.dtype.char), reduction
        root = () if op.root is None else (op.root,)
        in_place = int(self._mpi.IN_PLACE)
        return Direct(self._way(name, "x", *args, *root), self._way(name, in_place, *args, *root))

    def _all_reduce(self, op: Operation, reduction: Any) -> Direct:
        assert op.send is not None
        return self._reducing("Allreduce", op, reduction, op.send.size)

    def _scan(self, op: Operation, reduction: Any) -> Direct:
        assert op.send is not None
        name = "Scan" if op.verb == "scan" else "Exscan"
        return self._reducing(name, op, reduction, op.send.size)

    def _reduce(self, op: Operation, reduction: Any) -> Direct:
        assert op.send is not None
        if self._comm.Get_rank() == op.root:
            return self._reducing("Reduce", op, reduction, op.send.size)
        kind = self._mpi.Datatype.fromcode(op.send.dtype.char)
        way = self._way("Reduce", "x", 0, op.send.size, kind, reduction, op.root)
        return Direct(way, way)

    def _reduce_scatter(self, op: Operation, reduction: Any) -> Direct | None:
        if not are_equal(op.send_counts):
            return None
        count = op.send_counts[0]
        both = self._reducing("Reduce_scatter_block", op, reduction, count)
        return Direct(both.apart, None)

    def _all_gather(self, op: Operation, reduction: Any) -> Direct | None:
        if not are_equal(op.recv_counts):
            return None
        count, byte = op.recv_counts[0], self._mpi.BYTE
        return Direct(self._way("Allgather", "x", count, byte, "out", count, byte), None)

    def _all_to_all(self, op: Operation, reduction: Any) -> Direct | None:
        if not (op.equal and are_equal(op.send_counts)):
            return None
        count, byte = op.send_counts[0], self._mpi.BYTE
        return Direct(self._way("Alltoall", "x", count, byte, "out", count, byte), None)

    def _gather(self, op: Operation, reduction: Any) -> Direct | None:
        if not are_equal(op.recv_counts):
            return None
        count, byte = op.recv_counts[0], self._mpi.BYTE
        way = self._way("Gather", "x", count, byte, "out", count, byte, op.root)
        return Direct(way, None)

    def _broadcast(self, op: Operation, reduction: Any) -> Direct | None:
        if op.send is None or op.send.size == 0:
            return None
        way = self._way("Bcast", "out", op.send.nbytes, self._mpi.BYTE, op.root)
        if self._comm.Get_rank() != op.root:
            return Direct(way, way)
        send = way[0]

        def copy_and_send(x: Array, out: Array) -> None:
            """Broadcast; the root's own out is a copy."""
            out[...] = x
            send(x, out)

        return Direct((copy_and_send, "x", "out"), way)

    def _scatter(self, op: Operation, reduction: Any) -> Direct | None:
        if self._comm.Get_rank() == op.root:
            return Direct((self._deal(op), "x", "out"), None)
        if op.recv is None or op.recv.size == 0:
            return None
        args = "out", op.recv.nbytes, self._mpi.BYTE, op.root, TAG
        call = self._call("Recv", *args, status=(self._mpi._addressof(self._status),))
        return Direct((call, "x", "out"), (call, "x", "out"))

    def _deal(self, op: Operation) -> Callable[[Array, Array], None]:
        """Return what sends every rank its part of the root's array and keeps the root's own."""
        counts, root, byte = op.send_counts, self._comm.Get_rank(), self._mpi.BYTE
        begins = starts(counts)
        copy = _address(None, "memcpy")
        keep = ForeignCall(copy, ("out", ("x", begins[root]), counts[root]), None)
        sends = [
            self._call("Send", ("x", start), count, byte, rank, TAG)
            for rank, (start, count) in enumerate(zip(begins, counts, strict=True))
            if count and rank != root
        ]

        def call(x: Array, out: Array) -> None:
            """Send the others' parts, keep my own."""
            for send in sends:
                send(x, out)
            keep(x, out)

        return call


def _address(library: str | None, name: str) -> int:
    """Return where a function of a loaded library begins; None: of any."""
    import ctypes  # only programs that use MPI pay for it

    address = ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value
    assert address is not None
    return address


def are_equal(counts: Sequence[int]) -> bool:
    """Whether all ranks' parts are of one size, and not empty."""
    return len(set(counts)) == 1 and counts[0] > 0


_MAKERS: dict[str, Callable[[DirectCalls, Operation, Any], Direct | None]] = {
    "all_reduce": DirectCalls._all_reduce,
    "scan": DirectCalls._scan,
    "exscan": DirectCalls._scan,
    "reduce": DirectCalls._reduce,
    "reduce_scatter": DirectCalls._reduce_scatter,
    "all_gather": DirectCalls._all_gather,
    "all_to_all": DirectCalls._all_to_all,
    "gather": DirectCalls._gather,
    "scatter": DirectCalls._scatter,
    "broadcast": DirectCalls._broadcast,
}

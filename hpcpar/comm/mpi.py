"""The MPI backend: MPI's own collectives where they can do it, our reduction where they cannot.

Lane 0 (blocking calls) and lane 1 (the communication thread) have a communicator each, so that
their orders never mix; messages of both travel on lane 0's, under tags of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from .._arrays import Array, dtype_name
from .._core import plain_pair, reduce
from .backend import Agreement, Backend, Direct, Operation
from .bootstrap import load_mpi
from .mpi_direct import TAG, DirectCalls, are_equal
from .mpi_messages import Mailbox
from .mpi_own import OWN
from .mpi_running import Running, Stages
from .roll import last_words
from .sizes import starts

__all__ = ["MpiBackend", "cached_on"]

_LIMIT = 2**31 - 1  # counts of MPI-3 calls are C ints
_DIRECT_PEERS = 64  # up to here headers go to every peer directly, so that we know who is missing

_NATIVE_OPS: dict[str, frozenset[str]] = {
    # kind of dtype -> primitives that MPI reduces with the very semantics of our table
    "i": frozenset({"sum", "prod", "min", "max", "band", "bor", "bxor"}),
    "u": frozenset({"sum", "prod", "min", "max", "band", "bor", "bxor"}),
    "f": frozenset({"sum", "prod"}),
    "c": frozenset({"sum"}),
}
_NATIVE_DTYPES = frozenset(
    {*(f"{k}int{b}" for k in ("", "u") for b in (8, 16, 32, 64)), "float32", "float64"}
    | {"complex64", "complex128"}
)


class MpiBackend(Backend):
    """Carries a group over MPI.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Ours alone; freed by `close`.
    deterministic : bool
        Reduce in rank order, whatever the layout of ranks over nodes.
    """

    name = "mpi"

    def __init__(self, comm: Any, *, deterministic: bool = False) -> None:
        self._mpi: Any = load_mpi()
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.max_count = _LIMIT
        self._deterministic = deterministic
        self._saturates = self._mpi.get_vendor()[0] == "Open MPI"  # with AVX, but for the tail
        self._ops = {
            "sum": self._mpi.SUM,
            "prod": self._mpi.PROD,
            "min": self._mpi.MIN,
            "max": self._mpi.MAX,
            "band": self._mpi.BAND,
            "bor": self._mpi.BOR,
            "bxor": self._mpi.BXOR,
        }
        # Made with the group, where all its ranks are in one order of calls: Open MPI's Idup hangs
        # when ranks begin several of them in different orders.
        self._lanes: dict[int, Any] = {0: comm, 1: comm.Dup()}
        self._mail = Mailbox(comm, self._mpi)
        self._direct = DirectCalls(comm, self._mpi)

    @property
    def mpi_comm(self) -> Any:
        """The communicator."""
        return self._comm

    # -- what runs where -------------------------------------------------------------------

    def supports(self, op: Operation) -> str | None:
        """Return why MPI cannot reduce this itself, or None."""
        if op.send is None or op.verb not in _REDUCING:
            return None
        dtype = op.send.dtype
        if dtype_name(dtype) not in _NATIVE_DTYPES:
            return f"MPI has no {dtype.name}"
        if op.op not in _NATIVE_OPS[dtype.kind]:
            return f"MPI's {op.op} of {dtype.name} does not give what NumPy gives"
        if self._saturates and op.op == "sum" and dtype.kind in "iu" and dtype.itemsize < 4:
            return f"Open MPI's sum of {dtype.name} stays at the largest value instead of wrapping"
        if self._deterministic and dtype.kind in "fc":
            return "MPI's order of additions depends on the layout of ranks"
        return None

    def direct(self, op: Operation, agreement: Agreement | None) -> Direct | None:
        """Return MPI's call where `supports` has nothing against it and counts fit."""
        given = op.send if op.send is not None else op.recv
        assert given is not None
        counted = max(given.nbytes, sum(op.recv_counts)) <= self.max_count
        if not counted or self.supports(op) is not None:
            return None
        return self._direct.make(op, self._ops.get(op.op))

    def subgroup(self, ranks: Sequence[int]) -> MpiBackend:
        """Return the backend of these ranks; collective over them."""
        everyone = self._comm.Get_group()
        chosen = everyone.Incl(list(ranks))
        comm = self._comm.Create_group(chosen)
        chosen.Free()
        everyone.Free()
        made = MpiBackend(comm, deterministic=self._deterministic)
        made.max_count = self.max_count
        return made

    def close(self) -> None:
        """Free the communicators; collective."""
        if self._mpi.Is_finalized():
            return
        for comm in self._lanes.values():
            comm.Free()
        self._lanes = {}

    def abort(self, reason: BaseException) -> None:
        """Say why and end the job: MPI offers nothing less that reaches the others."""
        kind = type(reason).__name__
        text = f"[rank {self.rank}/{self.size}] hpcpar ends the job: {kind}: {reason}\n"
        out = last_words()
        out.write(text)
        out.flush()
        self._mpi.COMM_WORLD.Abort(1)

    # -- running ---------------------------------------------------------------------------

    def start(self, op: Operation) -> None:
        """Begin `op` with non-blocking calls."""
        op.state = Running(self._stages(op, blocking=False))

    def test(self, op: Operation) -> bool:
        """Test the requests of the current stage; go on to the next."""
        running: Running = op.state
        return running.test(self._mpi)

    def run(self, op: Operation) -> bool:
        """Run `op` with blocking calls where nothing can end the wait early."""
        if op.polled or op.verb in ("exchange", "recv", "send"):
            self.start(op)
            return self.wait(op)
        for requests in self._stages(op, blocking=True):
            if requests:
                self._mpi.Request.Waitall(requests)
        return True

    def wait(self, op: Operation) -> bool:
        """Wait for `op`; hand the core over now and then while it does not move."""
        running: Running = op.state
        if not op.polled and running.can_block:
            running.finish(self._mpi)
            return True
        spins = 0
        while not running.test(self._mpi):
            spins += 1
            if op.deadline is not None and time.monotonic() > op.deadline:
                return False
            time.sleep(0 if spins < 2000 else 1e-4)
        return True

    def missing(self, op: Operation) -> list[int] | None:
        """Return the ranks whose header has not come, where headers come directly."""
        if op.verb == "exchange" and self.size <= _DIRECT_PEERS:
            peers = [r for r in range(self.size) if r != self.rank]
            return [r for r, q in zip(peers, op.state.requests or [], strict=False) if not q.Test()]
        return [op.root] if op.verb in ("send", "recv") and op.root is not None else None

    def _stages(self, op: Operation, blocking: bool) -> Stages:
        if op.verb in _MESSAGES:
            return self._mail.stages(op)
        if op.verb in _REDUCING and self.supports(op) is not None:
            return OWN[op.verb](self, op)
        return _DIRECT[op.verb](self, op, blocking)

    def _call(self, op: Operation, blocking: bool, name: str, *args: Any) -> list[Any] | None:
        """Call MPI's `name`, or its non-blocking twin."""
        comm = self._lanes[op.lane]
        if blocking:
            getattr(comm, name)(*args)
            return None
        return [getattr(comm, "I" + name.lower())(*args)]

    # -- direct ----------------------------------------------------------------------------

    def _barrier(self, op: Operation, blocking: bool) -> Stages:
        yield self._call(op, blocking, "Barrier")

    def _exchange(self, op: Operation, blocking: bool) -> Stages:
        assert op.send is not None
        rows = np.empty((self.size, op.send.size), np.uint8)
        rows[self.rank] = op.send
        comm = self._lanes[op.lane]
        if self.size > _DIRECT_PEERS:
            yield [comm.Iallgather(op.send, rows)]
        else:
            peers = [r for r in range(self.size) if r != self.rank]
            receives = [comm.Irecv(rows[r], r, TAG) for r in peers]
            yield receives + [comm.Isend(op.send, r, TAG) for r in peers]
        op.result = [row.tobytes() for row in rows]

    def _broadcast(self, op: Operation, blocking: bool) -> Stages:
        for part in self._chunks(op.recv):
            yield self._call(op, blocking, "Bcast", part, op.root)

    def _all_reduce(self, op: Operation, blocking: bool) -> Stages:
        assert op.recv is not None
        source = self._scaled(op)
        for send, recv in zip(self._chunks(source), self._chunks(op.recv), strict=True):
            first = self._mpi.IN_PLACE if _same_start(send, recv) else send
            yield self._call(op, blocking, "Allreduce", first, recv, self._ops[op.op])
        self._divide(op)

    def _reduce(self, op: Operation, blocking: bool) -> Stages:
        source, target = self._scaled(op), op.recv
        for i, send in enumerate(self._chunks(source)):
            recv = None if target is None else self._chunks(target)[i]
            in_place = recv is not None and _same_start(send, recv)
            first = self._mpi.IN_PLACE if in_place else send
            yield self._call(op, blocking, "Reduce", first, recv, self._ops[op.op], op.root)
        self._divide(op)

    def _scan(self, op: Operation, blocking: bool) -> Stages:
        assert op.recv is not None
        name = "Scan" if op.verb == "scan" else "Exscan"
        source = self._scaled(op)
        for send, recv in zip(self._chunks(source), self._chunks(op.recv), strict=True):
            first = self._mpi.IN_PLACE if _same_start(send, recv) else send
            yield self._call(op, blocking, name, first, recv, self._ops[op.op])

    def _reduce_scatter(self, op: Operation, blocking: bool) -> Stages:
        assert op.send is not None
        if op.send.size > self.max_count:
            yield from OWN["reduce_scatter"](self, op)
            return
        source = self._scaled(op)
        counts = list(op.send_counts)
        in_place = op.recv is not None and _same_start(source, op.recv)  # a group of one
        first = self._mpi.IN_PLACE if in_place else source
        if are_equal(counts):
            yield self._call(op, blocking, "Reduce_scatter_block", first, op.recv, self._ops[op.op])
        else:
            args = first, op.recv, counts, self._ops[op.op]
            yield self._call(op, blocking, "Reduce_scatter", *args)
        self._divide(op)

    def _all_gather(self, op: Operation, blocking: bool) -> Stages:
        assert op.send is not None
        assert op.recv is not None
        if op.recv.size > self.max_count:
            yield from self.pairwise(op, [op.send] * self.size, self._blocks(op.recv, op))
            return
        counts = op.recv_counts
        if op.recv.size == 0:
            return
        mine = self._blocks(op.recv, op)[self.rank]
        # MPI wants all ranks in place, or none; whether the others are is not known here.
        first = op.send.copy() if _same_start(op.send, mine) else op.send
        if len(set(counts)) == 1:
            yield self._call(op, blocking, "Allgather", first, op.recv)
        else:
            target = [op.recv, list(counts), list(starts(counts)), self._mpi.BYTE]
            yield self._call(op, blocking, "Allgatherv", first, target)

    def _gather(self, op: Operation, blocking: bool) -> Stages:
        if are_equal(op.recv_counts) and sum(op.recv_counts) <= self.max_count:
            assert op.send is not None
            mine = None if op.recv is None else self._blocks(op.recv, op)[self.rank]
            in_place = mine is not None and _same_start(op.send, mine)
            first = self._mpi.IN_PLACE if in_place else op.send
            yield self._call(op, blocking, "Gather", first, op.recv, op.root)
            return
        sends: list[Array | None] = [op.send if r == op.root else None for r in range(self.size)]
        yield from self.pairwise(op, sends, None if op.recv is None else self._blocks(op.recv, op))

    def _scatter(self, op: Operation, blocking: bool) -> Stages:
        assert op.recv is not None
        sends: list[Array | None] = [None] * self.size
        if op.send is not None:
            sends = list(self.cut(op.send, op.send_counts))
        receives = [op.recv if r == op.root else None for r in range(self.size)]
        yield from self.pairwise(op, sends, receives)

    def _all_to_all(self, op: Operation, blocking: bool) -> Stages:
        assert op.send is not None
        assert op.recv is not None
        if op.equal and 0 < op.send.size <= self.max_count:
            yield self._call(op, blocking, "Alltoall", op.send, op.recv)
            return
        yield from self.pairwise(op, self.cut(op.send, op.send_counts), self._blocks(op.recv, op))

    # -- parts -----------------------------------------------------------------------------

    def pairwise(
        self,
        op: Operation,
        sends: Sequence[Array | None],
        receives: Sequence[Array | None] | None,
    ) -> Stages:
        """Send to and receive from every rank, in chunks that every MPI can count."""
        comm = self._lanes[op.lane]
        receives = receives if receives is not None else [None] * self.size
        mine, own = sends[self.rank], receives[self.rank]
        if mine is not None and own is not None:
            own[...] = mine
        requests = []
        for step in range(1, self.size):
            src, dst = (self.rank - step) % self.size, (self.rank + step) % self.size
            requests += [comm.Irecv(part, src, TAG) for part in self._chunks(receives[src])]
            requests += [comm.Isend(part, dst, TAG) for part in self._chunks(sends[dst])]
        yield requests

    def cut(self, flat: Array, counts: Sequence[int]) -> list[Array]:
        """Return the blocks of a flat array."""
        return [flat[s : s + n] for s, n in zip(starts(counts), counts, strict=True)]

    def _blocks(self, flat: Array, op: Operation) -> list[Array]:
        return self.cut(flat, op.recv_counts)

    def _chunks(self, flat: Array | None) -> list[Array]:
        """Return `flat` in pieces that an MPI-3 count can hold; nothing for an empty array."""
        if flat is None or flat.size == 0:
            return []
        if flat.size <= self.max_count:
            return [flat]
        step = self.max_count
        return [flat[i : i + step] for i in range(0, flat.size, step)]

    def _scaled(self, op: Operation) -> Array:
        """Return this rank's operand, multiplied by its factor."""
        assert op.send is not None
        if op.factors is None:
            return op.send
        scaled = np.empty_like(op.send)
        reduce(scaled, [op.send], "sum", [op.factors[self.rank]], None)
        return scaled

    def _divide(self, op: Operation) -> None:
        if op.divisor is not None and op.recv is not None:
            reduce(op.recv, [op.recv], "sum", None, op.divisor)


def _same_start(a: Array, b: Array) -> bool:
    return plain_pair(a, b) == 2


_Stage = Callable[[MpiBackend, Operation, bool], Stages]
_MESSAGES = frozenset({"send", "recv", "probe"})
_REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter", "scan", "exscan"})
_DIRECT: dict[str, _Stage] = {
    "barrier": MpiBackend._barrier,
    "exchange": MpiBackend._exchange,
    "broadcast": MpiBackend._broadcast,
    "all_reduce": MpiBackend._all_reduce,
    "reduce": MpiBackend._reduce,
    "scan": MpiBackend._scan,
    "exscan": MpiBackend._scan,
    "reduce_scatter": MpiBackend._reduce_scatter,
    "all_gather": MpiBackend._all_gather,
    "gather": MpiBackend._gather,
    "scatter": MpiBackend._scatter,
    "all_to_all": MpiBackend._all_to_all,
}


def cached_on(comm: Any, make: Callable[[], Any]) -> Any:
    """Return what was made for this communicator before, else make it and keep it there.

    It is freed with the communicator.
    """
    keyval = _keyval()
    found = comm.Get_attr(keyval)
    if found is None:
        found = make()
        comm.Set_attr(keyval, found)
    return found


@cache
def _keyval() -> int:
    mpi: Any = load_mpi()
    keyval: int = mpi.Comm.Create_keyval(delete_fn=_comm_freed)
    return keyval


def _comm_freed(comm: Any, keyval: int, made: Any) -> None:
    mpi: Any = load_mpi()
    if comm not in (mpi.COMM_WORLD, mpi.COMM_SELF):  # these end inside MPI_Finalize
        made.free()

"""Who takes part: our verbs, raw mpi4py, Gloo through torch; bound to the same arrays.

A bound call takes no arguments and is a lambda for everyone, which costs all sides the same frame.
(A `functools.partial` costs more with keywords than without, so the verbs would pay for it alone.)
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from .._arrays import Array, as_bytes
from ..comm.bootstrap import load_mpi
from ..comm.group import Group
from ..errors import ArgumentError, BackendUnavailable
from .buffers import TARGET, placed
from .cases import Case

__all__ = [
    "PEERS",
    "Contestant",
    "Gloo",
    "Mpi4py",
    "Ours",
    "check_peers",
    "copy_call",
    "open_peers",
]

Bound = Callable[[], object]


class Contestant(ABC):
    """Something that can run cases."""

    name: str

    @abstractmethod
    def bind(self, case: Case, x: Array | None, out: Array | None) -> Bound | None:
        """Return the call of `case` on these arrays; None if it has no such call. Local.

        Parameters
        ----------
        case : Case
        x, out : ndarray or None
            None where the verb wants none on this rank; the same array in place.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what was opened. Collective over those who opened it."""


class Ours(Contestant):
    """The verbs of a group, with ``out=`` given, and equal sizes promised where they count."""

    name = "hpcpar"

    def __init__(self, group: Group) -> None:
        self._group = group

    def bind(self, case: Case, x: Array | None, out: Array | None) -> Bound | None:
        """Return the verb with all its arguments."""
        verb, op, root = getattr(self._group, case.verb), case.op, case.root
        dst, src = _neighbours(self._group)
        if case.verb == "send" and case.ranks == 1:  # who sends to itself must receive meanwhile
            return lambda: self._group.sendrecv(x, dst, src, out=out)
        calls: dict[str, Bound] = {
            "all_reduce": lambda: verb(x, op, out=out),
            "reduce_scatter": lambda: verb(x, op, out=out),
            "scan": lambda: verb(x, op, out=out),
            "reduce": lambda: verb(x, op, root=root, out=out),
            "broadcast": lambda: verb(x, root=root, out=out),
            "scatter": lambda: verb(x, root=root, out=out),
            "gather": lambda: verb(x, root=root, sizes="equal", out=out),
            "all_gather": lambda: verb(x, sizes="equal", out=out),
            "all_to_all": lambda: verb(x, sizes="equal", out=out),
            "sendrecv": lambda: verb(x, dst, src, out=out),
            "send": _relay(
                self._group,
                lambda: verb(x, dst),
                lambda: self._group.recv(src, tag=0, out=out),
            ),
        }
        return calls[case.verb]

    def close(self) -> None:
        """Do nothing: the group stays its owner's."""


class Mpi4py(Contestant):
    """mpi4py's buffer calls on a duplicate of the group's communicator."""

    name = "mpi4py"

    def __init__(self, group: Group) -> None:
        if group.mpi_comm is None:
            raise BackendUnavailable(
                f"mpi4py is no peer of the {group.backend} backend, which uses no MPI. "
                "Start with -n N or under mpiexec, or use --backend mpi."
            )
        self._mpi: Any = load_mpi()
        self._comm = group.mpi_comm.Dup()
        self._group = group

    def bind(self, case: Case, x: Array | None, out: Array | None) -> Bound | None:
        """Return mpi4py's call of the same name."""
        ops = _MPI_OPS.get(case.dtype.kind, ())
        has_type = bool(ops) and case.dtype.name not in _NO_MPI_TYPE
        if case.kind.reduces:
            known = has_type and case.op in ops
            return self._reducing(case, x, out) if known else None
        if not has_type:
            x, out = (None if a is None else as_bytes(a) for a in (x, out))
        return self._moving(case, x, out)

    def _reducing(self, case: Case, x: Any, out: Any) -> Bound:
        comm, root, op = self._comm, case.root, getattr(self._mpi, case.op.upper())
        source = self._mpi.IN_PLACE if x is out else x
        calls: dict[str, Bound] = {
            "all_reduce": lambda: comm.Allreduce(source, out, op),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(x, out, op),
            "scan": lambda: comm.Scan(source, out, op),
            "reduce": lambda: comm.Reduce(source, out, op, root),
        }
        return calls[case.verb]

    def _moving(self, case: Case, x: Any, out: Any) -> Bound:
        comm, root = self._comm, case.root
        dst, src = _neighbours(self._group)
        source = self._mpi.IN_PLACE if case.in_place else x
        calls: dict[str, Bound] = {
            "broadcast": lambda: comm.Bcast(out, root),
            "scatter": lambda: comm.Scatter(x, out, root),
            "gather": lambda: comm.Gather(x, out, root),
            "all_gather": lambda: comm.Allgather(source, out),
            "all_to_all": lambda: comm.Alltoall(x, out),
            "sendrecv": lambda: comm.Sendrecv(x, dst, 0, out, src, 0),
            "send": _relay(
                self._group, lambda: comm.Send(x, dst, 0), lambda: comm.Recv(out, src, 0)
            ),
        }
        return calls["sendrecv" if case.ranks == 1 and case.verb == "send" else case.verb]

    def close(self) -> None:
        """Free the communicator."""
        self._comm.Free()


#: Reductions that MPI has, by kind of dtype.
_MPI_OPS = {
    "i": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
    "u": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
    "f": ("sum", "prod", "min", "max"),
    "c": ("sum", "prod"),
}
_NO_MPI_TYPE = ("float16", "float8_e5m2", "float8_e4m3fn", "bfloat16")


class Gloo(Contestant):
    """torch.distributed over Gloo, on tensors that share the arrays' memory."""

    name = "gloo"

    def __init__(self, group: Group) -> None:
        if find_spec("torch") is None:
            raise BackendUnavailable(
                "Gloo comes with torch, which is not installed. pip install torch, or leave "
                "gloo out of --peers."
            )
        self._torch: Any = import_module("torch")
        self._dist: Any = import_module("torch.distributed")
        self._torch.set_num_threads(1)
        place = group.broadcast_object(_free_place() if group.rank == 0 else None)
        if group.node.size == group.size:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            place = ("127.0.0.1", place[1])
        self._group = group
        self._dist.init_process_group(
            "gloo",
            init_method=f"tcp://{place[0]}:{place[1]}",
            rank=group.rank,
            world_size=group.size,
        )

    def bind(self, case: Case, x: Array | None, out: Array | None) -> Bound | None:
        """Return torch's call of the same meaning; its all_reduce and reduce work in place only."""
        works = case.in_place or case.verb not in ("all_reduce", "reduce")
        name = _GLOO_OPS.get(case.op)
        if not works or (case.kind.reduces and name is None):
            return None
        if case.dtype.kind not in "biuf" or case.dtype.name in ("uint16", "uint32", "uint64"):
            return None
        op = getattr(self._dist.ReduceOp, name) if name else None
        return self._calls(case.root, op, *map(self._tensor, (x, out))).get(case.verb)

    def _tensor(self, array: Array | None) -> Any:
        return None if array is None else self._torch.from_numpy(array)

    def _calls(self, root: int, op: Any, x: Any, out: Any) -> dict[str, Bound]:
        dist = self._dist
        join = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        cut = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        dst, src = _neighbours(self._group)
        return {
            "send": _relay(self._group, lambda: dist.send(x, dst), lambda: dist.recv(out, src)),
            "all_reduce": lambda: dist.all_reduce(x, op),
            "reduce": lambda: dist.reduce(x, root, op),
            "broadcast": lambda: dist.broadcast(out, root),
            "all_gather": lambda: join(out, x),
            "reduce_scatter": lambda: cut(out, x, op),
            "all_to_all": lambda: dist.all_to_all_single(out, x),
        }

    def close(self) -> None:
        """End torch's process group."""
        self._dist.destroy_process_group()


_GLOO_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}

#: Peers by name.
PEERS: dict[str, Callable[[Group], Contestant]] = {"mpi4py": Mpi4py, "gloo": Gloo}


def check_peers(names: Sequence[str]) -> None:
    """Raise ArgumentError where a name is not "auto", "none" or a peer's. Local."""
    for name in names:
        if name not in PEERS and tuple(names) not in (("auto",), ("none",)):
            known = ", ".join(PEERS)
            raise ArgumentError(f"peers {','.join(names)!r}: write auto, none, or some of {known}.")


def open_peers(group: Group, names: Sequence[str]) -> list[Contestant]:
    """Open the peers. Collective over `group`.

    Parameters
    ----------
    group : Group
    names : sequence of str
        Keys of `PEERS`; ``("auto",)``: mpi4py where the group runs on MPI; ``("none",)``.

    Raises
    ------
    BackendUnavailable
        A peer's library is not there.
    """
    if tuple(names) == ("auto",):
        names = ["mpi4py"] if group.mpi_comm is not None else []
    return [PEERS[name](group) for name in names if name != "none"]


def _neighbours(group: Group) -> tuple[int, int]:
    """Return to whom and from whom data goes round."""
    return (group.rank + 1) % group.size, (group.rank - 1) % group.size


def _relay(group: Group, send: Bound, recv: Bound) -> Bound:
    """Return a round of messages: each rank waits for its left one before it sends to the right."""
    steps = (send, recv) if group.rank == 0 else (recv, send)

    def relay() -> None:
        for step in steps:
            step()

    return relay


def _free_place() -> tuple[str, int]:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return socket.gethostname(), int(probe.getsockname()[1])


def copy_call(nbytes: int) -> Bound:
    """Return the control: `np.copyto` of `nbytes` bytes, by all ranks at once. Local."""
    source = placed(nbytes, np.dtype(np.uint8))
    target = placed(nbytes, source.dtype, TARGET)
    return lambda: np.copyto(target, source)

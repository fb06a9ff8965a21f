"""Who takes part: our verbs, raw mpi4py, Gloo through torch; bound to the same arrays.

A bound call takes no arguments and is a `functools.partial` for everyone, so that no side pays for
an indirection which the other does not have.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
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

Bound = partial[Any]


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
        verb = getattr(self._group, case.verb)
        if case.verb == "sendrecv":
            return partial(verb, x, *_neighbours(self._group), out=out)
        named: dict[str, Any] = {"out": out}
        if case.kind.rooted:
            named["root"] = case.root
        if case.verb in ("all_gather", "gather"):
            named["sizes"] = "equal"
        return partial(verb, x, *([case.op] if case.kind.reduces else []), **named)

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
        if case.kind.reduces:
            if case.op not in ops or case.dtype.name in _NO_MPI_TYPE:
                return None
            return self._reducing(case, x, out, getattr(self._mpi, case.op.upper()))
        if not ops or case.dtype.name in _NO_MPI_TYPE:
            x, out = (None if a is None else as_bytes(a) for a in (x, out))
        return self._moving(case, x, out)

    def _reducing(self, case: Case, x: Any, out: Any, op: Any) -> Bound:
        comm = self._comm
        source = self._mpi.IN_PLACE if x is out else x
        if case.verb == "all_reduce":
            return partial(comm.Allreduce, source, out, op)
        if case.verb == "scan":
            return partial(comm.Scan, source, out, op)
        if case.verb == "reduce_scatter":
            return partial(comm.Reduce_scatter_block, x, out, op)
        return partial(comm.Reduce, source, out, op, case.root)

    def _moving(self, case: Case, x: Any, out: Any) -> Bound:
        comm = self._comm
        if case.verb == "sendrecv":
            dst, src = _neighbours(self._group)
            return partial(comm.Sendrecv, x, dst, 0, out, src, 0)
        if case.verb == "broadcast":
            return partial(comm.Bcast, out, case.root)
        name = {"all_gather": "Allgather", "all_to_all": "Alltoall"}.get(case.verb)
        if name is not None:
            return partial(getattr(comm, name), x, out)
        return partial(getattr(comm, case.verb.capitalize()), x, out, case.root)

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
        self._dist.init_process_group(
            "gloo",
            init_method=f"tcp://{place[0]}:{place[1]}",
            rank=group.rank,
            world_size=group.size,
        )

    def bind(self, case: Case, x: Array | None, out: Array | None) -> Bound | None:
        """Return torch's call of the same meaning; its all_reduce and reduce work in place only."""
        make = _GLOO.get(case.verb)
        works = case.mode == "in" or case.verb not in ("all_reduce", "reduce")
        op = getattr(self._dist.ReduceOp, _GLOO_OPS.get(case.op, ""), None)
        if make is None or not works or (case.kind.reduces and op is None):
            return None
        if case.dtype.kind not in "biuf" or case.dtype.name in ("uint16", "uint32", "uint64"):
            return None
        tensor_x, tensor_out = (None if a is None else self._torch.from_numpy(a) for a in (x, out))
        return make(self._dist, case, tensor_x, tensor_out, op)

    def close(self) -> None:
        """End torch's process group."""
        self._dist.destroy_process_group()


def _either(module: Any, new: str, old: str) -> Any:
    return getattr(module, new, None) or getattr(module, old)


_GLOO: dict[str, Callable[[Any, Case, Any, Any, Any], Bound]] = {
    "all_reduce": lambda d, case, x, out, op: partial(d.all_reduce, x, op),
    "reduce": lambda d, case, x, out, op: partial(d.reduce, x, case.root, op),
    "broadcast": lambda d, case, x, out, op: partial(d.broadcast, out, case.root),
    "all_gather": lambda d, case, x, out, op: partial(
        _either(d, "all_gather_single", "all_gather_into_tensor"), out, x
    ),
    "reduce_scatter": lambda d, case, x, out, op: partial(
        _either(d, "reduce_scatter_single", "reduce_scatter_tensor"), out, x, op
    ),
    "all_to_all": lambda d, case, x, out, op: partial(d.all_to_all_single, out, x),
}
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


def _free_place() -> tuple[str, int]:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return socket.gethostname(), int(probe.getsockname()[1])


def copy_call(nbytes: int) -> Bound:
    """Return the control: `np.copyto` of `nbytes` bytes, by all ranks at once. Local."""
    source = placed(nbytes, np.dtype(np.uint8))
    return partial(np.copyto, placed(nbytes, source.dtype, TARGET), source)

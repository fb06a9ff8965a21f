"""A backend of torch.distributed for CPU tensors over this library's groups.

    import torch.distributed as dist
    import hpcpar.interop.torch              # registers it
    dist.init_process_group("hpcpar")

Under ``mpirun`` the import also sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
where they are not set. Under ``torchrun``, and in processes that were spawned, ranks find each
other through torch's store; they are on one machine then, since it takes MPI to reach another.

Tensors are seen as arrays on the same memory. A call with ``async_op=True``, and one that torch
itself makes (DDP, DTensor), runs on the group's communication thread, in order; any other in the
caller's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
import torch.distributed as dist

from .._arrays import Array
from ..comm import launch
from ..comm.attach import Attached
from ..comm.bootstrap import StoreBootstrap, load_mpi
from ..comm.settings import Settings
from ..comm.world import on_mpi, on_store
from ..errors import BackendUnavailable, HpcparError, LaunchError, UnsupportedError
from .torch_module import AttachedModule, attach, buffers_of, params_of
from .torch_monitor import meet
from .torch_sparse import sum_sparse
from .torch_tensors import Flat, Joined, array_of, op_of
from .torch_work import Callers, Done, FromAny, Several, Under, torch_error

__all__ = ["NAME", "AttachedModule", "ProcessGroup", "attach", "buffers_of", "params_of"]

#: What torch calls the backend.
NAME = "hpcpar"
_Call = Callable[..., Any]
_Tensors = Sequence[torch.Tensor]
_Lists = Sequence[_Tensors]


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch tells its type nothing
    """One group of ranks, as torch calls it. Made by ``dist.init_process_group`` and alike.

    Attributes
    ----------
    group : hpcpar.Group
    """

    def __init__(self, attached: Attached, timeout: float, group_name: str) -> None:
        self.attached, self.group = attached, attached.group
        self._group_name = self._group_desc = group_name
        super().__init__(self.group.rank, self.group.size)
        self._callers = Callers()
        self._under: WeakSet[Under] = WeakSet()
        self._set_default_timeout(timedelta(seconds=timeout))

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Take another deadline for calls that are not told one."""
        self._timeout = timeout.total_seconds()
        self.attached.keep(self._timeout)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

    def name(self) -> str:
        """Return the backend's name."""
        return NAME

    getBackendName = name  # noqa: N815  torch's names

    @property
    def group_name(self) -> str:
        """What torch calls the group."""
        return self._group_name

    @property
    def group_desc(self) -> str:
        """What the group is for, in its maker's words."""
        return self._group_desc

    def _set_group_desc(self, group_desc: str) -> None:
        self._group_desc = group_desc

    # -- collectives -----------------------------------------------------------------------

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> dist.Work:
        opts = dist.AllreduceOptions() if opts is None else opts
        if tensors[0].layout != torch.strided:
            return self._sum_sparse(tensors, opts)
        x, op = Flat(tensors[0]), op_of(opts.reduceOp)
        return self._run(
            opts,
            tensors,
            lambda **how: self.group.all_reduce(x.data, op, out=x.data, **how),
            x.take,
        )

    def _sum_sparse(self, tensors: _Tensors, opts: Any) -> dist.Work:
        try:
            sum_sparse(self.group, tensors[0], op_of(opts.reduceOp), self._how(opts))
        except HpcparError as error:
            raise torch_error(error) from error
        return Done(tensors)

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> dist.Work:
        opts = dist.AllreduceCoalescedOptions() if opts is None else opts
        flats, op = [Flat(t) for t in tensors], op_of(opts.reduceOp)
        x = [flat.data for flat in flats]
        return self._run(
            opts,
            tensors,
            lambda **how: self.group.all_reduce(x, op, out=x, **how),
            lambda: [flat.take() for flat in flats if flat.take is not None],
        )

    def broadcast(self, tensors: _Tensors, opts: Any = None) -> dist.Work:
        opts = dist.BroadcastOptions() if opts is None else opts
        x, root = Flat(tensors[0]), opts.rootRank
        return self._run(
            opts,
            tensors,
            lambda **how: self.group.broadcast(x.data, root=root, out=x.data, **how),
            x.take,
        )

    def reduce(self, tensors: _Tensors, opts: Any = None) -> dist.Work:
        opts = dist.ReduceOptions() if opts is None else opts
        x, op, root = Flat(tensors[0]), op_of(opts.reduceOp), opts.rootRank
        is_root = self.group.rank == root
        out = x.data if is_root else None
        return self._run(
            opts,
            tensors,
            lambda **how: self.group.reduce(x.data, op, root=root, out=out, **how),
            x.take if is_root else None,
        )

    def allgather(self, outputs: _Lists, inputs: _Tensors, opts: Any = None) -> dist.Work:
        opts = dist.AllgatherOptions() if opts is None else opts
        x, out = array_of(inputs[0]), self._join(outputs[0], "allgather")
        return self._run(
            opts,
            outputs[0],
            lambda **how: self.group.all_gather(x, sizes=out.sizes, out=out.data, **how),
            out.take,
        )

    def allgather_coalesced(self, outputs: _Lists, inputs: _Tensors, opts: Any = None) -> dist.Work:
        by_input = zip(*outputs, strict=True)  # outputs[rank][i] is of inputs[i]
        return Several(
            [self.allgather([list(o)], [x], opts) for o, x in zip(by_input, inputs, strict=True)]
        )

    def all_gather_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        opts = dist.AllgatherOptions() if opts is None else opts
        x, out = array_of(given), Flat(output)
        _check(
            out.data.size == x.size * self.group.size, "all_gather: output is not size inputs long"
        )
        return self._run(
            opts,
            [output],
            lambda **how: self.group.all_gather(x, sizes="equal", out=out.data, **how),
            out.take,
        )

    def all_gather_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> dist.Work:
        pairs = zip(outputs, inputs, strict=True)
        return Several([self.all_gather_single(out, x, opts) for out, x in pairs])

    def reduce_scatter(self, outputs: _Tensors, inputs: _Lists, opts: Any = None) -> dist.Work:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        x = self._join(inputs[0], "reduce_scatter").fill()
        return self._cut(opts, outputs[0], Flat(outputs[0]), x.data, x.sizes)

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        x, out = array_of(given), Flat(output)
        length = out.data.size
        _check(x.size == length * self.group.size, "reduce_scatter: input is not size outputs long")
        given_apart = x.copy() if np.may_share_memory(x, out.data) else x
        return self._cut(opts, output, out, given_apart, (length,) * self.group.size)

    def _cut(
        self, opts: Any, output: torch.Tensor, out: Flat, x: Array, sizes: Sequence[int]
    ) -> dist.Work:
        op = op_of(opts.reduceOp)
        return self._run(
            opts,
            [output],
            lambda **how: self.group.reduce_scatter(x, op, sizes=sizes, out=out.data, **how),
            out.take,
        )

    def reduce_scatter_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> dist.Work:
        pairs = zip(outputs, inputs, strict=True)
        return Several([self.reduce_scatter_single(out, x, opts) for out, x in pairs])

    def gather(self, outputs: _Lists, inputs: _Tensors, opts: Any = None) -> dist.Work:
        opts = dist.GatherOptions() if opts is None else opts
        x, root = array_of(inputs[0]), opts.rootRank
        joined = self._join(outputs[0], "gather") if self.group.rank == root else None
        out = None if joined is None else joined.data
        return self._run(
            opts,
            outputs[0] if outputs else [],
            lambda **how: self.group.gather(x, root=root, sizes="equal", out=out, **how),
            None if joined is None else joined.take,
        )

    def scatter(self, outputs: _Tensors, inputs: _Lists, opts: Any = None) -> dist.Work:
        opts = dist.ScatterOptions() if opts is None else opts
        root, out = opts.rootRank, Flat(outputs[0])
        is_root = self.group.rank == root
        x = self._join(inputs[0], "scatter").fill().data if is_root else None
        return self._run(
            opts,
            outputs,
            lambda **how: self.group.scatter(x, root=root, out=out.data, **how),
            out.take,
        )

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> dist.Work:
        opts = dist.AllToAllOptions() if opts is None else opts
        x, out = self._join(inputs, "alltoall").fill(), self._join(outputs, "alltoall")
        return self._run(
            opts,
            outputs,
            lambda **how: self.group.all_to_all(x.data, sizes=x.sizes, out=out.data, **how),
            out.take,
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> dist.Work:
        opts = dist.AllToAllOptions() if opts is None else opts
        x, out = array_of(given), Flat(output)
        sizes = self._rows(given, input_sizes, "input")  # told: other ranks may be given theirs
        self._rows(output, output_sizes, "output")
        return self._run(
            opts,
            [output],
            lambda **how: self.group.all_to_all(x, sizes=sizes, out=out.data, **how),
            out.take,
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        opts = dist.BarrierOptions() if opts is None else opts
        return self._run(opts, [], lambda **how: self.group.barrier(**how))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; rank 0 names those that do not come."""
        seconds = self._timeout if timeout is None else timeout
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        try:
            meet(self.group, seconds, wait_all_ranks)
        except HpcparError as error:
            raise torch_error(error) from error

    # -- messages --------------------------------------------------------------------------

    def send(self, tensors: _Tensors, dst: int, tag: int = 0) -> dist.Work:
        x = array_of(tensors[0])
        work = self.group.send(x, dst, tag=tag, async_op=True)
        return Under(work, [], None, self._callers)

    def recv(self, tensors: _Tensors, src: int, tag: int = 0) -> dist.Work:
        out = Flat(tensors[0])
        work = self.group.recv(src, tag=tag, out=out.data, async_op=True)
        return Under(work, tensors, out.take, self._callers, src)

    def recv_anysource(self, tensors: _Tensors, tag: int = 0) -> dist.Work:
        return FromAny(
            self.group,
            tensors[0],
            lambda src: self.recv(tensors, src, tag).wait(),
            tag,
            self._timeout,
        )

    # -- the group -------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Let go of the group, once what is on its way has ended; later calls raise."""
        for work in list(self._under):
            with suppress(dist.DistBackendError):  # who waits for it is told
                work.wait(timedelta(seconds=self._timeout))
        self.abort()

    def abort(self) -> None:
        """Let go of the group now."""
        self.attached.close()
        self._callers.close()

    def _run(
        self,
        opts: Any,
        tensors: _Tensors,
        call: _Call,
        take: Callable[[], object] | None = None,
    ) -> dist.Work:
        """Make a call now, or hand it to the communication thread; `take` uses what came."""
        how = self._how(opts)
        if opts.asyncOp:
            work = Under(call(async_op=True, **how), tensors, take, self._callers)
            self._under.add(work)
            return work
        try:
            call(**how)
        except HpcparError as error:
            raise torch_error(error) from error
        if take is not None:
            take()
        return Done(tensors)

    def _how(self, opts: Any) -> dict[str, Any]:
        """Return the deadline that a call is told, if it is one of its own."""
        seconds = opts.timeout.total_seconds()
        return {"timeout": seconds} if seconds > 0 and seconds != self._timeout else {}

    def _join(self, tensors: _Tensors, verb: str) -> Joined:
        """Return room for the tensors of all ranks, one behind the other."""
        _check(
            len(tensors) == self.group.size, f"{verb}: one tensor for each rank, not {len(tensors)}"
        )
        return Joined(tensors)

    def _rows(
        self, tensor: torch.Tensor, sizes: Sequence[int] | None, what: str
    ) -> tuple[int, ...]:
        """Return the elements of each rank's rows."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            _check(rows % self.group.size == 0, f"all_to_all: {what} has {rows} rows, cut unevenly")
            sizes = [rows // self.group.size] * self.group.size
        _check(
            len(sizes) == self.group.size and sum(sizes) == rows,
            f"all_to_all: {what} split sizes {list(sizes)} do not make {rows} rows",
        )
        row = tensor.numel() // rows if rows else 0
        return tuple(n * row for n in sizes)


def _check(is_fine: bool, message: str) -> None:
    if not is_fine:
        raise ValueError(f"{message}.")


# -- how groups are made -----------------------------------------------------------------------


def _make(opts: Any, _: Any) -> ProcessGroup:
    """Return the group that torch wants; collective over its ranks."""
    timeout = opts.timeout.total_seconds()
    first = dist.distributed_c10d.GroupMember.WORLD
    if opts.global_ranks_in_group and isinstance(first, ProcessGroup):
        return ProcessGroup(first.attached.of(opts.global_ranks_in_group), timeout, opts.group_id)
    return ProcessGroup(_attach(opts, timeout), timeout, opts.group_id)


def _attach(opts: Any, timeout: float) -> Attached:
    settings = Settings(timeout=timeout)
    if not opts.global_ranks_in_group and _is_of_mpi(os.environ):
        comm = load_mpi().COMM_WORLD
        if (comm.Get_rank(), comm.Get_size()) == (opts.group_rank, opts.group_size):
            return Attached.over(on_mpi(settings, comm))
    rank, size = opts.group_rank, opts.group_size
    times = opts.store.add(f"{NAME}/{rank}", 1)  # a store may outlive a group: new keys for each
    ranks = StoreBootstrap(opts.store, f"{NAME}/{times}", rank, size, timeout)
    try:
        return Attached.over(on_store(settings, ranks))
    except BackendUnavailable as error:
        raise UnsupportedError(
            f"{NAME}: without MPI all ranks must share the memory of one machine ({error}). Start "
            "the job with mpirun, or use gloo."
        ) from error


def _is_of_mpi(env: Mapping[str, str]) -> bool:
    """Say whether this process is a rank of MPI, and not one that a rank has started."""
    if not launch.is_launched(env) or "TORCHELASTIC_RUN_ID" in env:
        return False
    try:
        found = launch.detect(env)
    except LaunchError:  # of two launchers
        return False
    told = {"RANK": found.rank, "WORLD_SIZE": found.size}
    return all(name not in env or env[name] == str(number) for name, number in told.items())


def _tell_torch_the_ranks() -> None:
    """Set what torch's env:// asks for from MPI's world, where it is not set. Collective."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if not _is_of_mpi(os.environ) or all(name in os.environ for name in names):
        return
    mpi: Any = load_mpi()
    comm = mpi.COMM_WORLD
    node = comm.Split_type(mpi.COMM_TYPE_SHARED)
    place = comm.bcast(_free_place() if comm.Get_rank() == 0 else None)
    values = (comm.Get_rank(), comm.Get_size(), node.Get_rank(), *place)
    node.Free()
    for name, value in zip(names, values, strict=True):
        os.environ.setdefault(name, str(value))


def _free_place() -> tuple[str, int]:
    """Return this machine's name, and a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return socket.gethostname(), listener.getsockname()[1]


dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu"])
_tell_torch_the_ranks()

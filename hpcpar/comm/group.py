"""Group: a fixed set of ranks, its verbs as methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .._core import Recorder
from ..errors import ArgumentError
from . import describe, objects, where
from .all_to_all_request import AllToAll
from .backend import Backend
from .broadcast_request import Broadcast
from .home import Home
from .message_requests import Message, Probe, Recv, Send, SendRecv
from .move_requests import AllGather, Gather, Permute, Scatter
from .reduce_requests import AllReduce, Barrier, Reduce, ReduceScatter, Scan
from .reductions import Portion
from .request import Request, View, check_rank
from .runner import Runner
from .settings import Settings
from .split import members_of, split_row

__all__ = ["Group", "current_group"]

#: The default group of this context; ranks that are threads each have their own.
current_group: ContextVar[Group | None] = ContextVar("hpcpar_group", default=None)
# What leaving each ``with group:`` of this context restores; threads may be in one group's at once.
_outer: ContextVar[tuple[Group | None, ...]] = ContextVar("hpcpar_outer", default=())


def _with(kind: type[Request], *args: Any) -> Callable[[View], Request]:
    """Return what makes the request; a lambda in each verb would slow its hot path down."""
    return lambda view: kind(view, *args)


class Group:
    """A fixed set of ranks. Verbs are methods; see the functions of the same name for details.

    Attributes
    ----------
    rank : int
        My rank in the group; -1 outside it.
    size : int
    ranks : tuple of int
        Global ranks, by rank in the group.
    name : str
    """

    def __init__(
        self, home: Home, backend: Backend | None, ranks: Sequence[int], name: str
    ) -> None:
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.name = name
        self.rank = -1 if backend is None else backend.rank
        self._home = home
        self._runner = None if backend is None else Runner(home, backend, self.ranks, name)
        # hot(x, key, out): whether the core has done the call; looked up at each verb's begin.
        self._hot = (lambda *call: False) if self._runner is None else self._runner.hot.run
        self._uses = 1

    @property
    def recorder(self) -> Recorder:
        """The record of every operation of this rank."""
        return self._home.recorder

    @property
    def home(self) -> Home:
        """What all groups of this rank share."""
        return self._home

    @property
    def settings(self) -> Settings:
        """What `init` was told."""
        return self._home.settings

    @property
    def state(self) -> str:
        """Return "ok", "failed" (after a timeout or an abort) or "closed"."""
        return "ok" if self._runner is None else self._runner.state

    @property
    def backend(self) -> str:
        """Name of the backend that carries this group."""
        return "none" if self._runner is None else self._runner.backend.name

    @property
    def mpi_comm(self) -> Any:
        """The mpi4py communicator or None, not for your own traffic; collective at first use."""
        return None if self._runner is None else self._runner.backend.mpi_comm

    @property
    def node(self) -> Group:
        """The sub-group of the ranks on this node. Collective over them at first use."""
        self._member("node")
        hosts = self._home.hosts
        mine = hosts[self.ranks[self.rank]]
        members = [r for r, g in enumerate(self.ranks) if hosts[g] == mine]
        found = self._home.groups.get(tuple(self.ranks[r] for r in members))
        return found if found is not None else self.subgroup(members)

    def __repr__(self) -> str:
        return f"<Group {self.name!r} rank {self.rank}/{self.size} {self.backend} {self.state}>"

    def __enter__(self) -> Group:
        _outer.set((*_outer.get(), current_group.get()))
        current_group.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        *rest, previous = _outer.get()
        _outer.set(tuple(rest))
        current_group.set(previous)

    def here(self, seq: int | None = None) -> str:
        """Return ``[rank r/n, group 'name', #seq]`` for messages."""
        number = "" if seq is None else f", #{seq}"
        return f"[rank {self.rank}/{self.size}, group {self.name!r}{number}]"

    # -- sub-groups ------------------------------------------------------------------------

    def subgroup(self, ranks: Sequence[int]) -> Group:
        """Return the group of these ranks of this group, in this order.

        Collective over its members only; the same list gives the same Group again. Outside it
        the Group has rank -1 and its verbs raise.

        Raises
        ------
        ArgumentError
            A rank outside this group, or twice; called from outside this group.
        """
        with where.located(self.here):
            runner = self._member("subgroup")
            runner.check_usable("subgroup")
            if not isinstance(ranks, Iterable):
                raise ArgumentError(f"subgroup: ranks {ranks!r} must be a sequence of ranks.")
            chosen = [check_rank(r, self.size, "subgroup", "rank") for r in ranks]
            if not chosen or len(set(chosen)) != len(chosen):
                raise ArgumentError(f"subgroup: ranks {chosen} must be distinct and not empty.")
        members = tuple(self.ranks[r] for r in chosen)
        name = f"{self.name}[{describe.ranks_text(chosen)}]"
        if self.rank not in chosen:
            return Group(self._home, None, members, name)
        found: Group | None = self._home.groups.get(members)
        if found is None:
            with where.located(self.here):
                backend = runner.backend.subgroup(chosen)
            found = self._home.groups[members] = Group(self._home, backend, members, name)
        else:
            found._uses += 1
        return found

    def split(self, color: int | None, key: int = 0) -> Group | None:
        """Return the group of the ranks with my `color`, ordered by `key`, then rank.

        Collective over the group. A rank with color None gets None.
        """
        with where.located(self.here):
            self._member("split").check_usable("split")
            row = split_row(color, key)
        table = self.all_gather(row[None], sizes=(1,) * self.size)
        members = members_of(row, table)
        return None if color is None else self.subgroup(members)

    def close(self) -> None:
        """Free the group; collective over it. The last of equal `subgroup` calls frees.

        Raises
        ------
        ArgumentError
            It is the world: `shutdown` ends that.
        """
        if self._runner is None or self._runner.state == "closed":
            return
        if self._uses == 1 and self.ranks == tuple(range(len(self._home.hosts))):
            raise ArgumentError(f"close: the world ends with hp.shutdown() {self.here()}.")
        self._uses -= 1
        if self._uses == 0:
            self.free()

    def free(self) -> None:
        """Free the group whoever else holds it; collective over it."""
        if self._runner is not None and self._runner.state != "closed":
            self._runner.close()
            self._home.groups.pop(self.ranks, None)

    @contextmanager
    def without_deadline(self) -> Iterator[None]:
        """Suspend the default deadline for the calls in the block: they wait for long work."""
        with self._member("without_deadline").without_deadline():
            yield

    @property
    def is_patient(self) -> bool:
        """Whether calls wait without a deadline now."""
        return self._runner is not None and self._runner.patient > 0

    def keeps_own_time(self, seq: int, alone: bool) -> bool:
        """Whether operation `seq` raises at its deadline by itself; `alone`: it is a message."""
        runner = self._runner
        waits = runner is not None and runner.backend.always_checks  # who owns the wait
        return runner is not None and (seq in runner.own_time or (waits and not alone))

    def raise_unclaimed(self) -> None:
        """Raise the error of an asynchronous operation that nobody waited for, if there is one."""
        if self._runner is not None:
            self._runner.raise_unclaimed()

    def abort(self, exc: BaseException) -> None:
        """Tell the other ranks that this one gives up because of `exc`; local."""
        if self._runner is not None:
            self._runner.fail(exc)
            self._runner.backend.abort(exc)

    def _member(self, verb: str) -> Runner:
        if self._runner is None:
            raise ArgumentError(f"{verb}: this rank is not in the group {self.here()}.")
        return self._runner

    def _call(
        self,
        verb: str,
        make: Callable[[View], Request],
        timeout: float | None,
        async_op: bool,
        given: tuple[Any, ...] = (),
    ) -> Any:
        return self._member(verb).call(verb, make, timeout, async_op, given)

    # -- verbs: reduce ---------------------------------------------------------------------

    def all_reduce(
        self,
        x: Any,
        op: Any = "sum",
        *,
        weight: float | Portion | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce over all ranks, the result everywhere; see `hpcpar.all_reduce`."""
        if timeout is None and not async_op and weight is None and self._hot(x, op, out):
            return out
        return self._call(
            "all_reduce", _with(AllReduce, x, op, weight, out), timeout, async_op, (x, out)
        )

    def reduce(
        self,
        x: Any,
        op: Any = "sum",
        *,
        root: int = 0,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce over all ranks, the result on the root; see `hpcpar.reduce`."""
        if timeout is None and not async_op and self._hot(x, ("reduce", op, root), out):
            return out
        return self._call("reduce", _with(Reduce, x, op, root, out), timeout, async_op, (x, out))

    def scan(
        self,
        x: Any,
        op: Any = "sum",
        *,
        exclusive: bool = False,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce over the ranks up to mine; see `hpcpar.scan`."""
        if timeout is None and not async_op and self._hot(x, ("scan", op, exclusive), out):
            return out
        return self._call("scan", _with(Scan, x, op, exclusive, out), timeout, async_op, (x, out))

    def reduce_scatter(
        self,
        x: Any,
        op: Any = "sum",
        *,
        axis: int = 0,
        sizes: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce over all ranks, my part of the result here; see `hpcpar.reduce_scatter`."""
        key = ("reduce_scatter", op, axis, sizes)
        if timeout is None and not async_op and self._hot(x, key, out):
            return out
        return self._call(
            "reduce_scatter",
            _with(ReduceScatter, x, op, axis, sizes, out),
            timeout,
            async_op,
            (x, out),
        )

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Any:
        """Wait until every rank is here; see `hpcpar.barrier`."""
        return self._call("barrier", Barrier, timeout, async_op)

    # -- verbs: move -----------------------------------------------------------------------

    def broadcast(
        self,
        x: Any = None,
        *,
        root: int = 0,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Copy the root's array to every rank; see `hpcpar.broadcast`."""
        given = out if x is None else x
        if timeout is None and not async_op and self._hot(given, ("broadcast", root), out):
            return out
        return self._call("broadcast", _with(Broadcast, x, root, out), timeout, async_op, (x, out))

    def all_gather(
        self,
        x: Any,
        *,
        axis: int = 0,
        sizes: Sequence[int] | str | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Join all ranks' arrays, the result everywhere; see `hpcpar.all_gather`."""
        if timeout is None and not async_op and self._hot(x, ("all_gather", axis, sizes), out):
            return out
        return self._call(
            "all_gather", _with(AllGather, x, axis, sizes, out), timeout, async_op, (x, out)
        )

    def gather(
        self,
        x: Any,
        *,
        root: int = 0,
        axis: int = 0,
        sizes: Sequence[int] | str | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Join all ranks' arrays, the result on the root; see `hpcpar.gather`."""
        key = ("gather", root, axis, sizes)
        if timeout is None and not async_op and self._hot(x, key, out):
            return out
        return self._call(
            "gather", _with(Gather, x, root, axis, sizes, out), timeout, async_op, (x, out)
        )

    def scatter(
        self,
        x: Any = None,
        *,
        root: int = 0,
        axis: int = 0,
        sizes: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Give each rank its part of the root's array; see `hpcpar.scatter`."""
        given = x if self.rank == root else None
        key = ("scatter", root, axis, sizes)
        if timeout is None and not async_op and self._hot(given, key, out):
            return out
        return self._call(
            "scatter", _with(Scatter, x, root, axis, sizes, out), timeout, async_op, (x, out)
        )

    def all_to_all(
        self,
        x: Any,
        *,
        axis: int = 0,
        sizes: Sequence[int] | Sequence[Sequence[int]] | str | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send a part to every rank and join what comes; see `hpcpar.all_to_all`."""
        if timeout is None and not async_op and self._hot(x, ("all_to_all", axis, sizes), out):
            return out
        make = _with(AllToAll, x, axis, sizes, out)
        return self._call("all_to_all", make, timeout, async_op, (x, out))

    def permute(
        self,
        x: Any,
        pairs: Sequence[tuple[int, int]],
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send to and receive from the rank that `pairs` names; see `hpcpar.permute`."""
        return self._call("permute", _with(Permute, x, pairs, out), timeout, async_op, (x, out))

    # -- verbs: point to point -------------------------------------------------------------

    def send(
        self,
        x: Any,
        dst: int,
        *,
        tag: int = 0,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send an array to one rank; see `hpcpar.send`."""
        if timeout is None and not async_op and self._hot(x, ("send", dst, tag), None):
            return None
        return self._call("send", _with(Send, x, dst, tag, not async_op), timeout, async_op, (x,))

    def recv(
        self,
        src: int | None = None,
        *,
        tag: int | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Receive an array from one rank, or from any; see `hpcpar.recv`."""
        if timeout is None and not async_op and self._hot(None, ("recv", src, tag), out):
            return out
        return self._call("recv", _with(Recv, src, tag, out), timeout, async_op, (out,))

    def sendrecv(
        self,
        x: Any,
        dst: int,
        src: int,
        *,
        tag: int = 0,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send to one rank while receiving from another; see `hpcpar.sendrecv`."""
        if timeout is None and not async_op and self._hot(x, ("sendrecv", dst, src, tag), out):
            return out
        return self._call(
            "sendrecv", _with(SendRecv, x, dst, src, tag, out), timeout, async_op, (x, out)
        )

    def probe(self, src: int | None = None, *, tag: int | None = None) -> Message | None:
        """Look whether a message is there, without taking it; see `hpcpar.probe`."""
        found: Message | None = self._call("probe", _with(Probe, src, tag), None, False)
        return found

    # -- verbs: objects --------------------------------------------------------------------

    def broadcast_object(
        self, obj: Any = None, *, root: int = 0, allow_pickle: bool = False
    ) -> Any:
        """Copy the root's object to every rank; see `hpcpar.broadcast_object`."""
        return objects.broadcast(self, obj, root, allow_pickle)

    def all_gather_object(self, obj: Any, *, allow_pickle: bool = False) -> list[Any]:
        """Return every rank's object, everywhere; see `hpcpar.all_gather_object`."""
        return objects.all_gather(self, obj, allow_pickle)

    def gather_object(
        self, obj: Any, *, root: int = 0, allow_pickle: bool = False
    ) -> list[Any] | None:
        """Return every rank's object, on the root; see `hpcpar.gather_object`."""
        return objects.gather(self, obj, root, allow_pickle)

    def scatter_object(
        self, objs: Sequence[Any] | None = None, *, root: int = 0, allow_pickle: bool = False
    ) -> Any:
        """Give each rank one of the root's objects; see `hpcpar.scatter_object`."""
        return objects.scatter(self, objs, root, allow_pickle)

    def all_to_all_object(self, objs: Sequence[Any], *, allow_pickle: bool = False) -> list[Any]:
        """Send an object to every rank and return what comes; see `hpcpar.all_to_all_object`."""
        return objects.all_to_all(self, objs, allow_pickle)

    def send_object(self, obj: Any, dst: int, *, tag: int = 0, allow_pickle: bool = False) -> None:
        """Send an object to one rank; see `hpcpar.send_object`."""
        objects.send(self, obj, dst, tag, allow_pickle)

    def recv_object(
        self, src: int | None = None, *, tag: int | None = None, allow_pickle: bool = False
    ) -> Any:
        """Receive an object from one rank, or from any; see `hpcpar.recv_object`."""
        return objects.recv(self, src, tag, allow_pickle)

"""mpi4py's communicators with this library's collectives under them: a drop-in.

    from mpi4py import MPI
    from hpcpar.interop.mpi4py import Comm
    comm = Comm(MPI.COMM_WORLD)         # an MPI.Intracomm like any other
    comm.Allreduce(MPI.IN_PLACE, x)     # through shared memory where all ranks are on one node

`patch` puts such a communicator in the place of ``MPI.COMM_WORLD``, and ``python -m hpcpar mpi4py
script.py`` does so for a program that knows nothing of it.

What goes which way is decided by what MPI wants to be the same on all ranks: the verb, the
operation, the type and number of elements. So no rank asks another. Reductions, Bcast and Allgather
go through the engine where it is faster. Plain MPI carries small arrays; messages between two
ranks, whose every kind of call may meet every other; nonblocking, persistent and neighbourhood
calls; gathers to one, scatters and exchanges; objects; operations of one's own; and everything
where ranks share no memory.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from mpi4py import MPI

from .._arrays import Array
from .._core import reducible
from ..comm.attach import Attached
from .messages import Data, blocks_of, message_of, numbers_of, size_of, size_of_all

__all__ = ["Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "Limits", "patch"]


class Limits(NamedTuple):
    """What goes through the engine, by numbers that are the same on all ranks.

    Attributes
    ----------
    least : int
        Bytes below which there is nothing to gain.
    at_once : int
        Bytes from which on it pays to set up a call that is made once: that takes half a
        millisecond.
    calls : int
        How often MPI makes a shorter call before it is set up.
    kinds : int
        How many of them a communicator counts at a time.
    least_moved : int
        The same as `least` for verbs that only copy: MPI copies once, through the kernel.
    """

    least: int = 4 << 10
    at_once: int = 4 << 20
    calls: int = 2
    kinds: int = 48
    least_moved: int = 1 << 20


_ARRAY: Any = np.ndarray
_IN_PLACE: Any = MPI.IN_PLACE
_OPS = (
    (MPI.SUM, "sum"),
    (MPI.MAX, "max"),
    (MPI.MIN, "min"),
    (MPI.PROD, "prod"),
    (MPI.BAND, "band"),
    (MPI.BOR, "bor"),
    (MPI.BXOR, "bxor"),
)


if TYPE_CHECKING:
    _Base = MPI.Intracomm
else:  # who inherits says which communicator it is
    _Base = object


class _Accelerated(_Base):
    """The verbs that go through a group of the engine, and how communicators are made from it."""

    _attached: Attached | None = None
    _group: Any = None
    _limits = Limits()

    def __new__(cls, comm: MPI.Comm | None = None) -> Self:
        """Make it; mpi4py makes null communicators so, and gives them handles."""
        made = super().__new__(cls, comm)
        if isinstance(comm, _Accelerated):
            made._attach(comm._attached)
        elif comm is not None and comm != MPI.COMM_NULL:
            made._attach(Attached.to(comm))
        return made

    def _attach(self, attached: Attached | None) -> None:
        if attached is not None:
            self._attached, self._group = attached, attached.group

    def _is_left(self, spec: Any, least: int, blocks: int = 1) -> bool:
        """Whether MPI keeps a call, as far as a look at one of its arrays tells."""
        if self._group is None:
            return True
        nbytes = spec.nbytes if type(spec) is _ARRAY else size_of(spec, blocks)
        return nbytes is not None and nbytes < least

    def _takes(self, nbytes: int, least: int, *call: Any) -> bool:
        """Whether the engine takes a call, which all ranks see with the same arguments."""
        limits = self._limits
        if nbytes < least or nbytes >= limits.at_once:
            return nbytes >= least
        calls = self._attached.calls if self._attached is not None else {}
        made = calls.get(call, 0)
        if made < limits.calls:
            if not made and len(calls) >= limits.kinds:  # on all ranks alike
                calls.clear()
            calls[call] = made + 1
        return made >= limits.calls

    def _reduces(self, x: Array | None, op: Any, *call: Any) -> str | None:
        """Return our name of an operation on numbers like `x`, if the engine takes the call."""
        name = None if x is None else _name_of(op, x)
        if x is None or name is None:
            return None
        takes = self._takes(x.nbytes, self._limits.least, x.size, x.dtype.str, name, *call)
        return name if takes else None

    # -- communicators made from it --------------------------------------------------------

    def _like(self, made: Self) -> Self:
        """Return a copy of it that mpi4py made, with a group of its own."""
        if self._attached is not None:
            made._attach(self._attached.of(range(self.Get_size())))
        return made

    def _part(self, made: Any) -> Any:
        """Return a communicator of some of its ranks that mpi4py made, as one of ours."""
        if made == MPI.COMM_NULL:
            return made
        kind = next(kind for base, kind in _KINDS if isinstance(made, base))
        ours = super(_Accelerated, kind).__new__(kind, made)
        if made.Get_size() > 1 and self._attached is None:
            ours._attach(Attached.to(made))
        elif made.Get_size() > 1 and self._attached is not None:
            group, mine = made.Get_group(), self.Get_group()
            ranks = MPI.Group.Translate_ranks(group, range(group.Get_size()), mine)
            ours._attach(self._attached.of(list(ranks)))
            group.Free()
            mine.Free()
        return ours

    def Clone(self) -> Self:
        return self._like(super().Clone())

    def Dup(self, info: Any = None) -> Self:
        return self._like(super().Dup(info))

    def Dup_with_info(self, info: Any) -> Self:
        return self._like(super().Dup_with_info(info))

    def Create(self, group: Any) -> Any:
        return self._part(super().Create(group))

    def Create_group(self, group: Any, tag: int = 0) -> Any:
        return self._part(super().Create_group(group, tag))

    def Split(self, color: int = 0, key: int = 0) -> Any:
        return self._part(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: Any = MPI.INFO_NULL) -> Any:
        return self._part(super().Split_type(split_type, key, info))

    def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Any:
        return self._part(super().Create_cart(dims, periods, reorder))

    def Create_graph(self, index: Any, edges: Any, reorder: bool = False) -> Any:
        return self._part(super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(self, *args: Any, **kwargs: Any) -> Any:
        return self._part(super().Create_dist_graph_adjacent(*args, **kwargs))

    def Create_dist_graph(self, *args: Any, **kwargs: Any) -> Any:
        return self._part(super().Create_dist_graph(*args, **kwargs))

    def Free(self) -> None:
        """Free it, and its group."""
        super().Free()
        self._detach()

    def Disconnect(self) -> None:
        """Free it once its messages have come, and its group."""
        super().Disconnect()
        self._detach()

    def _detach(self) -> None:
        if self._attached is not None:
            self._attached.close()
        self._attached = self._group = None

    def free(self) -> None:
        """Free it unless it is null, or a constant of MPI."""
        if self is not MPI.COMM_WORLD:
            super().free()

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return a communicator for a handle: ours for that of COMM_WORLD, else mpi4py's."""
        found = MPI.Comm.fromhandle(handle)
        return MPI.COMM_WORLD if found == MPI.COMM_WORLD else found

    def __reduce__(self) -> Any:
        return (_world, ()) if self is MPI.COMM_WORLD else super().__reduce__()

    # -- reductions ------------------------------------------------------------------------

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        if not self._is_left(recvbuf, self._limits.least):
            out = numbers_of(recvbuf)
            x = out if _is_in_place(sendbuf) else numbers_of(sendbuf)
            name = self._reduces(x, op, "Allreduce") if _are_alike(x, out) else None
            if name is not None:
                self._group.all_reduce(x, name, out=out)
                return
        super().Allreduce(sendbuf, recvbuf, op)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0) -> None:
        if not self._is_left(sendbuf, self._limits.least):
            out = numbers_of(recvbuf) if self.Get_rank() == root else None
            x = out if _is_in_place(sendbuf) else numbers_of(sendbuf)
            fits = 0 <= root < self.Get_size() and (self.Get_rank() != root or _are_alike(x, out))
            name = self._reduces(x, op, "Reduce", root) if fits else None
            if name is not None:
                self._group.reduce(x, name, root=root, out=out)
                return
        super().Reduce(sendbuf, recvbuf, op, root)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        if not self._scan(sendbuf, recvbuf, op, exclusive=False):
            super().Scan(sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        if not self._scan(sendbuf, recvbuf, op, exclusive=True):
            super().Exscan(sendbuf, recvbuf, op)

    def _scan(self, sendbuf: Any, recvbuf: Any, op: Any, *, exclusive: bool) -> bool:
        if self._is_left(recvbuf, self._limits.least):
            return False
        out = numbers_of(recvbuf)
        x = out if _is_in_place(sendbuf) else numbers_of(sendbuf)
        name = self._reduces(x, op, "Scan", exclusive) if _are_alike(x, out) else None
        if x is None or name is None:
            return False
        if exclusive and self.Get_rank() == 0:  # has no result, and keeps what is there
            kept = x.copy()
            self._group.scan(kept, name, exclusive=True, out=kept if x is out else kept.copy())
        else:
            self._group.scan(x, name, exclusive=exclusive, out=out)
        return True

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        size, in_place = self.Get_size(), _is_in_place(sendbuf)
        source = recvbuf if in_place else sendbuf
        if not self._is_left(source, self._limits.least, size):
            x = numbers_of(source, size)
            out = numbers_of(recvbuf) if not in_place or x is None else x[: x.size // size]
            if (
                x is not None
                and out is not None
                and x.size == size * out.size
                and self._reduce_scatter(x, out, op, (out.size,) * size)
            ):
                return
        super().Reduce_scatter_block(sendbuf, recvbuf, op)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = MPI.SUM
    ) -> None:
        in_place, least = _is_in_place(sendbuf), self._limits.least
        source = recvbuf if in_place else sendbuf
        if not self._is_left(source, least):
            x, out, counts = numbers_of(source), numbers_of(recvbuf), recvcounts
            if x is not None and out is not None and x.nbytes >= least:
                if counts is None and not in_place:
                    counts = np.empty(self.Get_size(), np.int64)
                    super().Allgather(np.array([out.size]), counts)
                sizes = () if counts is None else tuple(int(n) for n in counts)
                fits = len(sizes) == self.Get_size() and sum(sizes) == x.size
                part = out[: sizes[self.Get_rank()]] if fits else out
                if fits and self._reduce_scatter(x, part, op, sizes):
                    return
        super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    def _reduce_scatter(self, x: Array, out: Array, op: Any, sizes: tuple[int, ...]) -> bool:
        name = self._reduces(x, op, "Reduce_scatter", sizes) if x.dtype == out.dtype else None
        if name is None:
            return False
        given = x.copy() if np.may_share_memory(x, out) else x
        self._group.reduce_scatter(given, name, sizes=sizes, out=out)
        return True

    # -- moves -----------------------------------------------------------------------------

    def Bcast(self, buf: Any, root: int = 0) -> None:
        least = self._limits.least_moved
        if 0 <= root < self.Get_size() and not self._is_left(buf, least):
            message = Data.of(buf)
            if message is not None and self._takes(
                message.nbytes, least, "Bcast", message.nbytes, root
            ):
                data = message.open(sends=self.Get_rank() == root)
                self._group.broadcast(data, root=root, out=data)
                if self.Get_rank() != root:
                    message.end(data)
                return
        super().Bcast(buf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        size, least = self.Get_size(), self._limits.least_moved
        if not self._is_left(recvbuf, least, size):
            out, in_place = Data.of(recvbuf, size), _is_in_place(sendbuf)
            given = out if in_place else Data.of(sendbuf)
            if (
                out is not None
                and given is not None
                and (in_place or given.nbytes * size == out.nbytes)
                and self._takes(out.nbytes, least, "Allgather", out.nbytes)
            ):
                data, length = out.open(sends=in_place), out.nbytes // size
                mine = data[self.Get_rank() * length :][:length]
                x = mine if in_place else given.open(sends=True)
                self._group.all_gather(x, sizes="equal", out=data)
                out.end(data)
                return
        super().Allgather(sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        least, nbytes = self._limits.least_moved, size_of_all(recvbuf)
        is_left = self._group is None or (nbytes is not None and nbytes < least)
        blocks = None if is_left else blocks_of(recvbuf, self.Get_size())
        if blocks is not None:
            mine, sizes = blocks.block(self.Get_rank()), blocks.sizes()
            given = mine if _is_in_place(sendbuf) else message_of(sendbuf)
            if (
                given is not None
                and given.nbytes == mine.nbytes
                and self._takes(sum(sizes), least, "Allgatherv", sizes)
            ):
                joined = blocks.joined()
                out = np.empty(sum(sizes), np.uint8) if joined is None else joined
                self._group.all_gather(given.pack(), sizes=sizes, out=out)
                if joined is None:
                    blocks.unpack(out)
                return
        super().Allgatherv(sendbuf, recvbuf)


class Comm(_Accelerated, MPI.Intracomm):
    """An intracommunicator whose collective buffer verbs go through shared memory.

    Collective over `comm`, whose handle it shares: its messages, attributes and error handler are
    those of `comm`. Communicators made from it (Dup, Split, Create, Create_cart, Sub, ...) are like
    it. Where the ranks share no memory it does as `comm` does.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        None: a null communicator, as in mpi4py.

    Raises
    ------
    MismatchError
        Ranks call different verbs, or with different operations, types or counts.
    RankFailed
        A rank died.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> from hpcpar.interop.mpi4py import Comm
    >>> comm = Comm(MPI.COMM_WORLD)
    >>> isinstance(comm, MPI.Intracomm), comm == MPI.COMM_WORLD
    (True, True)
    """


class Cartcomm(_Accelerated, MPI.Cartcomm):
    """A `Comm` on a grid."""

    def Sub(self, remain_dims: Any) -> Any:
        return self._part(super().Sub(remain_dims))


class Graphcomm(_Accelerated, MPI.Graphcomm):
    """A `Comm` on a graph."""


class Distgraphcomm(_Accelerated, MPI.Distgraphcomm):
    """A `Comm` on a graph of which each rank knows its part."""


_KINDS: tuple[tuple[type[MPI.Comm], type[_Accelerated]], ...] = (
    (MPI.Cartcomm, Cartcomm),
    (MPI.Graphcomm, Graphcomm),
    (MPI.Distgraphcomm, Distgraphcomm),
    (MPI.Intracomm, Comm),
)


def patch() -> Comm:
    """Put a `Comm` in the place of ``MPI.COMM_WORLD`` and return it.

    Collective over MPI's world; a second call changes nothing. Who has taken ``COMM_WORLD`` from
    the module before keeps mpi4py's.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> from hpcpar.interop.mpi4py import Comm, patch
    >>> before = MPI.COMM_WORLD
    >>> isinstance(patch(), Comm) and MPI.COMM_WORLD is patch()
    True
    >>> MPI.COMM_WORLD = before
    """
    if not isinstance(MPI.COMM_WORLD, Comm):
        MPI.COMM_WORLD = Comm(MPI.COMM_WORLD)  # type: ignore[misc]  # final to its stubs only
        copyreg.pickle(MPI.Intracomm, _reduced)
    return MPI.COMM_WORLD


def _world() -> MPI.Intracomm:
    """Return what stands for all ranks; to pickle it."""
    return MPI.COMM_WORLD


def _reduced(comm: MPI.Intracomm) -> Any:
    """Return what pickles one of mpi4py's: its own world goes by a name that is ours now."""
    made = comm.__reduce__()
    return (_world, ()) if made == "COMM_WORLD" else made


def _is_in_place(spec: Any) -> bool:
    return spec is None or spec is _IN_PLACE  # as mpi4py has it


def _are_alike(x: Array | None, out: Array | None) -> bool:
    if x is None or out is None:
        return False
    return x is out or (x.size == out.size and x.dtype == out.dtype)


def _name_of(op: Any, x: Array) -> str | None:
    """Return our name of an operation that we have for numbers like these."""
    for known, name in _OPS:
        if op is known or op == known:  # the same constant may come by its handle
            return name if reducible(x.dtype, name) else None
    return None

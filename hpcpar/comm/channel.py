"""The control channel: small messages about the ranks themselves, apart from all user traffic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .bootstrap import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Channel", "MpiChannel"]


class Channel(ABC):
    """Small messages between ranks that nobody has to wait for, and a way to end the job.

    Attributes
    ----------
    rank, size : int
        My place among the ranks of the job.
    threads : bool
        Whether any thread may call at any time.
    """

    rank: int
    size: int
    threads: bool

    @abstractmethod
    def send(self, dst: int, tag: int, data: bytes) -> None:
        """Send `data` to rank `dst`. Local: does not wait for the receiver."""

    @abstractmethod
    def receive(self) -> tuple[int, int, bytes] | None:
        """Take the next message that has come, as source, tag and data, or None. Local."""

    @abstractmethod
    def arrive(self) -> None:
        """Say that I shall not come back. Local; once in the life of a channel."""

    @abstractmethod
    def all_arrived(self) -> bool:
        """Tell whether every rank has arrived. Local; to be asked again until it is true."""

    @abstractmethod
    def alive(self) -> bool:
        """Tell whether the channel can still be used. Local."""

    @abstractmethod
    def on_finalize(self, call: Callable[[], None]) -> None:
        """Have `call` called when the channel is about to end under us. Local."""

    @abstractmethod
    def abort(self, code: int) -> None:
        """End all ranks of the job now, with this exit code. Does not return."""

    @abstractmethod
    def close(self) -> None:
        """Free the channel. Collective over its ranks, after all have arrived."""


class MpiChannel(Channel):
    """A duplicate of an mpi4py communicator.

    Making one is collective over `comm`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator whose ranks make up the job.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        mpi: Any = load_mpi()
        self._mpi = mpi
        self._comm = comm.Dup()
        self._sent: list[tuple[Any, bytes]] = []
        self._arrived: Any = None
        self._keyval: int | None = None
        self._ending: Callable[[], None] | None = None
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.threads = mpi.Query_thread() == mpi.THREAD_MULTIPLE

    def send(self, dst: int, tag: int, data: bytes) -> None:
        """Start the send; the bytes live until it is done."""
        self._sent = [(request, kept) for request, kept in self._sent if not self._ended(request)]
        with suppress(self._mpi.Exception):  # it has died
            self._sent.append((self._comm.Isend(data, dst, tag), data))

    def _ended(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except self._mpi.Exception:  # the other rank has died
            return True

    def receive(self) -> tuple[int, int, bytes] | None:
        """Probe for a message of any rank, and take it."""
        status = self._mpi.Status()
        try:
            message = self._comm.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status)
        except self._mpi.Exception:  # with fault tolerance: a rank has died
            self._comm.Ack_failed()
            return None
        if message is None:
            return None
        data = bytearray(status.Get_count(self._mpi.BYTE))
        message.Recv(data)
        return status.Get_source(), status.Get_tag(), bytes(data)

    def arrive(self) -> None:
        """Post my part of a non-blocking barrier."""
        self._arrived = self._comm.Ibarrier()

    def all_arrived(self) -> bool:
        """Test the barrier, which also drives it on."""
        try:
            return bool(self._arrived.Test())
        except self._mpi.Exception:  # with fault tolerance: a rank has died, which never arrives
            return False

    def alive(self) -> bool:
        """Tell whether MPI runs."""
        return bool(self._mpi.Is_initialized() and not self._mpi.Is_finalized())

    def on_finalize(self, call: Callable[[], None]) -> None:
        """Hang `call` onto COMM_SELF: MPI deletes its attributes before anything else."""
        self._ending = call
        self._keyval = self._mpi.Comm.Create_keyval(delete_fn=self._attribute_deleted)
        self._mpi.COMM_SELF.Set_attr(self._keyval, True)

    def _attribute_deleted(self, comm: object, keyval: int, value: object) -> None:
        if self._ending is not None:
            self._ending()

    def abort(self, code: int) -> None:
        """Call MPI_Abort."""
        self._comm.Abort(code)

    def close(self) -> None:
        """Free the communicator, and take the attribute off COMM_SELF."""
        self._ending = None
        if self._keyval is not None:
            self._mpi.COMM_SELF.Delete_attr(self._keyval)
            self._mpi.Comm.Free_keyval(self._keyval)
        self._comm.Free()

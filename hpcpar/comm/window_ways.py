"""How windows go from rank to rank: as descriptors through sockets, or as files for a moment.

A way is a row of steps that every rank of the node takes; after each one the ranks exchange what
it returned, so a step finds what the other ranks' last one gave.
"""

from __future__ import annotations

import array
import fcntl
import os
import secrets
import socket
import stat
import struct
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from .._core import node_sizes
from ..errors import BackendUnavailable
from .window import Identity, Window, create_memory, is_foreign, least_length

__all__ = ["FileWay", "Place", "SocketWay", "Step", "Way"]

Step = Callable[[Sequence[str]], str]

_HELLO = struct.Struct("<8si16s")  # magic, global rank, job key
_HELLO_MAGIC = b"hpcparH1"
_HELLO_SECONDS = 5.0  # a rank says hello before it is waited for; only strangers are silent


@dataclass(frozen=True)
class Place:
    """Where this rank is, as all ranks of its node agreed.

    Attributes
    ----------
    members : tuple of int
        Global ranks on my node, in order.
    index : int
        My place among them.
    key : bytes
        16 random bytes of the job.
    length : int
        Bytes of each window.
    one_net : bool
        Whether all are in one network namespace: names of sockets are known inside one only.
    """

    members: tuple[int, ...]
    index: int
    key: bytes
    length: int
    one_net: bool

    def identity(self, index: int) -> Identity:
        """Return what the header of a member's window must say."""
        return Identity(self.members[index], self.key, self.length)


class Way(ABC):
    """One way to hand windows over.

    Attributes
    ----------
    name : str
    windows : dict of int to Window
        What I have mapped, by place on the node, mine included.
    sockets : dict of int to socket
        My connections, by place on the node.
    locks : dict of int to int
        Descriptors of files that members, me too, hold locked while they live, by place.
    """

    name: str

    def __init__(self, place: Place) -> None:
        self.place = place
        self.windows: dict[int, Window] = {}
        self.sockets: dict[int, socket.socket] = {}
        self.locks: dict[int, int] = {}

    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """Return the steps; each gets what the last one returned on the members, in order."""

    @abstractmethod
    def settle(self) -> None:
        """Drop what only the handover needed. Local; a second call does nothing."""

    def ties(self) -> dict[int, int]:
        """Return descriptors that tell of members' deaths, by place. Local."""
        return {**self.locks, **{place: sock.fileno() for place, sock in self.sockets.items()}}

    def drop_ties(self) -> None:
        """Close a forked child's copies, without hanging up for its parent. Local."""
        for sock in self.sockets.values():
            sock.close()
        for fd in self.locks.values():
            os.close(fd)
        self.sockets, self.locks = {}, {}

    def close(self) -> None:
        """Drop everything. Local; a second call does nothing."""
        self.settle()
        for sock in self.sockets.values():
            _hang_up(sock)
        self.drop_ties()
        for window in self.windows.values():
            window.close()
        self.windows = {}

    def make_mine(self, fd: int) -> None:
        """Make an empty file my window."""
        index, length, least = self.place.index, self.place.length, node_sizes()
        try:
            needed = least_length(len(self.place.members))
            if length < needed:
                raise BackendUnavailable(
                    f"a window can be {length} bytes long and must be {needed}. Raise the "
                    "limits on address space and file size (ulimit -v, ulimit -f)"
                )
            if len(self.place.members) > least["ranks"]:
                raise BackendUnavailable(
                    f"{len(self.place.members)} ranks share this node, and the node engine takes "
                    f"{least['ranks']}"
                )
            self.windows[index] = Window.create(fd, self.place.identity(index))
        except BaseException:
            os.close(fd)
            raise

    def map_peer(self, index: int, fd: int) -> None:
        """Map the window of a member."""
        try:
            self.windows[index] = Window.attach(fd, self.place.identity(index))
        finally:
            os.close(fd)


class SocketWay(Way):
    """Windows without a name, whose descriptors go through Unix sockets with abstract names.

    Nothing of it is in any file system. Each rank calls all lower ones and then answers all
    higher ones: whoever waits waits for a lower rank, so the waits form no circle.

    Parameters
    ----------
    place : Place
    timeout : float
        Seconds for the whole handover.
    """

    name = "socket"

    def __init__(self, place: Place, timeout: float) -> None:
        super().__init__(place)
        self._timeout = timeout
        self._deadline = 0.0
        self._listener: socket.socket | None = None
        self._names: Sequence[str] = ()
        self._hello = _HELLO.pack(_HELLO_MAGIC, place.members[place.index], place.key)

    def steps(self) -> tuple[Step, ...]:
        """Listen, call the lower ranks, exchange."""
        return self._listen, self._knock, self._exchange

    def settle(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _listen(self, _: Sequence[str]) -> str:
        if not self.place.one_net:
            raise BackendUnavailable("the ranks are in different network namespaces")
        self.make_mine(create_memory())
        name = f"hpcpar-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen(len(self.place.members))
        return name

    def _knock(self, names: Sequence[str]) -> str:
        """See that the lower ranks can be called: nobody shall wait for a rank that cannot."""
        self._names = names
        for index in range(self.place.index):
            self._call(index)
        return ""

    def _call(self, index: int) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._about(index):
                sock.setblocking(False)
                sock.connect(f"\0{self._names[index]}")
                _check_user(sock)
                sock.sendall(self._hello)
        except BlockingIOError:  # its queue is full, until it answers
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            self.sockets[index] = sock

    @contextmanager
    def _about(self, index: int) -> Iterator[None]:
        """Let errors of the block name the member."""
        try:
            yield
        except TimeoutError:
            raise self._late({index}) from None
        except (BackendUnavailable, OSError) as error:
            raise type(error)(f"rank {self.place.members[index]}: {error}") from error

    def _exchange(self, _: Sequence[str]) -> str:
        self._deadline = time.monotonic() + self._timeout
        try:
            for index in range(self.place.index):
                self._with_lower(index)
            for index in self._callers():
                # Mine goes first, so that few descriptors are under way: the kernel counts them.
                self._send(index)
                self._receive(index)
        except BaseException:
            self.close()  # who waits for me sees it
            raise
        return ""

    def _with_lower(self, index: int) -> None:
        while index not in self.sockets:
            if time.monotonic() > self._deadline:
                raise self._late({index})
            time.sleep(0.001)
            self._call(index)
        self._receive(index)
        self._send(index)

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    def _callers(self) -> Iterator[int]:
        """Yield the higher members as they call; strangers are turned away."""
        assert self._listener is not None
        missing = set(range(self.place.index + 1, len(self.place.members)))
        refused = ""
        while missing:
            self._listener.settimeout(self._left())
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                raise self._late(missing, refused) from None
            try:
                index = self._read_hello(sock, missing)
            except (BackendUnavailable, OSError) as error:
                refused = f"; a caller was refused: {error}"
                sock.close()
                continue
            missing.discard(index)
            self.sockets[index] = sock
            yield index

    def _late(self, missing: set[int], refused: str = "") -> BackendUnavailable:
        ranks = ", ".join(str(self.place.members[index]) for index in sorted(missing))
        return BackendUnavailable(
            f"no window of rank {ranks} came within {self._timeout:g} s{refused}"
        )

    def _read_hello(self, sock: socket.socket, missing: set[int]) -> int:
        _check_user(sock)
        sock.settimeout(min(_HELLO_SECONDS, self._left()))
        rank = self._check_hello(sock.recv(_HELLO.size))
        if rank not in [self.place.members[index] for index in missing]:
            raise BackendUnavailable(f"rank {rank} was not expected")
        return self.place.members.index(rank)

    def _check_hello(self, data: bytes) -> int:
        if not data:
            raise ConnectionResetError("it hung up")
        magic, rank, key = _HELLO.unpack(data.ljust(_HELLO.size))
        if magic != _HELLO_MAGIC or not secrets.compare_digest(key, self.place.key):
            raise BackendUnavailable("its key is not this job's")
        return int(rank)

    def _send(self, index: int) -> None:
        sock = self.sockets[index]
        sock.settimeout(self._left())
        with self._about(index):
            socket.send_fds(sock, [self._hello], [self.windows[self.place.index].fileno()])

    def _receive(self, index: int) -> None:
        sock = self.sockets[index]
        sock.settimeout(self._left())
        with self._about(index):
            data, fd = _receive_fd(sock)
            try:
                rank = self._check_hello(data)
                if rank != self.place.members[index]:
                    raise BackendUnavailable(f"rank {rank} answered in its place")
                if fd < 0:
                    raise BackendUnavailable("its descriptor got lost; raise ulimit -n")
            except BaseException:
                if fd >= 0:
                    os.close(fd)
                raise
        self.map_peer(index, fd)
        sock.setblocking(False)  # from now on it is only looked at


class FileWay(Way):
    """Windows as files, which lose their names as soon as all ranks have opened them.

    Each rank holds its file locked. The kernel lets go of the lock when the process ends, however
    it ends, and peers see it, whatever namespaces they are in.

    Parameters
    ----------
    place : Place
    env : mapping
        The environment, for the directories.
    """

    name = "file"

    def __init__(self, place: Place, env: Mapping[str, str]) -> None:
        super().__init__(place)
        wanted = ("/dev/shm", env.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir())
        self._folders = [folder for folder in wanted if folder]
        self._path = ""

    def steps(self) -> tuple[Step, ...]:
        """Make a file, open those of the others."""
        return self._make, self._open

    def settle(self) -> None:
        """Take the name of my file away."""
        if self._path:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = ""

    def _make(self, _: Sequence[str]) -> str:
        problems = []
        for folder in self._folders:
            try:
                self._make_in(folder)
            except OSError as error:
                problems.append(f"{folder}: {error.strerror}")
                self.close()
            else:
                return self._path
        raise BackendUnavailable(f"no directory takes a window ({'; '.join(problems)})")

    def _make_in(self, folder: str) -> None:
        path = os.path.join(folder, f"hpcpar-{secrets.token_hex(16)}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        self._path = path
        self.make_mine(fd)
        # Opened anew: the mapping keeps a copy of `fd`, also in forked children.
        self.locks[self.place.index] = lock = _open_mine(path)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _open(self, paths: Sequence[str]) -> str:
        for index, path in enumerate(paths):
            if index != self.place.index:
                self.locks[index] = fd = _open_mine(path)
                self.map_peer(index, os.dup(fd))
        return ""


def _hang_up(sock: socket.socket) -> None:
    """Close a connection, also for those who hold copies of it. Local."""
    with suppress(OSError):  # the peer has gone
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _check_user(sock: socket.socket) -> None:
    """Refuse to talk to the process of another user."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    uid = struct.unpack("iII", data)[1]
    if is_foreign(uid):
        raise BackendUnavailable(
            f"it belongs to user {uid}, and this process runs as {os.geteuid()}; start all ranks "
            "as one user"
        )


def _receive_fd(sock: socket.socket) -> tuple[bytes, int]:
    # Python's recv_fds does not pass its flags on, and a program that a rank starts would keep
    # what it got.
    fds = array.array("i")
    size, flags = socket.CMSG_LEN(fds.itemsize), socket.MSG_CMSG_CLOEXEC
    data, ancillary, _, _ = sock.recvmsg(_HELLO.size, size, flags)
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) // fds.itemsize * fds.itemsize])
    return data, fds[0] if fds else -1


def _open_mine(path: str) -> int:
    """Open a file that only processes of this user can have made."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(fd)
    if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) != 0o600:
        os.close(fd)
        raise BackendUnavailable(
            f"{path} belongs to user {info.st_uid} with mode {stat.S_IMODE(info.st_mode):o}; it "
            f"must be user {os.geteuid()}'s with mode 600"
        )
    return fd

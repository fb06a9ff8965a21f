"""One rank's shared memory: a long sparse file, mapped once, grown by its owner, checked by peers.

The file is as long as it will ever be, so that growing needs no new mapping; only what the owner
has reserved takes memory. Reserving first is what makes a full machine an error: a page that is
merely touched when there is none left kills the process.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import stat
import struct
from contextlib import suppress
from typing import NamedTuple

from .._core import node_sizes
from ..errors import BackendUnavailable

__all__ = [
    "DEFAULT_LENGTH",
    "HEADER_BYTES",
    "LAYOUT_VERSION",
    "MAGIC",
    "Header",
    "Identity",
    "Window",
    "create_memory",
    "fit_length",
    "free_memory",
    "is_foreign",
    "least_length",
    "longest_file",
    "map_private",
    "mappable_bytes",
    "read_header",
    "skewed",
]

MAGIC = b"hpcparW1"
LAYOUT_VERSION = 5
#: Bytes of a window that every rank needs; the owner reserves them before anybody else maps it.
HEADER_BYTES = node_sizes()["head"]
DEFAULT_LENGTH = 1 << 36

_IDENTITY = struct.Struct("<8sIi16sQ")
_HEADER = struct.Struct("<8sIi16sQQQ264xQ")  # with the owner's process and state
_MAP_NORESERVE = 0x4000  # Python names it from 3.13 on; the value is that of x86-64 and aarch64
_MADV_POPULATE_WRITE = 23  # Python has no name for it
_MFD_NOEXEC_SEAL = 0x8  # not known before Linux 6.3, which asks for it in the kernel's log
_PRIVATE_LENGTH, _LEAST_LENGTH = 1 << 33, 1 << 26
_MOST_ADDRESSES = 1 << 46  # half of what a process can address on most machines
_SKEW = 5 * 4096  # five pages: no multiple of it brings 256 windows to one place again
_STEP = 1 << 26  # a signal makes the kernel undo a reservation, so large ones go in steps


class Identity(NamedTuple):
    """What the header of a window says.

    Attributes
    ----------
    rank : int
        Global rank of the owner.
    key : bytes
        16 random bytes of the job.
    length : int
        Bytes of the window.
    """

    rank: int
    key: bytes
    length: int


class Header(NamedTuple):
    """What a window says of itself to who looks from outside.

    Attributes
    ----------
    version : int
        Of the layout; of another than ours only this and what `Identity` has can be believed.
    rank, key, length
        As in `Identity`.
    pid, namespace : int
        The owner's process number, and the inode of the PID namespace that counts so.
    state : int
        0: takes part; 1: has left in order; 2: has failed.
    """

    version: int
    rank: int
    key: bytes
    length: int
    pid: int
    namespace: int
    state: int

    def is_of(self, pid: int) -> bool:
        """Tell whether the window is the own one of a process; others have it mapped. Local."""
        status = _read(f"/proc/{pid}/status")
        inner = [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")]
        return inner == [str(self.pid)] and self.namespace == _pid_namespace(str(pid))


class Window:
    """A mapped window. The owner makes it by `create`, peers by `attach`.

    Attributes
    ----------
    identity : Identity
    buffer : mmap.mmap
        The whole window, writable; only what its owner has reserved may be touched.
    """

    def __init__(self, identity: Identity, fd: int, *, own: bool) -> None:
        self.identity = identity
        flags = mmap.MAP_SHARED | _MAP_NORESERVE
        self.buffer = mmap.mmap(fd, identity.length, flags=flags)
        # A core dump would read, and so allocate, every page of the sparse part.
        self.buffer.madvise(mmap.MADV_DONTDUMP)
        self._fd = fd if own else -1
        self._reserved = HEADER_BYTES

    @classmethod
    def create(cls, fd: int, identity: Identity) -> Window:
        """Make an empty file the window of this rank. Local; `fd` is the window's on success.

        Raises
        ------
        OSError
            The file cannot be that long, or there is no memory for its header.
        """
        os.ftruncate(fd, identity.length)
        os.posix_fallocate(fd, 0, HEADER_BYTES)
        rank, key, length = identity
        owner = os.getpid(), _pid_namespace("self")
        os.pwrite(fd, _HEADER.pack(MAGIC, LAYOUT_VERSION, rank, key, length, *owner, 0), 0)
        return cls(identity, fd, own=True)

    @classmethod
    def attach(cls, fd: int, expected: Identity) -> Window:
        """Map the window of a peer. Local; `fd` stays the caller's.

        Raises
        ------
        BackendUnavailable
            It belongs to another user, or is not the window that was expected.
        """
        who = f"window of rank {expected.rank}"
        info = os.fstat(fd)
        if is_foreign(info.st_uid):
            raise BackendUnavailable(
                f"{who}: it belongs to user {info.st_uid}, and this process runs as "
                f"{os.geteuid()}. Start all ranks as one user."
            )
        if not stat.S_ISREG(info.st_mode) or info.st_size != expected.length:
            raise BackendUnavailable(
                f"{who}: {info.st_size} bytes came, {expected.length} were agreed."
            )
        _check_header(os.pread(fd, _IDENTITY.size, 0), expected, who)
        return cls(expected, fd, own=False)

    def fileno(self) -> int:
        """Return the descriptor of my own window."""
        return self._fd

    def grow(self, nbytes: int) -> None:
        """Reserve the first `nbytes` bytes of my own window. Local; what is reserved stays.

        Raises
        ------
        MemoryError
            The machine, or the file system of the window, has not that much left.
        """
        if nbytes > self.identity.length:
            raise MemoryError(
                f"node engine: {nbytes} bytes of shared memory are needed, but {self._whose()} is "
                f"{self.identity.length} bytes long. Use smaller buffers, or raise the limits on "
                "address space and file size (ulimit -v, ulimit -f)."
            )
        if nbytes <= self._reserved:
            return
        self.reserve(self._reserved, nbytes - self._reserved)
        self._reserved = nbytes

    def reserve(self, at: int, nbytes: int) -> None:
        """Reserve any part of my own window. Local.

        Raises
        ------
        MemoryError
            The machine, or the file system of the window, has not that much left.
        """
        self._check_free(nbytes)
        for begin in range(at, at + nbytes, _STEP):
            try:
                os.posix_fallocate(self._fd, begin, min(_STEP, at + nbytes - begin))
            except OSError as error:
                raise self._full(nbytes, os.strerror(error.errno or 0)) from error

    def touch(self, at: int, nbytes: int) -> None:
        """Get memory for pages of the window, near this process where the kernel can. Local.

        Raises
        ------
        MemoryError
            The machine has not that much left.
        """
        self._check_free(nbytes)
        for begin in range(at, at + nbytes, _STEP):
            try:
                part = min(_STEP, at + nbytes - begin)
                self.buffer.madvise(_MADV_POPULATE_WRITE, begin, part)
            except OSError as error:
                if error.errno == errno.EINVAL:  # not known before Linux 5.14: its owner does it
                    return
                raise self._full(nbytes, os.strerror(error.errno or 0)) from error

    def give_back(self, at: int, nbytes: int) -> None:
        """Give memory of my own window back to the machine, where its files can. Local."""
        with suppress(OSError):
            self.buffer.madvise(mmap.MADV_REMOVE, at, nbytes)

    def _check_free(self, nbytes: int) -> None:
        # The kernel would go on reserving until it has to kill somebody.
        free = free_memory()
        if free is not None and nbytes > free:
            raise self._full(nbytes, f"{free} bytes of memory are free on this machine")

    def _full(self, nbytes: int, reason: str) -> MemoryError:
        return MemoryError(
            f"node engine: {self._whose()} cannot grow by {nbytes} bytes: {reason}. Use smaller "
            "buffers or fewer ranks on this node."
        )

    def _whose(self) -> str:
        return f"the window of rank {self.identity.rank}"

    def close(self) -> None:
        """Unmap the window, or let the last view of it do so. Local; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(BufferError):  # somebody holds a view; the mapping ends with it
            self.buffer.close()


def read_header(path: str) -> Header | None:
    """Return what the window in a file says; None if the file holds none. Local.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        return None
    with open(path, "rb", buffering=0) as file:
        page = file.read(_HEADER.size)
    if len(page) < _HEADER.size or not page.startswith(MAGIC):
        return None
    return Header(*_HEADER.unpack(page)[1:])


def create_memory() -> int:
    """Return the descriptor of a new file in memory that has no name anywhere. Local."""
    try:
        return os.memfd_create("hpcpar", os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError:
        return os.memfd_create("hpcpar", os.MFD_CLOEXEC)


def map_private(size: int) -> tuple[memoryview, ...]:
    """Map the windows of `size` ranks that are threads of this process. Local.

    They are addresses, not memory, which comes when they are touched: room for a thousand groups
    if limits allow it. A forked child has a copy.

    Raises
    ------
    MemoryError
        Not even short windows can be mapped.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    wanted = _LEAST_LENGTH if size == 1 else _PRIVATE_LENGTH
    length = fit_length(wanted, wanted, mappable_bytes(), size)
    while length >= _LEAST_LENGTH:
        try:
            memory = mmap.mmap(-1, size * length, flags=flags)
        except OSError:  # a system that keeps memory for all addresses
            length //= 2
            continue
        _advise(memory)
        each = skewed(length)
        windows = [memoryview(memory)[i * each : (i + 1) * each] for i in range(size)]
        for rank, window in enumerate(windows):
            _IDENTITY.pack_into(window, 0, MAGIC, LAYOUT_VERSION, rank, bytes(16), each)
        return tuple(windows)
    raise MemoryError(
        f"threads: no {size * _LEAST_LENGTH} bytes of addresses for the windows of {size} ranks. "
        "Raise the limit on address space (ulimit -v)."
    )


def _advise(memory: mmap.mmap) -> None:
    memory.madvise(mmap.MADV_DONTDUMP)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # a group touches a few small ones


def is_foreign(uid: int) -> bool:
    """Tell whether `uid`, as the kernel shows it to me, is another user than mine. Local.

    In a user namespace the kernel shows users that have no number there as the overflow user, who
    may be anybody: then nothing is known, and the job key decides.
    """
    return uid != os.geteuid() and uid != _unknown_user()


def _unknown_user() -> int:
    """Return the overflow user; -1 where every user has a number."""
    if _read("/proc/self/uid_map").split() == ["0", "0", "4294967295"]:
        return -1
    return int(_read("/proc/sys/kernel/overflowuid") or 65534)


def mappable_bytes() -> int:
    """Return how many bytes of address space this process can still map, to a power of two."""
    size = _MOST_ADDRESSES
    while size:
        try:
            mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE, prot=0).close()
            return size
        except OSError:
            size //= 2
    return 0


def longest_file() -> int:
    """Return how long this process may make a file. Local."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return _MOST_ADDRESSES if limit == resource.RLIM_INFINITY else limit


def least_length(size: int) -> int:
    """Return the bytes that the windows of `size` ranks must have at least. Local."""
    sizes = node_sizes()
    return sizes["length"] + size * sizes["ring"] + sizes["transfer"]


def fit_length(length: int, file: int, room: int, num_windows: int) -> int:
    """Return how long a window can be: `length`, else the largest power of two that fits.

    Local and pure. All windows together take at most half of `room` bytes of address space, each
    at most `file`.

    Examples
    --------
    >>> fit_length(64, 1000, 1000, 2), fit_length(64, 50, 1000, 2), fit_length(64, 1000, 100, 2)
    (64, 32, 16)
    """
    most = min(file, room // 2 // num_windows)
    return length if length <= most else 1 << most.bit_length() >> 1


def skewed(length: int) -> int:
    """Return a little less than a power of two, for windows that lie behind each other. Local.

    What lies at one place of several windows, arrays and counters of ranks, would differ in the
    high bits of its address only. Processors that guess a cache's way by a hash of the lower ones
    (AMD's since Zen) can then keep one of them at a time: a sum of two such arrays took 8 times as
    long.

    References
    ----------
    Lipp et al., Take A Way: Exploring the Security Implications of AMD's Cache Way Predictors, Asia
    CCS 2020, section 3.

    Examples
    --------
    >>> skewed(1 << 26), skewed(4096)
    (67088384, 4096)
    """
    return length - _SKEW if length > 64 * _SKEW else length


def _pid_namespace(process: str) -> int:
    """Return the inode of a process's PID namespace; 0 where that cannot be known."""
    try:
        return os.stat(f"/proc/{process}/ns/pid").st_ino
    except OSError:
        return 0


def free_memory() -> int | None:
    """Return the bytes that the machine has left, with swap; None where it does not say. Local."""
    found = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        found[name] = value.split()[0]
    if "MemAvailable" not in found:
        return None
    return 1024 * (int(found["MemAvailable"]) + int(found.get("SwapFree", 0)))


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _check_header(page: bytes, expected: Identity, who: str) -> None:
    magic, version, rank, key, length = _IDENTITY.unpack(page)
    for name, value, right in (
        ("magic", magic, MAGIC),
        ("layout version", version, LAYOUT_VERSION),
        ("rank", rank, expected.rank),
        ("length", length, expected.length),
    ):
        if value != right:
            raise BackendUnavailable(
                f"{who}: its {name} is {value!r}, not {right!r}. Run one version of hpcpar on all "
                "ranks."
            )
    if key != expected.key:
        raise BackendUnavailable(f"{who}: its key is another job's.")

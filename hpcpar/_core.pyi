"""Types of the compiled core; see native/include/hpcpar.h for its C side."""

from collections.abc import Callable, Hashable, Sequence
from mmap import mmap
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

_Array = NDArray[Any]
#: Whatever has the buffer protocol, which Python names from 3.12 on.
_Buffer: TypeAlias = bytes | bytearray | memoryview | mmap | _Array
_After = Callable[[_Array], object]
_Way = tuple[Any, ...]
_Record = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, str]

def reduce(
    out: _Array,
    srcs: Sequence[_Array],
    op: str,
    factors: Sequence[float] | None = None,
    divisor: float | None = None,
) -> None:
    """Write ``op`` over the sources, in list order, into ``out``. Local.

    Parameters
    ----------
    out : ndarray
        Writable; may be one of ``srcs`` but overlaps none in part.
    srcs : sequence of ndarray
        Same dtype and number of elements as ``out``; C-contiguous, aligned, native.
    op : str
        One of sum, prod, min, max, band, bor, bxor.
    factors : sequence of float, optional
        One per source, multiplied in the accumulator (op sum of floats and complex).
    divisor : float, optional
        Divides the accumulator before it is rounded (op sum of floats and complex).

    Raises
    ------
    TypeError
        ``op`` has no meaning for the dtype, or the dtypes differ.
    ValueError
        Layout, number of elements or overlap.

    Notes
    -----
    One accumulator per element: float32 for 16-bit and 8-bit floats, the dtype itself
    otherwise. Integers wrap; of NaNs the first wins; min prefers -0.0, max prefers 0.0.
    """

def plain_pair(x: object, out: object, same: bool = True, place: int = 0, /) -> int:
    """Read the layout of two operands in one go.

    1: both are exactly ndarrays of one built-in number type, C-contiguous, aligned, native, of one
    shape (where `same`), `out` is writable, and they are disjoint. 2: the same, but x begins
    `place` bytes into out. 0: otherwise.
    """

def reducible(dtype: DTypeLike, op: str, /) -> bool:
    """Whether ``op`` (the above, "mean" or "premul_sum") has a meaning for ``dtype``."""

def add_word(array: _Array, value: int, /) -> int:
    """Add to a number in one step; return the bits that it had."""

def store_word(array: _Array, value: int, /) -> None:
    """Store a number after all that was written before."""

def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int], /
) -> tuple[int, int, int, int]:
    """One block of Philox4x32-10."""

def philox_fill(
    out: _Array,
    kind: Literal["bits", "uniform", "normal"],
    seed: int,
    stream: int,
    start: int,
) -> None:
    """Fill ``out`` with the random numbers of elements ``start``, ``start + 1``, ...

    Element ``i`` uses one block of its own: key = ``seed`` (low word first), counter words
    0-1 = ``i``, words 2-3 = ``stream``. bits fill uint32 and uint64; uniform ([0, 1)) and
    normal fill float32 and float64.
    """

def cpu_features() -> str:
    """Name the SIMD level in use: baseline, avx2 or avx512."""

def build_info() -> dict[str, str]:
    """Compiler, flags and version of the core."""

def node_sizes() -> dict[str, int]:
    """Return what the node engine takes of a window, in bytes, and its limits.

    head (once), control (per group), slots (per group and lane, with the first call that needs
    them), length (the least of a window); record and areas, between which the flight record lies;
    ranks on a node, groups, lanes.
    """

@final
class PackPlan:
    """Where arrays lie in one flat buffer, and the calls that move them.

    Parameters
    ----------
    layouts : sequence of (shape, dtype)
        The members, in order. No Python objects, native byte order.
    dtype : dtype, optional
        Of the flat buffer: members are cast to it (real floats). None moves bytes.
    align : int
        A power of two; offsets are multiples of it and of the member's own alignment.
    """

    def __new__(
        cls,
        layouts: Sequence[tuple[tuple[int, ...], DTypeLike]],
        dtype: DTypeLike | None = None,
        align: int = 64,
    ) -> PackPlan: ...
    @property
    def nbytes(self) -> int:
        """Bytes of the flat buffer."""
    @property
    def count(self) -> int:
        """Elements of the flat buffer, gaps included (bytes if the plan has no dtype)."""
    @property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each member."""
    def pack(self, arrays: Sequence[_Array], flat: _Array, scale: float = 1.0) -> None:
        """Copy ``arrays`` (any strides) into ``flat``; gaps become zero."""
    def unpack(self, flat: _Array, arrays: Sequence[_Array], scale: float = 1.0) -> None:
        """Copy ``flat`` back into ``arrays``."""

@final
class Recorder:
    """Flight record: the newest operations, one record each, and totals per group and verb.

    Parameters
    ----------
    capacity : int
        Records held; a power of two.
    memory : buffer, optional
        Zeroed, writable, on a cache line, with room for all groups; a `RecordReader` may read it.
        None: memory of its own.
    reserve : callable, optional
        Called with the number of bytes from the begin of `memory` that are going to be used; an
        exception of it passes, and nothing is written.
    own : str, optional
        Record who calls: file and line of the innermost frame whose file does not begin so.
    """

    def __new__(
        cls,
        capacity: int = 1024,
        memory: _Buffer | None = None,
        reserve: Callable[[int], object] | None = None,
        own: str | None = None,
    ) -> Recorder: ...
    def add_group(self, name: str, rank: int, size: int, /) -> int:
        """Return a slot for a group (4,096 at most; names are cut at 47 bytes)."""
    def begin(
        self, slot: int, verb: int, dtype: int, count: int, itemsize: int, peer: int, /
    ) -> int:
        """Open a record and return its ticket; verb is 0 to 31, peer -1 if there is none."""
    def sent(self, ticket: int, nbytes_sent: int, nbytes_received: int, messages: int, /) -> None:
        """Add traffic to the record and to the totals."""
    def end(self, ticket: int, status: int = 0, /) -> None:
        """Close a record."""
    def detach(self) -> None:
        """Go on in memory of its own, with what is recorded; `memory` may go."""
    def seq(self, slot: int, /) -> int:
        """Return the sequence number of the group's next operation."""
    def last(self, n: int, /) -> list[_Record]:
        """Return the newest ``n`` records, newest last.

        (slot, seq, verb, dtype, count, itemsize, peer, start_ns, end_ns or 0, status, sent,
        received, messages, who called or "")
        """
    def groups(self) -> list[tuple[str, int, int, int]]:
        """Return (name, rank, size, sequence number of the next operation) by slot."""
    def totals(self) -> list[tuple[int, int, int, int, int, int]]:
        """Return (slot, verb, ops, sent, received, messages) per group and verb."""
    def oldest_open(self) -> _Record | None:
        """Return the open record with the earliest start."""

@final
class RecordReader:
    """Reads a flight record that another rank writes meanwhile, or that holds anything.

    Records are whole; one that is just being rewritten is left out. Slots are of groups that
    `groups` knows afterwards; verbs and dtypes may be numbers that nobody has named.

    Parameters
    ----------
    buffer : buffer
        Holds the `memory` of a `Recorder`.

    Raises
    ------
    ValueError
        It is too short, or holds no record of this version.
    """

    def __new__(cls, buffer: _Buffer) -> RecordReader: ...
    def seq(self, slot: int, /) -> int:
        """Return the sequence number of the group's next operation."""
    def last(self, n: int, /) -> list[_Record]:
        """Return the newest ``n`` records, as `Recorder.last` does."""
    def groups(self) -> list[tuple[str, int, int, int]]:
        """Return (name, rank, size, sequence number of the next operation) by slot."""
    def totals(self) -> list[tuple[int, int, int, int, int, int]]:
        """Return (slot, verb, ops, sent, received, messages) per group and verb."""
    def oldest_open(self) -> _Record | None:
        """Return the open record with the earliest start."""

@final
class ForeignCall:
    """A C function of another library with fixed arguments, but for two arrays' addresses.

    Called as ``call(x, out)``, without the GIL meanwhile; None stands for address 0.

    Parameters
    ----------
    address : int
        Of a function that takes up to 8 integers or addresses and returns 0 if all is well.
    arguments : tuple
        Integers; "x" and "out" for the addresses; ("x", offset) for bytes behind one.
    error : callable or None
        Makes the exception from what the function returned; None: that says nothing.
    """

    def __new__(
        cls,
        address: int,
        arguments: tuple[Any, ...],
        error: Callable[[int], BaseException] | None,
    ) -> ForeignCall: ...
    def __call__(self, x: _Array | None, out: _Array | None, /) -> None: ...

@final
class Node:
    """The windows of the ranks of a node, as the node engine sees them.

    Parameters
    ----------
    windows : tuple of ndarray
        The bytes of every rank's window, mine among them.
    index : int
        My place.
    fd : int
        My window's descriptor, in which memory is reserved; -1: all of it is there.
    ties : tuple of int
        A socket to each rank whose hang-up is its death, or a file that it holds locked while it
        lives; may be shorter, or hold -1.
    spins : int
        Looks before a wait sleeps.
    tuning : tuple of int
        Bytes of a chunk, and of one that is only copied, equal on all ranks; nanoseconds of a line
        that comes from far; bytes of a result that leaves the caches, and of an array that is lent.
    in_threads : bool
        The ranks are threads of this process: much data is moved, and waited for, without the GIL.
    """

    def __new__(
        cls,
        windows: tuple[_Array, ...],
        index: int,
        fd: int,
        ties: tuple[int, ...],
        spins: int,
        tuning: tuple[int, int, int, int, int],
        in_threads: bool,
    ) -> Node: ...
    def claim(self, key: int, /) -> int:
        """Take an area of my window for a group."""
    def find(self, peer: int, key: int) -> int | None:
        """Return a peer's area for a group, None if it has none yet."""
    def close(self, area: int, /) -> None:
        """Say that I read nobody's area of this group any more."""
    def release(self, area: int, /) -> None:
        """Give an area back, which no peer reads any more."""
    def wait_word(
        self, array: _Array, compare: int, value: int, signed: bool, nanoseconds: int
    ) -> int | None:
        """Sleep until a number compares so (eq, ne, ge, gt, le, lt); its bits, or None."""
    def ring(self, peer: int, /) -> None:
        """Wake a peer that waits for a number."""
    def tune(self, tuning: tuple[int, int, int, int, int], /) -> None:
        """Take other switch points. Between two calls, on all ranks alike."""
    def set_meanwhile(self, function: Callable[[], object] | None, /) -> None:
        """Call it now and then in blocking waits, each millisecond in long ones; None: nothing."""
    def heap(self) -> int:
        """Where in each window symmetric arrays may lie."""
    def is_closed(self, peer: int, area: int, key: int) -> bool:
        """Whether a peer has closed its area of this group."""
    def leave(self, failed: bool, /) -> None:
        """Tell all ranks of the node that I take part in nothing any more."""
    def is_dead(self, peer: int, /) -> bool:
        """Whether a peer's process is gone."""
    def untie(self) -> None:
        """Look at nobody's ties any more: their descriptors are going to be closed."""
    def listen(self) -> int:
        """Begin to sleep until an operation of lane 1 can move on; look once more, then `sleep`."""
    def sleep(self, heard: int, nanoseconds: int) -> None:
        """Sleep until the bell has rung since `listen`; 0 only ends the listening."""
    def wake(self) -> None:
        """Wake my own thread that sleeps so."""
    def reaches(self, peer: int, /) -> bool:
        """Whether the kernel lets me read a peer's arrays, which has made its Node."""

    def has_left(self, peer: int, /) -> bool:
        """Whether a peer left in order."""
    def is_gone(self, peer: int, /) -> bool:
        """Whether a peer has left, has failed, or its process is gone."""

@final
class Team:
    """A group on one lane of the node engine.

    Parameters
    ----------
    node : Node
    members, areas : tuple of int
        Places on the node, and areas in the windows there, by rank in the group.
    rank, lane : int
    key : int
        The group's; 0: nobody looks for cycles of waits.
    alone : callable
        Tells whether no other thread of this process may make the call that a peer waits for.
    """

    def __new__(
        cls,
        node: Node,
        members: tuple[int, ...],
        areas: tuple[int, ...],
        rank: int,
        lane: int,
        key: int,
        alone: Callable[[], bool],
    ) -> Team: ...
    def cycle(self) -> list[tuple[int, int, int, bytes]]:
        """Return place, whom it waits for, key and header of each rank of the cycle found last."""
    def give_up(self, late: bool, /) -> None:
        """Tell ranks that come late that I wait no more."""
    def take_headers(self) -> list[bytes] | None:
        """Return the headers of a call that left the hot path, once."""
    def wake_all(self) -> None:
        """Wake peers on whatever lane they wait, from now on; on all ranks alike."""

@final
class NodeCall:
    """A collective of a team. Called as ``call(x, out)`` it blocks; False: only headers came.

    Parameters
    ----------
    team : Team
    verb, dtype, op, root : int
        As the engine numbers them; root -1: none.
    nbytes : int
        Of what I send, or of what a broadcast brings.
    counts : tuple
        Bytes to and from each rank; an empty tuple where the verb has none.
    scales : tuple
        A factor per rank or None, and a divisor or None.
    agreed : tuple
        64 bits that must be equal on all ranks; whether the data may move if they are; the header;
        the record and slot whose operation number goes into the header, or None.
    failed : callable
        Makes the exception from an error's number and the rank that was waited for.
    limit : int
        Nanoseconds that a blocking call may take.
    """

    def __new__(
        cls,
        team: Team,
        verb: int,
        dtype: int,
        op: int,
        root: int,
        nbytes: int,
        counts: tuple[tuple[int, ...], tuple[int, ...]],
        scales: tuple[tuple[float, ...] | None, float | None],
        agreed: tuple[int, bool, bytes, tuple[Recorder, int] | None],
        failed: Callable[[int, int], BaseException],
        limit: int,
    ) -> NodeCall: ...
    def __call__(self, x: _Array | None, out: _Array | None, /) -> bool: ...
    def start(self, x: _Array | None, out: _Array | None) -> bool | None:
        """Begin; True: done, False: only the headers came, None: pending."""
    def test(self) -> bool | None:
        """Move on; the same answers."""
    def wait(self, nanoseconds: int, /) -> bool | None:
        """Wait for the end, that long at most; the same answers."""
    def linger(self, nanoseconds: int, /) -> None:
        """Sleep and move on as peers do, that long at most; `test` tells the outcome."""
    def headers(self) -> list[bytes]:
        """Return what all ranks say of this call."""
    def missing(self) -> list[int]:
        """Return the ranks that keep this call waiting."""

@final
class Box:
    """The messages of a group on this rank.

    Parameters
    ----------
    node : Node
    key : int
        The group's.
    members : tuple of int
        Places of its ranks on the node.
    rank : int
    """

    def __new__(cls, node: Node, key: int, members: tuple[int, ...], rank: int) -> Box: ...
    def empty(self) -> None:
        """Drop what came and was not taken."""
    def probe(self, src: int, tag: int) -> tuple[int, int, str] | None:
        """Return source, tag and kind of the first message that would fit; -1: any."""

@final
class Message:
    """A send or a receive. Called as ``message(array)`` it blocks; False: of another kind.

    Parameters
    ----------
    box : Box
    sends : bool
    peer, tag : int
        -1: any.
    kind : bytes or None
        Says what is sent; a receive takes what is of this kind without asking.
    lane : int
    failed : callable
        Makes the exception from an error's number and the rank that was waited for.
    limit : int
        Nanoseconds that a blocking call may take.
    """

    def __new__(
        cls,
        box: Box,
        sends: bool,
        peer: int,
        tag: int,
        kind: bytes | None,
        lane: int,
        failed: Callable[[int, int], BaseException],
        limit: int,
    ) -> Message: ...
    def __call__(self, array: _Array, /) -> bool: ...
    def start(self, array: _Array | None, /) -> bool | None:
        """Begin; True: done, False: a receive has found something, None: pending."""
    def test(self) -> bool | None:
        """Move on; the same answers."""
    def wait(self, nanoseconds: int, /) -> bool | None:
        """Wait for the end, that long at most; the same answers."""
    def found(self) -> tuple[int, int, str]:
        """Return source, tag and kind of what was found."""
    def take(self, array: _Array, /) -> bool | None:
        """Fetch what was found; the same answers."""
    def cancel(self) -> None:
        """Give up; what was found waits for others."""

@final
class HotCall:
    """The hot path of blocking verbs: look-up, record and the backend's call in one go.

    Parameters
    ----------
    recorder : Recorder
    slot : int
        The group's, in the record.
    """

    def __new__(cls, recorder: Recorder, slot: int) -> HotCall: ...
    def add(
        self,
        key: Hashable,
        x: _Array | None,
        out: _Array | None,
        place: int,
        calls: tuple[_Way | None, _Way | None, _After | None],
        recorded: tuple[int, int, int, int, int, int],
    ) -> None:
        """Let calls with this key on arrays like these take the hot path.

        `calls` is (apart, in_place, after): how the call is made where x and out are two arrays,
        how where x begins `place` bytes into out, what is called with out afterwards. A way is
        (callable, argument, ...) with up to 6 arguments, where "x" and "out" stand for the arrays
        and ``("x", type)`` for that pair; None: as an earlier plan for such calls says, else the
        long way. `recorded` is (verb, dtype, bytes sent, bytes received, messages, peer). Arrays
        of more than 8 axes go the long way.
        """
    def forget(self) -> None:
        """Drop all plans."""
    def run(self, x: object, key: object, out: object, /) -> bool:
        """Do the call and return True, or return False if it needs the long way."""
    def acquire(self) -> bool:
        """Take the one call at a time; False if another thread has it."""
    def release(self) -> None:
        """Give it back."""
    def set_noisy(self, noisy: bool, /) -> None:
        """While noisy no call takes the hot path."""

@final
class Ring:
    """Messages from one writer to one reader through a caller's buffer.

    Parameters
    ----------
    buffer : writable contiguous buffer
        8-byte aligned, 256 bytes or more; its content is overwritten.
    """

    def __new__(cls, buffer: bytearray | memoryview | np.ndarray[Any, Any]) -> Ring: ...
    def reserve(self, nbytes: int, /) -> memoryview | None:
        """Return a writable view for the next message; None if there is no room now."""
    def commit(self, nbytes: int, /) -> None:
        """Publish the first ``nbytes`` of the reserved view."""
    def peek(self) -> memoryview | None:
        """Return a read-only view of the next message; None if there is none."""
    def release(self, nbytes: int, /) -> None:
        """Give back the room of the next message, whose length is ``nbytes``."""

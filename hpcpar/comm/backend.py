"""The seam below the verbs: one normalised request, and who carries it.

Above this seam layout, byte order, casts, write-back, the dtype x op table and uneven sizes are
settled; below it there are flat, contiguous, native buffers and counts.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .._arrays import Array
from .._core import Recorder
from ..errors import MismatchError

if TYPE_CHECKING:
    from .heap import Heap

__all__ = [
    "Agreement",
    "Arrived",
    "Backend",
    "CrossedGroupsError",
    "Direct",
    "Operation",
    "Way",
    "nanoseconds",
    "nanoseconds_until",
]

_FOREVER = 1 << 62  # nanoseconds


def nanoseconds(timeout: float | None) -> int:
    """Return seconds as the core takes them; None: for ever."""
    return _FOREVER if timeout is None else int(1e9 * timeout)


def nanoseconds_until(deadline: float | None, most: int = _FOREVER) -> int:
    """Return what is left until a `time.monotonic()` value, 0 to `most`; None: `most`."""
    if deadline is None:
        return most
    return min(most, max(0, nanoseconds(deadline - time.monotonic())))


class CrossedGroupsError(MismatchError):
    """Ranks wait for each other in a circle, in calls of different groups."""


class Arrived(NamedTuple):
    """A message that has come: who sent it, its tag, dtype and shape in words, its bytes."""

    source: int
    tag: int
    kind: str
    data: Array | None


class Operation:
    """One normalised request: flat C-contiguous native buffers, counts per rank, a reduction.

    Attributes
    ----------
    verb
        "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
        "reduce_scatter", "all_to_all", "scan", "exscan", "barrier", "send", "recv", "probe" or
        "exchange" (every rank's small equal-length message to every rank).
    send, recv
        Flat arrays of one dtype, or None where this rank has no part.
    send_counts, recv_counts
        Elements per rank, for the verbs that cut or join; on a scatter's root and on all ranks of
        a gather.
    equal
        For "all_to_all": every rank knows that all parts of all ranks are of one size.
    op, factors, divisor
        Reduction: "sum", "prod", "min", "max", "band", "bor", "bxor"; each rank's factor
        (None = 1) and what the accumulator is divided by before rounding.
    root
        Rank in the group; for "send" and "recv" the peer (None = any).
    tag
        For "send", "recv" and "probe"; None = any.
    kind
        For "send": dtype and shape in words; they travel with the bytes.
    accept
        For "recv": called with the message's kind, returns the bytes to receive into.
    lane
        0 for blocking calls, 1 for the communication thread: two separate streams of order.
    deadline
        ``time.monotonic()`` value after which the wait ends, or None.
    polled
        Whether the wait must be able to end early (explicit timeout, full check).
    result
        What the backend found out (exchange: list of bytes; recv and probe: Arrived).
    prepared
        The backend's own, for an operation that is begun again and again.
    state
        The backend's own.
    """

    __slots__ = (
        "accept",
        "deadline",
        "divisor",
        "equal",
        "factors",
        "kind",
        "lane",
        "op",
        "polled",
        "prepared",
        "recv",
        "recv_counts",
        "result",
        "root",
        "send",
        "send_counts",
        "state",
        "tag",
        "verb",
    )

    def __init__(
        self,
        verb: str,
        send: Array | None = None,
        recv: Array | None = None,
        *,
        op: str = "sum",
        root: int | None = None,
        send_counts: Sequence[int] = (),
        recv_counts: Sequence[int] = (),
        factors: Sequence[float] | None = None,
        divisor: float | None = None,
        tag: int | None = None,
        kind: str = "",
        equal: bool = False,
        accept: Callable[[str], Array] | None = None,
    ) -> None:
        self.verb = verb
        self.send = send
        self.recv = recv
        self.op = op
        self.root = root
        self.send_counts = send_counts
        self.recv_counts = recv_counts
        self.factors = factors
        self.divisor = divisor
        self.tag = tag
        self.kind = kind
        self.equal = equal
        self.accept = accept
        self.lane = 0
        self.deadline: float | None = None
        self.polled = False
        self.result: Any = None
        self.prepared: Any = None
        self.state: Any = None


#: A call and its arguments, where "x" and "out" stand for the arrays, ``("x", type)`` for a pair.
Way: TypeAlias = tuple[Any, ...]


class Direct(NamedTuple):
    """How a backend's call is made with x and out apart, and in place; None: not this way."""

    apart: Way | None
    in_place: Way | None
    #: Whether the call divides by the operation's divisor itself.
    divides: bool = False


class Agreement(NamedTuple):
    """What all ranks must mean alike, for a backend that compares it in the same call.

    Attributes
    ----------
    print : int
        64 bits over it.
    header : bytes
        It in words, HEADER_NBYTES long.
    failed : callable
        Makes the exception from an error's number and the rank that was waited for.
    record : (Recorder, int) or None
        Where the number of the group's operation stands: its record, its slot.
    """

    print: int
    header: bytes
    failed: Callable[[int, int], BaseException]
    record: tuple[Recorder, int] | None = None


class Backend(ABC):
    """Who carries operations for one group; leaves: mpi, node, fake, messages of threads.

    Attributes
    ----------
    name : str
    rank, size : int
    always_checks : bool
        Whether every collective is compared across ranks first, whatever `check` says.
    compares_itself : bool
        Whether calls of the hot path are compared too, in the call itself.
    heap : Heap or None
        The memory of symmetric arrays, where there is an engine.
    places : tuple of int
        Where the members are on their node, by rank; empty without an engine.
    """

    name: str
    rank: int
    size: int
    always_checks = False
    compares_itself = False
    heap: Heap | None = None
    places: tuple[int, ...] = ()

    @property
    def mpi_comm(self) -> Any:
        """The communicator, where there is one. Collective if it is made only now."""
        return None

    @abstractmethod
    def supports(self, op: Operation) -> str | None:
        """Return None if `op` runs natively, else the reason for the other path taken."""

    @abstractmethod
    def start(self, op: Operation) -> None:
        """Begin `op`; its buffers are the backend's until `test` returns True."""

    @abstractmethod
    def test(self, op: Operation) -> bool:
        """Move `op` on and return whether it is complete."""

    @abstractmethod
    def missing(self, op: Operation) -> list[int] | None:
        """Return the ranks that have not joined `op`, or None where that cannot be known."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> Backend:
        """Return the backend of these ranks; collective over them."""

    @abstractmethod
    def close(self) -> None:
        """Free what the backend holds; collective."""

    def direct(self, op: Operation, agreement: Agreement | None) -> Direct | None:
        """Return the one blocking call that `op` on plain arrays ends in, if there is one.

        `agreement` is None where the ranks know too little to compare in the call itself.
        """
        return None

    def direct_pair(self, send: Operation, recv: Operation, agreement: Agreement) -> Direct | None:
        """Return the one blocking call of two messages at the same time, if there is one."""
        return None

    def prepare(self, op: Operation, agreement: Agreement) -> bool:
        """Keep with `op` what compares all ranks' agreements and moves the data, if it can.

        Where a rank means something else, `op` ends with all ranks' headers as its result.
        """
        return False

    def error(self, code: int, rank: int) -> BaseException:
        """Return the exception for an error's number, where `rank` was waited for."""
        return OSError(code, f"rank {rank}")

    def message_error(self, code: int, rank: int) -> BaseException:
        """Return the same for a message to or from `rank`; -1: from anybody."""
        return self.error(code, rank)

    def give_up(self, late: bool) -> None:  # noqa: B027
        """Tell ranks that come late to a collective that this one waits no more, if possible.

        `late`: its deadline has passed; else it broke off what others may have begun.
        """

    def cancel(self, op: Operation) -> None:  # noqa: B027
        """Let go of a message that nobody waits for any more, if possible."""

    def tune(self, tuning: tuple[int, int, int, int, int]) -> None:  # noqa: B027
        """Take other switch points, where there are some: between calls, on all ranks alike."""

    def limit(self, timeout: float | None) -> None:  # noqa: B027
        """Take another default deadline for what is not told one with each operation."""

    def order_all(self) -> None:  # noqa: B027
        """Be ready for asynchronous operations on lane 0; on all ranks alike, before the first."""

    def meanwhile(self, function: Callable[[], object] | None) -> None:  # noqa: B027
        """Call it now and then in blocking waits that it cannot see otherwise; None: nothing."""

    def rings(self, op: Operation) -> bool:
        """Whether whoever moves `op` on rings the bell that `Progress` sleeps on."""
        return False

    def linger(self, op: Operation, seconds: float) -> None:
        """Sleep for that long, or until `op`, which rings, ends; nothing is raised for it."""
        time.sleep(seconds)

    def last_of(self, rank: int) -> str | None:
        """Return what another rank did last, in words; None where its record cannot be read."""
        return None

    def has_lost(self) -> bool:
        """Whether a rank is known to have died."""
        return False

    def abort(self, reason: BaseException) -> None:  # noqa: B027
        """Tell the other ranks that this one gives up, as far as the backend can."""

    def run(self, op: Operation) -> bool:
        """Start `op` and wait; return False when its deadline passed first."""
        self.start(op)
        return self.wait(op)

    def wait_all(self, ops: Sequence[Operation]) -> list[Operation]:
        """Wait for started operations; return those whose deadline passed first."""
        return [op for op in ops if not self.wait(op)]

    def wait(self, op: Operation) -> bool:
        """Wait for a started `op`; return False when its deadline passed first."""
        pause = 0.0
        while not self.test(op):
            if op.deadline is not None and time.monotonic() > op.deadline:
                return False
            pause = self.relax(op, pause)
        return True

    def relax(self, op: Operation, pause: float) -> float:
        """Let others run between two tests; return the pause for the next time."""
        time.sleep(pause)
        return min(pause + 2e-6, 1e-3)

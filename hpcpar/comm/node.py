"""The node backend: collectives in C over memory that the ranks of one machine share.

Every collective begins with all ranks' posts, which say what each means to do. A call that takes
the hot path says it in a fingerprint and goes on by itself if all are equal; any other first hands
all headers to the verb's request, as on every backend, and moves the data in a second collective.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from .._arrays import dtype_code
from .._core import Node, NodeCall, Recorder, RecordReader, Team, node_sizes
from ..errors import (
    CollectiveTimeout,
    GroupFailed,
    HpcparError,
    RankFailed,
    UnsupportedError,
)
from . import record, where
from .agree import HEADER_NBYTES, Header, describe_call, disagreement
from .backend import Agreement, Backend, CrossedGroupsError, Direct, Operation
from .reductions import OPS

if TYPE_CHECKING:
    from .handover import NodeWindows

__all__ = ["NodeBackend", "NodePlace"]

_CHUNK = 512 * 1024  # long enough that ranks seldom wait for each other
_SPINS = 30_000  # looks before a wait sleeps: some 300 us, more than it takes to wake a sleeper
_FOREVER = 1 << 62
_DIGEST = 16  # bytes that a header begins with, over what must agree
_LOOK = 0.05  # seconds between two looks at whether a message's other end is alive
_RECORD = slice(node_sizes()["record"], node_sizes()["areas"])  # of a window
_VERBS = {
    name: code
    for code, name in enumerate(
        [
            "barrier",
            "exchange",
            "all_reduce",
            "reduce",
            "scan",
            "exscan",
            "broadcast",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
        ]
    )
}
_ROOTED = {"gather": "all_gather", "scatter": "all_to_all"}  # carried by these, with a root
_PRIMITIVES = tuple(op for op in OPS if op != "mean")
_MESSAGES = ("send", "recv", "probe")


class NodePlace:
    """My process on its node: the windows, and the areas of groups in its own.

    Parameters
    ----------
    windows : NodeWindows
    cores : int
        That its ranks may run on, all together: if they do not fit, waits do not spin.

    Attributes
    ----------
    core : Node
    recorder : Recorder
        In my window, where the node's other ranks and `hpcpar inspect` read it.
    """

    def __init__(self, windows: NodeWindows, cores: int) -> None:
        arrays = tuple(np.frombuffer(b, np.uint8) for b in windows.buffers)
        spins = _SPINS if len(arrays) <= cores else 0
        fd = windows.fileno()
        self.core = Node(arrays, windows.index, fd, windows.fds, spins, _CHUNK)
        self.recorder = _make_recorder(windows)
        self._records = tuple(a[_RECORD] for a in arrays)
        # Also at the end of the process, for programs that do not call shutdown().
        self._let_go = weakref.finalize(self, _part, self.core, windows)
        self._index = {rank: i for i, rank in enumerate(windows.ranks)}
        self._has_lost = False
        self._made: dict[tuple[int, ...], int] = {}
        self._open: dict[int, tuple[int, ...]] = {}
        self._closed: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []

    def last_of(self, place: int) -> str | None:
        """Return what the rank at a place did last, also when it has died; None: nothing yet."""
        try:
            reader = RecordReader(self._records[place])
        except ValueError:
            return None
        return record.describe_newest(reader, time.monotonic_ns())

    def members(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the places of global ranks on the node."""
        return tuple(self._index[rank] for rank in ranks)

    def enter(self, ranks: tuple[int, ...], deadline: float | None) -> tuple[int, tuple[int, ...]]:
        """Take an area for the group of `ranks`; return its key and all members' areas.

        Collective over them.

        Raises
        ------
        CollectiveTimeout, RankFailed
            A member does not come.
        """
        self._sweep()
        key = self._key(ranks)
        members = self.members(ranks)
        self.core.claim(key)
        areas = [self._await(rank, place, key, deadline) for rank, place in enumerate(members)]
        self._open[key] = ranks
        return key, tuple(areas)

    def _key(self, ranks: tuple[int, ...]) -> int:
        """Return the same number, never 0, on all members; another each time a group is made."""
        from hashlib import blake2b

        count = self._made[ranks] = self._made.get(ranks, 0) + 1
        text = f"{ranks} {count}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") or 1

    def _await(self, rank: int, place: int, key: int, deadline: float | None) -> int:
        pause = 0.0
        while (area := self.core.find(place, key)) is None:
            if self.core.is_dead(place):
                text = f"subgroup: rank {rank} of the group to be made has died."
                raise self._with_last(RankFailed(text), rank, place)
            if deadline is not None and time.monotonic() > deadline:
                text = f"subgroup: missing: [{rank}]."
                raise self._with_last(CollectiveTimeout(text), rank, place)
            time.sleep(pause)
            pause = min(pause + 1e-5, 1e-3)
        return area

    def _with_last(self, error: HpcparError, rank: int, place: int) -> HpcparError:
        where.add_last(error, (rank,), lambda _: self.last_of(place))
        return error

    def retire(self, key: int, members: tuple[int, ...], areas: tuple[int, ...], mine: int) -> None:
        """Let go of a group's area; it is used again when every member has let go."""
        self.core.close(mine)
        self._open.pop(key, None)
        self._closed.append((mine, key, tuple(zip(members, areas, strict=True))))

    def describe_cycle(self, links: Sequence[tuple[int, int, int, bytes]]) -> str:
        """Return who waits where for whom, in words."""
        ranks = list(self._index)
        words = []
        for place, on, key, header in links:
            group = f"ranks {list(self._open[key])}" if key in self._open else "another group"
            call = describe_call(Header.unpack(header))
            words.append(f"rank {ranks[place]} waits in {call} of {group} for rank {ranks[on]}")
        return ", ".join(words)

    def _sweep(self) -> None:
        kept = []
        for mine, key, others in self._closed:
            if all(self.core.is_closed(place, area, key) for place, area in others):
                self.core.release(mine)
            else:
                kept.append((mine, key, others))
        self._closed = kept

    def has_lost(self) -> bool:
        """Whether a process of the node is gone that did not leave in order."""
        if self._let_go.alive and not self._has_lost:
            places = range(len(self._index))
            gone = (self.core.is_dead(p) and not self.core.has_left(p) for p in places)
            self._has_lost = any(gone)
        return self._has_lost

    def fail(self) -> None:
        """Tell the node's other ranks that this one takes part in nothing any more."""
        self.core.leave(True)

    def close(self) -> None:
        """Leave in order, and hang up. Local; a second call does nothing."""
        self.has_lost()  # it cannot be seen later
        self._let_go()


def _make_recorder(windows: NodeWindows) -> Recorder:
    """Return a record in my window; a group takes memory for its part when it is made."""
    memory = memoryview(windows.buffers[windows.index])[_RECORD]
    return Recorder(
        memory=memory,
        reserve=lambda nbytes: windows.grow(_RECORD.start + nbytes),
        own=record.OWN,
    )


def _part(core: Node, windows: NodeWindows) -> None:
    if os.getpid() == windows.pid:  # a forked child is no rank
        core.leave(False)
        windows.close()


def _verb_code(verb: str) -> int:
    return _VERBS[_ROOTED.get(verb, verb)]


@cache
def _data_header(verb: str) -> bytes:
    """Return what the second collective of a call says, for ranks that come with another call."""
    return Header.make([f"verb={verb}", "stage=data"], [], -1, 1.0, 0).pack()


def _is_alone() -> bool:
    """Whether only this thread of the process calls: no other may make the call that is missing."""
    own, main = "hpcpar-", threading.main_thread()
    return all(t is main or t.name.startswith(own) for t in threading.enumerate())


class NodeBackend(Backend):
    """Carries a group whose ranks share a node.

    Parameters
    ----------
    place : NodePlace
    ranks : sequence of int
        Global ranks of the group.
    rank : int
        My place in `ranks`.
    rest : callable
        Returns who carries messages between two ranks; called when all members have come.
    timeout : float or None
        Seconds that calls of the hot path, and the making of groups, may take.
    """

    name = "node"
    always_checks = True
    compares_itself = True

    def __init__(
        self,
        place: NodePlace,
        ranks: Sequence[int],
        rank: int,
        rest: Callable[[], Backend],
        timeout: float | None,
    ) -> None:
        self.rank, self.size = rank, len(ranks)
        self._place, self._ranks, self._timeout = place, tuple(ranks), timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        self._looked = 0.0  # when I last looked at whether others are alive
        self._key, self._areas = place.enter(self._ranks, deadline)
        self._rest = rest()  # MPI would wait for a dead member for ever
        self.mpi_comm = self._rest.mpi_comm
        self._members = place.members(self._ranks)
        where = (place.core, self._members, self._areas, rank)
        # Waits on lane 0 are told to others; what lane 1 waits for keeps its rank from nothing.
        self._teams = [Team(*where, 0, self._key, _is_alone), Team(*where, 1, 0, _is_alone)]

    def supports(self, op: Operation) -> str | None:
        """Everything but messages runs natively."""
        return self._rest.supports(op) if op.verb in _MESSAGES else None

    def subgroup(self, ranks: Sequence[int]) -> NodeBackend:
        """Return the backend of these ranks of this group; collective over them."""
        chosen = [self._ranks[r] for r in ranks]
        mine = chosen.index(self._ranks[self.rank])
        rest = partial(self._rest.subgroup, ranks)
        return NodeBackend(self._place, chosen, mine, rest, self._timeout)

    def close(self) -> None:
        """Let go of the area and of what carries messages; collective."""
        mine = self._areas[self.rank]
        self._place.retire(self._key, self._members, self._areas, mine)
        self._rest.close()

    def has_lost(self) -> bool:
        """Whether a rank of the node has died."""
        return self._place.has_lost()

    def last_of(self, rank: int) -> str | None:
        """Return what another rank did last, in words."""
        return self._place.last_of(self._members[rank])

    def abort(self, reason: BaseException) -> None:
        """Wake who waits here, then end the job as what carries messages does."""
        self._place.fail()
        self._rest.abort(reason)

    def give_up(self, late: bool) -> None:
        """Let ranks that come late see that this one waits no more."""
        for team in self._teams:
            team.give_up(late)

    # -- running ---------------------------------------------------------------------------

    def start(self, op: Operation) -> None:
        """Post `op`."""
        if op.verb in _MESSAGES:
            with self._failures_named():
                self._rest.start(op)
            return
        if op.verb == "exchange" and op.lane == 0:
            op.result = self._left_headers(op)
            if op.result is not None:
                op.state = None
                return
        op.state = self._call(op)
        self._end(op, op.state.start(op.send, op.recv))

    def _left_headers(self, op: Operation) -> list[bytes] | None:
        """Return what all ranks said of the call on the hot path that `op` goes on with, if any."""
        headers = self._teams[0].take_headers()
        assert op.send is not None
        if headers is not None and headers[self.rank][:_DIGEST] != op.send[:_DIGEST].tobytes():
            # That call was given up before it came here; the others are in the middle of it.
            raise GroupFailed("ranks are out of step: this one has left the call before.")
        return headers

    def test(self, op: Operation) -> bool:
        """Move `op` on."""
        if op.verb in _MESSAGES:
            return self._test_message(op)
        if op.state is None:
            return True
        self._end(op, op.state.test())
        return op.state is None

    def wait(self, op: Operation) -> bool:
        """Sleep until `op` ends; the core looks at signals, deaths and departures in between."""
        if op.verb in _MESSAGES:
            return super().wait(op)
        if op.state is None:
            return True
        limit = _FOREVER
        if op.deadline is not None:
            limit = max(0, int(1e9 * (op.deadline - time.monotonic())))
        self._end(op, op.state.wait(limit))
        return op.state is None

    def _test_message(self, op: Operation) -> bool:
        with self._failures_named():
            if self._rest.test(op):
                return True
            if time.monotonic() - self._looked < _LOOK:
                return False
            self._looked = time.monotonic()
            others = [r for r in range(self.size) if r != self.rank]
            possible = others if op.root is None else [op.root]
            if self.rank in possible or not (possible and all(map(self._is_dead, possible))):
                return False
            if self._rest.test(op):  # what was sent before has come by now, if it ever does
                return True
        raise self._no_message(possible)

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        """Name who died where MPI has seen it first; mpi4py's errors are RuntimeErrors."""
        try:
            yield
        except RuntimeError as error:
            dead = [r for r in range(self.size) if r != self.rank and self._is_dead(r)]
            if not dead:
                raise
            raise self._no_message(dead) from error

    def _no_message(self, ranks: Sequence[int]) -> RankFailed:
        who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {list(ranks)} have"
        return RankFailed(f"{who} left or died, and no message can come or go.")

    def _is_dead(self, rank: int) -> bool:
        return self._place.core.is_dead(self._members[rank])

    def relax(self, op: Operation, pause: float) -> float:
        """Give the core away between two tests of a message, after a while for longer."""
        time.sleep(0 if pause < 2e-3 else 1e-4)
        return pause + 1e-6

    def rings(self, op: Operation) -> bool:
        """Whether peers ring when `op` can move on: in all that the core carries."""
        return op.verb not in _MESSAGES

    def missing(self, op: Operation) -> list[int] | None:
        """Return the ranks that keep `op` waiting."""
        if op.verb in _MESSAGES:
            return self._rest.missing(op)
        return [] if op.state is None else list(op.state.missing())

    def _end(self, op: Operation, outcome: bool | None) -> None:
        """Take the result of an operation that has ended; outcome None: it has not."""
        if outcome is None:
            return
        call, op.state = op.state, None
        if op.verb == "exchange":
            self._take_exchange(op, call)
        elif not outcome:
            headers = [Header.unpack(data) for data in call.headers()]
            raise GroupFailed(f"ranks are out of step: {disagreement(headers) or op.verb}.")

    def _take_exchange(self, op: Operation, call: NodeCall) -> None:
        assert op.send is not None
        if op.send.nbytes == HEADER_NBYTES:
            op.result = call.headers()
        else:
            assert op.recv is not None
            op.result = [row.tobytes() for row in op.recv.reshape(self.size, -1)]

    # -- calls -----------------------------------------------------------------------------

    def _call(self, op: Operation) -> NodeCall:
        """Return the collective that carries `op`."""
        agreement = Agreement(_verb_code(op.verb), _data_header(op.verb), self.error)
        if op.verb != "exchange":
            return self._make(op, agreement, True)
        assert op.send is not None
        if op.send.nbytes == HEADER_NBYTES:
            return self._make(op, agreement._replace(header=op.send.tobytes()), False)
        op.recv = np.empty(self.size * op.send.nbytes, np.uint8)
        gather = Operation("all_gather", op.send, recv_counts=[op.send.nbytes] * self.size)
        return self._make(gather, agreement, True)

    def direct(self, op: Operation, agreement: Agreement | None) -> Direct | None:
        """Return one call of the core that compares all ranks' agreements and moves the data."""
        if agreement is None or op.verb in (*_MESSAGES, "scatter"):
            return None
        call = self._make(op, agreement, True)
        way = (call, "x", "out")
        is_aliased = op.verb in ("all_to_all", "all_gather", "gather", "reduce_scatter")
        return Direct(way, None if is_aliased else way, divides=True)

    def _make(self, op: Operation, agreement: Agreement, ready: bool) -> NodeCall:
        given = op.send if op.send is not None else op.recv
        code, nbytes, item = 0, 0, 1
        if given is not None:
            code, nbytes, item = dtype_code(given.dtype) - 1, given.nbytes, given.dtype.itemsize
        limit = _FOREVER if self._timeout is None else int(1e9 * self._timeout)
        return NodeCall(
            self._teams[op.lane],
            _verb_code(op.verb),
            code,
            _PRIMITIVES.index(op.op),
            -1 if op.root is None or op.verb == "scatter" else op.root,
            nbytes,
            self._counts(op, item),
            (None if op.factors is None else tuple(op.factors), op.divisor),
            (agreement.print, ready, agreement.header, agreement.record),
            agreement.failed,
            limit,
        )

    def _counts(self, op: Operation, item: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the bytes that go to and come from each rank, where the verb cuts or joins."""
        if op.verb == "scatter":
            zeros = (0,) * self.size
            sent = tuple(op.send_counts) if self.rank == op.root else zeros
            mine = 0 if op.recv is None else op.recv.nbytes
            return sent, tuple(mine if r == op.root else 0 for r in range(self.size))
        if op.verb == "reduce_scatter":
            return tuple(n * item for n in op.send_counts), ()
        return tuple(op.send_counts), tuple(op.recv_counts)

    def error(self, code: int, rank: int) -> BaseException:
        """Return the exception for what the core says of the rank that it waited for."""
        error = self._plain_error(code, rank)
        if isinstance(error, RankFailed | CollectiveTimeout):
            where.add_last(error, (rank,), self.last_of)
        return error

    def _plain_error(self, code: int, rank: int) -> BaseException:
        if code == errno.EPIPE:
            return RankFailed(f"rank {rank} has left or died, and is missing here.")
        if code == errno.ECANCELED:
            return GroupFailed(f"rank {rank} has given up waiting here.")
        if code == errno.EDEADLK:
            circle = self._place.describe_cycle(self._teams[0].cycle())
            return CrossedGroupsError(
                f"groups are called in different orders: {circle}. Call them alike on all ranks."
            )
        if code == errno.EINTR:
            return InterruptedError(f"a signal's handler raised while rank {rank} was waited for.")
        if code == errno.ENOMEM:
            return MemoryError("node engine: there is no memory for the chunks of this group.")
        if code == errno.ETIMEDOUT:
            return CollectiveTimeout(f"not done at the deadline, missing: [{rank}].")
        return UnsupportedError(f"node engine: {os.strerror(code)}.")

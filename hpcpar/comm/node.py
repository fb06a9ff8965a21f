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
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from .._arrays import dtype_code
from .._core import NodeCall, Team
from ..errors import CollectiveTimeout, GroupFailed, RankFailed, UnsupportedError
from . import where
from .agree import HEADER_NBYTES, Header, disagreement
from .backend import (
    Agreement,
    Backend,
    CrossedGroupsError,
    Direct,
    Operation,
    nanoseconds,
    nanoseconds_until,
)
from .node_messages import MESSAGES, NodeMessages
from .node_place import NodePlace
from .reductions import OPS

__all__ = ["NodeBackend"]

_MOMENT = 0.01  # seconds that the kernel may take to tell all ranks of a death
_DIGEST = 16  # bytes that a header begins with, over what must agree
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
_NOT_IN_PLACE = ("all_to_all", "scatter", "reduce_scatter")
_PRIMITIVES = tuple(op for op in OPS if op != "mean")
_NO_HEADER = bytes(HEADER_NBYTES)


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
    """Carries a group whose ranks share memory: on one node, or in one process.

    Parameters
    ----------
    place : NodePlace
    ranks : sequence of int
        Global ranks of the group.
    rank : int
        My place in `ranks`.
    timeout : float or None
        Seconds that calls of the hot path, and the making of groups, may take.
    world : MpiBackend, optional
        Of all ranks, where there is MPI: it ends the job, and makes the group's communicator when
        that is asked for.
    own : MpiBackend, optional
        The group's, where it is there already.
    """

    always_checks = True
    compares_itself = True

    def __init__(
        self,
        place: NodePlace,
        ranks: Sequence[int],
        rank: int,
        timeout: float | None,
        world: Backend | None = None,
        own: Backend | None = None,
    ) -> None:
        self.name, self.rank, self.size = place.backend, rank, len(ranks)
        self._place, self._ranks, self._timeout = place, tuple(ranks), timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        self._key, self._areas = place.enter(self._ranks, deadline)
        self._world, self._own = world, own
        self.places, self.heap = place.members(self._ranks), place.heap
        seat = (place.core, self.places, self._areas, rank)
        # Waits on lane 0 are told to others; what lane 1 waits for keeps its rank from nothing.
        self._teams = [Team(*seat, 0, self._key, _is_alone), Team(*seat, 1, 0, _is_alone)]
        self._mail = NodeMessages(place.core, self._key, self.places, rank, timeout)

    def supports(self, op: Operation) -> str | None:
        """Everything runs natively."""
        return None

    @property
    def mpi_comm(self) -> Any:
        """The group's communicator, made when it is first asked for; then collective."""
        if self._own is None and self._world is not None:
            self._own = self._world.subgroup(self._ranks)
        return None if self._own is None else self._own.mpi_comm

    def subgroup(self, ranks: Sequence[int]) -> NodeBackend:
        """Return the backend of these ranks of this group; collective over them."""
        chosen = [self._ranks[r] for r in ranks]
        mine = chosen.index(self._ranks[self.rank])
        return NodeBackend(self._place, chosen, mine, self._timeout, self._world)

    def close(self) -> None:
        """Let go of the area, of messages that nobody took and of the communicator; collective."""
        mine = self._areas[self.rank]
        self._place.retire(self._key, self.places, self._areas, mine, self._mail.close())
        self._teams, self.heap = [], None
        if self._own is not None:
            self._own.close()

    def meanwhile(self, function: Callable[[], object] | None) -> None:
        """Call it now and then in blocking waits, of all groups of the node."""
        self._place.core.set_meanwhile(function)

    def limit(self, timeout: float | None) -> None:
        """Take another deadline for calls that the hot path learns from now on."""
        self._timeout = timeout
        self._mail.limit = nanoseconds(timeout)

    def order_all(self) -> None:
        """Wake the communication threads of peers for what comes on lane 0."""
        self._teams[0].wake_all()

    def tune(self, tuning: tuple[int, int, int, int, int]) -> None:
        """Take other switch points, for all groups of the node."""
        self._place.core.tune(tuning)

    def has_lost(self) -> bool:
        """Whether a rank of the node has died."""
        return self._place.has_lost()

    def last_of(self, rank: int) -> str | None:
        """Return what another rank did last, in words."""
        return self._place.last_of(self.places[rank])

    def abort(self, reason: BaseException) -> None:
        """Wake who waits here, then end the job where there is MPI."""
        self._place.fail(reason)
        if self._world is not None:
            self._world.abort(reason)

    def give_up(self, late: bool) -> None:
        """Let ranks that come late see that this one waits no more."""
        for team in self._teams:
            team.give_up(late)

    # -- running ---------------------------------------------------------------------------

    def start(self, op: Operation) -> None:
        """Post `op`."""
        if op.verb in MESSAGES:
            self._mail.start(op, self.message_error)
            return
        if op.verb == "exchange" and op.lane == 0:
            op.result = self._left_headers(op)
            if op.result is not None:
                op.state = None
                return
        op.state = self._call(op) if op.prepared is None else op.prepared
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
        if op.verb in MESSAGES:
            return self._mail.test(op)
        if op.state is None:
            return True
        self._end(op, op.state.test())
        return op.state is None

    def wait(self, op: Operation) -> bool:
        """Sleep until `op` ends; the core looks at signals, deaths and departures in between."""
        if op.verb in MESSAGES:
            return self._mail.wait(op)
        if op.state is None:
            return True
        self._end(op, op.state.wait(nanoseconds_until(op.deadline)))
        return op.state is None

    def wait_all(self, ops: Sequence[Operation]) -> list[Operation]:
        """Wait for all; the end of one rank is seen while another's message is waited for."""
        if all(op.verb in MESSAGES for op in ops):
            return self._mail.wait_all(ops)
        return super().wait_all(ops)

    def rings(self, op: Operation) -> bool:
        """Whether peers ring when `op` can move on: always."""
        return True

    def linger(self, op: Operation, seconds: float) -> None:
        """Sleep in the core, where peers wake it."""
        if op.verb in MESSAGES or op.state is None:
            super().linger(op, seconds)
        else:
            op.state.linger(int(seconds * 1e9))

    def cancel(self, op: Operation) -> None:
        """Give a message up."""
        if op.verb in MESSAGES:
            self._mail.cancel(op)

    def missing(self, op: Operation) -> list[int] | None:
        """Return the ranks that keep `op` waiting."""
        if op.verb in MESSAGES:
            return self._mail.missing(op)
        return [] if op.state is None else list(op.state.missing())

    def _end(self, op: Operation, outcome: bool | None) -> None:
        """Take the result of an operation that has ended; outcome None: it has not."""
        if outcome is None:
            return
        call, op.state = op.state, None
        if op.verb == "exchange":
            self._take_exchange(op, call)
        elif not outcome and call is op.prepared:
            op.result = call.headers()
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
        header = _NO_HEADER if self.size == 1 else _data_header(op.verb)
        agreement = Agreement(_verb_code(op.verb), header, self.error)
        if op.verb != "exchange":
            return self._make(op, agreement, True)
        assert op.send is not None
        if op.send.nbytes == HEADER_NBYTES:
            return self._make(op, agreement._replace(header=op.send.tobytes()), False)
        op.recv = np.empty(self.size * op.send.nbytes, np.uint8)
        gather = Operation("all_gather", op.send, recv_counts=[op.send.nbytes] * self.size)
        gather.lane = op.lane
        return self._make(gather, agreement, True)

    def direct(self, op: Operation, agreement: Agreement | None) -> Direct | None:
        """Return one call of the core that compares all ranks' agreements and moves the data."""
        if agreement is None:
            return None
        if op.verb in MESSAGES:
            return self._mail.direct(op, agreement.failed)
        call = self._make(op, agreement, True)
        way = (call, "x", "out")
        return Direct(way, None if op.verb in _NOT_IN_PLACE else way, divides=True)

    def prepare(self, op: Operation, agreement: Agreement) -> bool:
        """Keep the call of the core; its number in the group is not known before it begins."""
        op.prepared = self._make(op, agreement._replace(failed=self.error, record=None), True)
        return True

    def direct_pair(self, send: Operation, recv: Operation, agreement: Agreement) -> Direct | None:
        """Return one call that sends and receives."""
        return self._mail.direct_pair(send, recv, agreement.failed)

    def _make(self, op: Operation, agreement: Agreement, ready: bool) -> NodeCall:
        given = op.send if op.send is not None else op.recv
        code, nbytes, item = 0, 0, 1
        if given is not None:
            code, nbytes, item = dtype_code(given.dtype) - 1, given.nbytes, given.dtype.itemsize
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
            nanoseconds(self._timeout),
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
        if code == errno.ECANCELED:
            code, rank = self._cause(rank)
        error = self._plain_error(code, rank)
        if isinstance(error, RankFailed | CollectiveTimeout) and rank >= 0:
            where.add_last(error, (rank,), self.last_of)
        return error

    def _cause(self, rank: int) -> tuple[int, int]:
        """Return why a rank gave up, and who is to blame: one whose death it saw sooner."""
        until = time.monotonic() + _MOMENT
        while True:
            for other, place in enumerate(self.places):
                if other not in (self.rank, rank) and self._place.is_lost(place):
                    return errno.EPIPE, other
            if time.monotonic() > until:
                return errno.ECANCELED, rank
            time.sleep(_MOMENT / 10)

    def message_error(self, code: int, rank: int) -> BaseException:
        """Return the exception for what the core says of a message."""
        if code == errno.ECANCELED:
            return GroupFailed(f"rank {rank} withdrew its message while it was fetched.")
        if code == errno.ENOMEM:
            return MemoryError("node engine: there is no memory for messages.")
        if code == errno.ETIMEDOUT and rank < 0:
            return CollectiveTimeout("nothing has come at the deadline, from any rank.")
        return self.error(code, rank)

    def _plain_error(self, code: int, rank: int) -> BaseException:
        if code == errno.EPIPE:
            return self._place.loss(rank)
        if code == errno.ECANCELED:
            return GroupFailed(f"rank {rank} has given up waiting here.")
        if code == errno.EFAULT:
            return GroupFailed(f"the kernel does not read all of the array of rank {rank}.")
        if code == errno.EDEADLK:
            circle = self._place.describe_cycle(self._teams[0].cycle())
            return CrossedGroupsError(
                f"groups are called in different orders: {circle}. Call them alike on all ranks."
            )
        if code == errno.EINTR:
            return InterruptedError(f"a signal's handler raised while rank {rank} was waited for.")
        if code == errno.ENOMEM:
            return MemoryError("node engine: there is no memory for the chunks of this group.")
        if code == errno.ETIMEDOUT and rank < 0:
            return CollectiveTimeout("not done at the deadline, which was over at once.")
        if code == errno.ETIMEDOUT:
            return CollectiveTimeout(f"not done at the deadline, missing: [{rank}].")
        return UnsupportedError(f"node engine: {os.strerror(code)}.")

"""Ranks as threads of one process: the backend of tests, of laptops and of a world of one."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._arrays import Array
from .._core import reduce
from ..errors import GroupFailed, RankFailed
from .backend import Arrived, Backend, Operation
from .matching import Matching
from .sizes import starts, uneven

__all__ = ["Shared", "ThreadsBackend"]

_LOOK = 0.05  # seconds between two looks at signals while asleep


class _Round:
    """One operation of a board: who has come, what each has computed, who is through."""

    __slots__ = ("parts", "posts", "through")

    def __init__(self) -> None:
        self.posts: dict[int, Operation] = {}
        self.parts: dict[int, Any] = {}
        self.through = 0


class _Board:
    """Where the ranks of one group meet."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.rounds: dict[tuple[int, int], _Round] = {}
        self.counts: dict[tuple[int, int], int] = {}
        self.mail: list[list[Arrived]] = [[] for _ in ranks]
        self.matching = [Matching() for _ in ranks]
        self.gave_up: set[int] = set()


class Shared:
    """What all ranks of one run share: boards, who has left, why it failed."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.cond = threading.Condition()
        self.version = 0
        self.failure: tuple[int, BaseException] | None = None
        self.left: set[int] = set()
        self._boards: dict[tuple[int, ...], _Board] = {}

    def board(self, ranks: tuple[int, ...]) -> _Board:
        """Return the board of these global ranks, the same for all who ask."""
        with self.cond:
            return self._boards.setdefault(ranks, _Board(ranks))

    def changed(self) -> None:
        """Wake everybody; the caller holds the condition."""
        self.version += 1
        self.cond.notify_all()

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and wake everybody."""
        with self.cond:
            if self.failure is None:
                self.failure = (rank, error)
            self.changed()

    def leave(self, rank: int) -> None:
        """Record that `rank` will not take part in anything any more."""
        with self.cond:
            self.left.add(rank)
            self.changed()


class _Place:
    """An operation's place in its round."""

    __slots__ = ("key", "round", "stage")

    def __init__(self, key: tuple[int, int], round_: _Round) -> None:
        self.key = key
        self.round = round_
        self.stage = 0


class ThreadsBackend(Backend):
    """Collectives over shared memory of one process: every rank reads its peers' arrays.

    Parameters
    ----------
    shared : Shared
    ranks : sequence of int
        Global ranks of the group.
    rank : int
        My place in `ranks`.
    """

    name = "threads"
    always_checks = True

    def __init__(self, shared: Shared, ranks: Sequence[int], rank: int) -> None:
        self.rank, self.size = rank, len(ranks)
        self._ranks = tuple(ranks)
        self._shared = shared
        self._board = shared.board(self._ranks)

    def supports(self, op: Operation) -> str | None:
        """Everything runs natively."""
        return None

    def subgroup(self, ranks: Sequence[int]) -> ThreadsBackend:
        """Return the backend of these ranks of this group; nobody waits."""
        chosen = [self._ranks[r] for r in ranks]
        return ThreadsBackend(self._shared, chosen, chosen.index(self._ranks[self.rank]))

    def close(self) -> None:
        """Nothing to free: boards go with the run."""

    def abort(self, reason: BaseException) -> None:
        """Make every wait of the run raise."""
        self._shared.fail(self._ranks[self.rank], reason)

    def start(self, op: Operation) -> None:
        """Post `op` on the board."""
        if op.verb in ("send", "recv", "probe"):
            self._start_message(op)
            return
        board, shared = self._board, self._shared
        with shared.cond:
            number = board.counts.get((op.lane, self.rank), 0)
            board.counts[op.lane, self.rank] = number + 1
            key = (op.lane, number)
            round_ = board.rounds.setdefault(key, _Round())
            round_.posts[self.rank] = op
            op.state = _Place(key, round_)
            shared.changed()

    def test(self, op: Operation) -> bool:
        """Compute when all have come; finish when all have computed."""
        if op.verb in ("send", "recv", "probe"):
            return self._test_message(op)
        place: _Place = op.state
        if place.stage == 0:
            if len(place.round.posts) < self.size:
                self._check_alive(place.round.posts)
                return False
            part = _COMPUTE[op.verb](op, place.round.posts, self.rank)
            with self._shared.cond:
                place.round.parts[self.rank] = part
                place.stage = 1
                self._shared.changed()
        if place.stage == 1:
            if len(place.round.parts) < self.size:
                self._check_patience(place.round.parts)
                self._check_alive(place.round.parts)
                return False
            complete = _COMPLETE.get(op.verb)
            if complete is not None:
                complete(op, place.round.parts, self.rank)
            self._go_through(place)
        return True

    def _go_through(self, place: _Place) -> None:
        with self._shared.cond:
            place.stage = 2
            place.round.through += 1
            if place.round.through == self.size:
                del self._board.rounds[place.key]

    def _check_alive(self, came: dict[int, Operation] | Sequence[int]) -> None:
        shared = self._shared
        if shared.failure is not None:
            rank, error = shared.failure
            kind = type(error).__name__
            raise GroupFailed(f"rank {rank} failed: {kind}: {error}") from error
        for place, rank in enumerate(self._ranks):
            if rank in shared.left and place not in came:
                raise RankFailed(f"rank {place} has left and is missing here.")

    def _check_patience(self, parts: dict[int, Any]) -> None:
        """Raise if all have come, but some too late for a rank that waits no more."""
        for rank in self._board.gave_up:
            if rank not in parts:
                raise GroupFailed(f"rank {rank} has given up waiting here.")

    def give_up(self, late: bool) -> None:
        """Let ranks that come late see that this one waits no more."""
        with self._shared.cond:
            self._board.gave_up.add(self.rank)
            self._shared.changed()

    def missing(self, op: Operation) -> list[int] | None:
        """Return the ranks that have not come."""
        if not isinstance(op.state, _Place):
            return None if op.root is None else [op.root]
        return [r for r in range(self.size) if r not in op.state.round.posts]

    def wait(self, op: Operation) -> bool:
        """Sleep until something changes; look at signals in between."""
        shared = self._shared
        while True:
            seen = shared.version
            if self.test(op):
                return True
            if op.deadline is not None and time.monotonic() > op.deadline:
                return False
            with shared.cond:
                if shared.version == seen:
                    shared.cond.wait(_LOOK)

    def _start_message(self, op: Operation) -> None:
        if op.verb == "recv":
            with self._shared.cond:
                self._board.matching[self.rank].post(op)
        if op.verb != "send":
            return
        assert op.root is not None
        assert op.tag is not None
        assert op.send is not None
        arrived = Arrived(self.rank, op.tag, op.kind, op.send.copy())
        with self._shared.cond:
            self._board.mail[op.root].append(arrived)
            self._shared.changed()

    def _test_message(self, op: Operation) -> bool:
        if op.verb == "send" or op.result is not None:
            return True
        box, matching = self._board.mail[self.rank], self._board.matching[self.rank]
        with self._shared.cond:
            if op.verb == "probe":
                place = matching.find(op, box)
                op.result = None if place is None else box[place]
                return True
            place = matching.take(op, box)
            if place is None:
                self._check_senders(op)
                return False
            found = box.pop(place)
        assert op.accept is not None
        op.accept(found.kind)[...] = found.data
        op.result = found
        return True

    def _check_senders(self, op: Operation) -> None:
        """Raise if nobody is left who could send what `op` waits for."""
        others = [r for r in range(self.size) if r != self.rank]
        possible = others if op.root is None else [op.root]
        gone = [r for r in possible if self._ranks[r] in self._shared.left]
        self._check_alive(range(self.size) if len(gone) < len(possible) else [self.rank])


_Posts = dict[int, Operation]
_Parts = dict[int, Any]


def _nothing(op: Operation, parts: Any, rank: int) -> None:
    return None


def _sources(posts: _Posts, count: int) -> list[Array]:
    found = [posts[r].send for r in range(count)]
    return [s for s in found if s is not None]


def _reduced(op: Operation, sources: list[Array]) -> Array:
    out = np.empty_like(sources[0])
    factors = None if op.factors is None else op.factors[: len(sources)]
    reduce(out, sources, op.op, factors, op.divisor)
    return out


def _slice_of_all(op: Operation, posts: _Posts, rank: int) -> Array:
    sources = _sources(posts, len(posts))
    sizes = uneven(sources[0].size, len(posts))
    start = starts(sizes)[rank]
    return _reduced(op, [s[start : start + sizes[rank]] for s in sources])


def _at_root(op: Operation, posts: _Posts, rank: int) -> Array | None:
    return _reduced(op, _sources(posts, len(posts))) if rank == op.root else None


def _prefix(op: Operation, posts: _Posts, rank: int) -> Array | None:
    count = rank + (op.verb == "scan")
    return _reduced(op, _sources(posts, count)) if count else None


def _my_block(op: Operation, posts: _Posts, rank: int) -> Array:
    start = starts(op.send_counts)[rank]
    stop = start + op.send_counts[rank]
    return _reduced(op, [s[start:stop] for s in _sources(posts, len(posts))])


def _copy_parts(op: Operation, parts: _Parts, rank: int) -> None:
    assert op.recv is not None
    np.concatenate([parts[r] for r in range(len(parts))], out=op.recv)


def _copy_own(op: Operation, parts: _Parts, rank: int) -> None:
    if op.recv is not None and parts[rank] is not None:
        op.recv[...] = parts[rank]


def _copy_from_root(op: Operation, posts: _Posts, rank: int) -> None:
    assert op.root is not None
    source = posts[op.root].send
    if rank != op.root and op.recv is not None:
        op.recv[...] = source


def _join_all(op: Operation, posts: _Posts, rank: int) -> None:
    if op.recv is not None:
        np.concatenate(_sources(posts, len(posts)), out=op.recv)


def _take_mine(op: Operation, posts: _Posts, rank: int) -> None:
    assert op.root is not None
    assert op.recv is not None
    root = posts[op.root]
    assert root.send is not None
    start = starts(root.send_counts)[rank]
    op.recv[...] = root.send[start : start + root.send_counts[rank]]


def _collect_mine(op: Operation, posts: _Posts, rank: int) -> None:
    assert op.recv is not None
    for source, start in enumerate(starts(op.recv_counts)):
        sent = posts[source].send
        assert sent is not None
        begin = starts(posts[source].send_counts)[rank]
        count = op.recv_counts[source]
        op.recv[start : start + count] = sent[begin : begin + count]


def _exchange(op: Operation, posts: _Posts, rank: int) -> None:
    op.result = [s.tobytes() for s in _sources(posts, len(posts))]


# What each rank does when all have come (peers' sends may be read, own recv written only where no
# peer reads it) and, for results that may overlap a send, when all have computed.
_COMPUTE: dict[str, Callable[[Operation, _Posts, int], Any]] = {
    "barrier": _nothing,
    "exchange": _exchange,
    "all_reduce": _slice_of_all,
    "reduce": _at_root,
    "scan": _prefix,
    "exscan": _prefix,
    "reduce_scatter": _my_block,
    "broadcast": _copy_from_root,
    "all_gather": _join_all,
    "gather": _join_all,
    "scatter": _take_mine,
    "all_to_all": _collect_mine,
}
_COMPLETE: dict[str, Callable[[Operation, _Parts, int], None]] = {
    "all_reduce": _copy_parts,
    "reduce": _copy_own,
    "scan": _copy_own,
    "exscan": _copy_own,
    "reduce_scatter": _copy_own,
}


def start_ranks(
    size: int, body: Callable[[int, Shared], Any], shared: Shared
) -> list[tuple[Any, BaseException | None]]:
    """Run ``body(rank, shared)`` on `size` threads; return each one's result or error."""
    outcomes: list[tuple[Any, BaseException | None]] = [(None, None)] * size

    def run(rank: int) -> None:
        """Play one rank and keep its outcome."""
        try:
            outcomes[rank] = (body(rank, shared), None)
        except BaseException as error:  # handed to the caller's thread
            outcomes[rank] = (None, error)
            shared.fail(rank, error)
        shared.leave(rank)

    threads = []
    for rank in range(size):
        context = contextvars.copy_context()
        name, args = f"hpcpar-rank-{rank}", (run, rank)
        threads.append(threading.Thread(target=context.run, args=args, name=name, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(_LOOK)
    return outcomes

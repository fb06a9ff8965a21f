"""Progress of asynchronous operations: one communication thread per process, order per group."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from typing import Any, Protocol

from ..errors import GroupFailed
from .backend import Backend, Operation, nanoseconds_until
from .request import Steps
from .work import Work

__all__ = ["Bell", "Flow", "Progress"]

_log = logging.getLogger("hpcpar")
# Pauses between two looks at operations that did not move: short at first, so that small messages
# are fast; longer later, so that a thread that waits leaves the core to the computation.
_FIRST_PAUSE, _LAST_PAUSE = 20e-6, 500e-6
_SIGNALS = 0.05
_DOZE_NS = 40_000_000  # deaths and deadlines ring no bell


class Bell(Protocol):
    """What the communication thread sleeps on where peers can wake it."""

    def listen(self) -> int:
        """Begin; the caller looks once more and then calls `sleep` with what this returned."""

    def sleep(self, heard: int, nanoseconds: int) -> None:
        """Sleep until somebody has rung since; 0 only ends the listening."""

    def wake(self) -> None:
        """Ring."""


class Flow:
    """One call on its way: its operations are started in order and tested until they end."""

    __slots__ = ("_backend", "_current", "_deadline", "_ended", "_lane", "_late", "_steps", "work")

    def __init__(
        self,
        steps: Steps,
        backend: Backend,
        work: Work,
        ended: Callable[[Work, Any, BaseException | None], None],
        deadline: float | None,
        late: Callable[[list[Operation]], BaseException],
        lane: int = 1,
    ) -> None:
        self._steps, self._lane = steps, lane
        self._backend = backend
        self._current: list[Operation] | None = None
        self._ended = ended
        self._deadline = deadline
        self._late = late
        self.work = work

    def advance(self) -> bool:
        """Move on without blocking; return whether the call has ended."""
        try:
            while self._current is None or self._tested():
                step = next(self._steps)
                self._current = step if isinstance(step, list) else [step]
                for op in self._current:
                    op.lane, op.deadline = self._lane, self._deadline
                    self._backend.start(op)
        except StopIteration as stop:
            self._ended(self.work, stop.value, None)
        except BaseException as error:  # the caller's thread raises it from wait()
            self._ended(self.work, None, error)
        else:
            return False
        return True

    @property
    def operations(self) -> list[Operation]:
        """What was begun last."""
        return self._current or []

    def is_rung(self) -> bool:
        """Whether a bell rings when its operations, which have not ended, can move on."""
        return all(map(self._backend.rings, self.operations))

    def linger(self, seconds: float) -> bool:
        """Sleep until its one operation ends; return whether it has one that tells."""
        if self._current is None or len(self._current) != 1 or not self.is_rung():
            return False
        self._backend.linger(self._current[0], seconds)
        return True

    def _tested(self) -> bool:
        assert self._current is not None
        late = [op for op in self._current if not self._backend.test(op)]
        if not late:
            return True
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise self._late(late)
        return False


class Progress:
    """Moves flows on: in order per key, keys independent of each other.

    Attributes
    ----------
    threaded : bool
        Whether a communication thread may run; without it flows move in `wait`, in `done` and
        while blocking calls wait.
    changed : list of callable
        Called, where there is no thread, when the first flow has come and when the last has gone.

    Parameters
    ----------
    bell : Bell, optional
        Where peers ring it; without one, or for operations that ring none, it looks now and then.
    why : str
        Why there may be no thread: said once, when the first call would have needed it.
    """

    def __init__(self, threaded: bool, bell: Bell | None = None, why: str = "") -> None:
        self.threaded, self._why = threaded, why
        self.changed: list[Callable[[], None]] = []
        self._bell = bell
        self._queues: dict[Hashable, deque[Flow]] = {}
        self._mutex = threading.Lock()
        self._tokens: SimpleQueue[None] = SimpleQueue()  # what the thread waits for if it is idle
        self._turning = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._pid = os.getpid()

    def submit(self, key: Hashable, flow: Flow) -> None:
        """Queue `flow` behind the flows of `key`; with key None it starts now, on this thread.

        So messages keep the order of the calls, also with those of blocking calls.
        """
        if key is None:
            if flow.advance():
                return
            key = flow
        with self._mutex:
            if key in self._queues:
                self._queues[key].append(flow)
            else:
                self._queues[key] = deque([flow])
            if not self.threaded and self._why:
                _log.warning("%s: asynchronous operations move on in wait() and done().", self._why)
                self._why = ""
            if self.threaded and self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="hpcpar-comm", daemon=True)
                self._thread.start()
            self._rouse()
            is_first = len(self._queues) == 1 and not self.threaded
        if is_first:
            self._tell()

    @property
    def is_waiting(self) -> bool:
        """Whether flows wait for this thread to move them on."""
        return not self.threaded and bool(self._queues)

    def carry(self, is_done: Callable[[], bool], deadline: float | None) -> bool:
        """Move flows on until `is_done`; return False when the deadline passed first."""
        self._turn()  # once at least: a loop of calls that end at once would starve them
        return self._turn_until(is_done, deadline, self._rest)

    def _turn_until(
        self, is_done: Callable[[], bool], end: float | None, rest: Callable[[float], float]
    ) -> bool:
        pause = _FIRST_PAUSE
        while not is_done():
            moved = self._turn()
            if end is not None and time.monotonic() >= end:
                return False
            pause = _FIRST_PAUSE if moved else rest(pause)
        return True

    def _tell(self) -> None:
        for told in self.changed:
            told()

    def _rouse(self) -> None:
        self._tokens.put(None)
        if self._bell is not None:
            self._bell.wake()

    def drive(self, work: Work, timeout: float | None) -> None:
        """Return when `work` is done or `timeout` seconds have passed."""
        if os.getpid() != self._pid:
            raise GroupFailed("wait: this process was forked from the rank that waits.")
        end = None if timeout is None else time.monotonic() + timeout
        if self.threaded:
            self._watch(work, end)
            return
        self._turn_until(lambda: work.join(0), end, lambda pause: self._rest_or_doze(pause, end))

    def _watch(self, work: Work, end: float | None) -> None:
        """Wait in slices, so that signals are seen."""
        while True:
            left = _SIGNALS if end is None else min(_SIGNALS, end - time.monotonic())
            if work.join(max(0.0, left)) or left <= 0:
                return

    def drain(self, timeout: float) -> bool:
        """Wait for every queued flow; return whether all ended."""
        end = time.monotonic() + timeout
        while self._queues and time.monotonic() < end:
            if not self.threaded:
                self._turn()
            time.sleep(1e-3)
        return not self._queues

    def stop(self) -> None:
        """End the communication thread; queued flows stay where they are."""
        self._stopping = True
        self._rouse()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)
        self._bell = None  # it holds memory

    def _loop(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping:
            while not self._queues and not self._stopping:
                self._tokens.get()
            pause = _FIRST_PAUSE if self._turn() else self._rest_or_doze(pause, None)

    def _all_ring(self) -> bool:
        return not self._stopping and all(flow.is_rung() for flow in self._heads())

    def _rest_or_doze(self, pause: float, end: float | None) -> float:
        """Sleep for a while, until a bell rings where one can; return how long next time."""
        if pause >= _LAST_PAUSE and self._bell is not None and self._all_ring():
            self._doze(self._bell, nanoseconds_until(end, _DOZE_NS))
            return pause
        return self._rest(pause)

    def _rest(self, pause: float) -> float:
        with self._turning:
            heads = self._heads()
            has_lingered = len(heads) == 1 and heads[0].linger(pause)
        if not has_lingered:
            time.sleep(pause)
        return min(pause * 1.5, _LAST_PAUSE)

    def _heads(self) -> list[Flow]:
        with self._mutex:  # without it a queue may be seen empty
            return [queue[0] for queue in self._queues.values()]

    def _doze(self, bell: Bell, nanoseconds: int) -> None:
        """Sleep until a peer or a new flow rings."""
        heard = bell.listen()
        is_still = not self._turn() and self._all_ring()  # looked at since it listens
        bell.sleep(heard, nanoseconds if is_still else 0)

    def _turn(self) -> bool:
        """Give every head flow one chance; return whether one ended."""
        ended = False
        with self._turning:
            for key, queue in list(self._queues.items()):
                while queue and queue[0].advance():
                    ended = True
                    with self._mutex:
                        if len(queue) == 1:
                            del self._queues[key]
                        queue.popleft()
        if ended and not self.threaded and not self._queues:
            self._tell()
        return ended

"""Starts the reduction of each bucket once it is full, in the order of the plan, and ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..comm.group import Group
from ..comm.record import Entry, busy_seconds
from ..comm.work import Work
from ..errors import MismatchError
from .bucket import Bucket
from .hooks import Flow

__all__ = ["Reducer"]


@dataclass
class _Running:
    """A bucket on its way."""

    index: int
    flow: Flow
    work: Work | None = None


class Reducer:
    """The reductions of one step.

    Parameters
    ----------
    buckets
        The plan.
    begin
        Returns the flow of a bucket by its index.
    groups
        Those of the buckets.

    Attributes
    ----------
    error
        The first error of a reduction that the ranks agreed on; the group works on.
    is_broken
        Whether a flow ended with an exception here, so that others may wait for its operations.
    seconds
        Time spent on starting reductions.
    """

    def __init__(
        self, buckets: Sequence[Bucket], begin: Callable[[int], Flow], groups: Sequence[Group]
    ) -> None:
        self.error: MismatchError | None = None
        self.is_broken = False
        self.seconds = 0.0
        self._buckets, self._begin = buckets, begin
        self._pending = [len(bucket.names) for bucket in buckets]
        self._running: list[_Running] = []
        self._records = [_Records(group) for group in groups]

    @property
    def num_started(self) -> int:
        """How many buckets are on their way, or done."""
        return len(self._running)

    def arrived(self, index: int, count: int = 1) -> None:
        """Count gradients of bucket `index`; start what is full and next."""
        self._pending[index] -= count
        self._start_full()

    def start_all(self) -> None:
        """Start the buckets that are left, full or not."""
        self._pending = [0] * len(self._pending)
        self._start_full()

    def _start_full(self) -> None:
        index = len(self._running)
        while index < len(self._buckets) and not self._pending[index]:
            began = time.perf_counter()
            running = _Running(index, self._begin(index))
            self._running.append(running)
            self._advance(running, None)
            self.seconds += time.perf_counter() - began
            index += 1

    def _advance(self, running: _Running, result: object) -> None:
        """Send a flow the result of its last operation; keep the next."""
        records = self._records[self._buckets[running.index].group]
        records.note()
        try:
            running.work = running.flow.send(result)
        except StopIteration:
            running.work = None
            records.forget()
        except BaseException:
            self.is_broken = True
            raise
        else:
            # Seen here, so that no later call on the group raises the error of this one.
            running.work.on_done(Work.exception)

    def settle(self) -> None:
        """Wait for the operations that have begun, and begin no more."""
        for running in self._running:
            self._wait(running)
            running.flow.close()

    def finish(self) -> Iterator[int]:
        """Carry all buckets to their ends; yield the index of each whose mean is there."""
        left = self._running
        while left:
            again = []
            for running in left:
                is_done, result = self._wait(running)
                if not is_done:
                    continue
                if running.work is not None:
                    self._advance(running, result)
                if running.work is None:
                    yield running.index
                else:
                    again.append(running)
            left = again

    def _wait(self, running: _Running) -> tuple[bool, object]:
        """Wait for a flow's operation; return whether it went well, and its result."""
        try:
            return True, running.work and running.work.wait()
        except MismatchError as exc:  # the ranks agree on it, and the group works on
            self.error = self.error or exc
            return False, None

    def traffic(self) -> tuple[float, int]:
        """Return seconds in which a reduction was on its way, and bytes sent; from the record."""
        entries = [entry for records in self._records for entry in records.entries()]
        seconds = busy_seconds((e.start_ns, e.end_ns) for e in entries if e.end_ns)
        return seconds, sum(entry.sent for entry in entries)


class _Records:
    """Which records of a group are those of reductions."""

    def __init__(self, group: Group) -> None:
        self._recorder = group.recorder
        self._slot = group.home.register(group.name, group.rank, group.ranks)
        self._numbers: set[int] = set()

    def note(self) -> None:
        """Take note that the group's next operation is one."""
        self._number = self._recorder.seq(self._slot)
        self._numbers.add(self._number)

    def forget(self) -> None:
        """There was none."""
        self._numbers.discard(self._number)

    def entries(self) -> list[Entry]:
        """Return the records."""
        if not self._numbers:
            return []
        newest = self._recorder.last(2 * len(self._numbers) + 8)
        mine, numbers = self._slot, self._numbers
        return [Entry(*r) for r in newest if r[0] == mine and r[1] in numbers]

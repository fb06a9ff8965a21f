"""The roll: which ranks failed, which have left, and who speaks for the job when it ends."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TextIO

from .channel import Channel

__all__ = ["Departure", "Failure", "Kind", "Pace", "Roll", "last_words"]

_FAILED, _LEFT, _ASK, _TOLD = range(1, 5)
# A failing rank tells only this many others, so that the messages of a whole failing job stay
# linear in its size; above it two reports may be printed.
_HEARERS = 64
_HUB = 0


class Kind(IntEnum):
    """Why a rank ends the job; a smaller value is nearer to the root cause."""

    ERROR = 0
    EXIT = 1
    DEADLINE = 2
    STUCK = 3
    CONSEQUENCE = 4
    INTERRUPT = 5


# What follows from another rank's failure is not worth a word beside it.
_ROOTS = (Kind.ERROR, Kind.EXIT, Kind.DEADLINE)


@dataclass(frozen=True)
class Failure:
    """One rank's reason to end the job.

    Attributes
    ----------
    kind : Kind
        Sort of reason.
    code : int
        Exit code for the job.
    summary : str
        One line, named in the report of another rank.
    report : str
        The whole text, printed if this rank is the one that speaks.
    """

    kind: Kind
    code: int
    summary: str
    report: str


@dataclass(frozen=True)
class Departure:
    """How a rank left.

    Attributes
    ----------
    code : int
        Its exit code, as far as known.
    done : mapping
        Number of collectives it had finished, by group key.
    """

    code: int
    done: Mapping[str, int]


@dataclass(frozen=True)
class Pace:
    """Times of the guard, in seconds.

    Attributes
    ----------
    period : float
        Between two looks of the watchdog.
    gone : float
        An operation open for longer is checked against the ranks that left.
    late : float
        Between two log lines about an operation that waits.
    together : float
        Ranks that fail within this time share one report.
    leave : float
        A rank that leaves with an exit code gives the others this time to leave too.
    yield_to : float
        Time for another rank to speak and end the job.
    """

    period: float = 0.5
    gone: float = 1.0
    late: float = 60.0
    together: float = 0.3
    leave: float = 1.0
    yield_to: float = 5.0


class Roll:
    """Failures and departures of all ranks, exchanged over a control channel.

    Rank 0 keeps the list of those who left; a rank that waits asks it. Failures are told at once.

    Parameters
    ----------
    channel : Channel
        The control channel.
    pace : Pace
        Times.
    """

    def __init__(self, channel: Channel, pace: Pace) -> None:
        self._channel, self._pace = channel, pace
        self._left: dict[int, Departure] = {}
        self._failed: dict[int, tuple[Kind, str]] = {}
        self._launcher = os.getppid()
        self._reading = threading.Lock()
        self._ending = threading.Lock()

    def poll(self) -> None:
        """Take in all messages that have come, and answer questions. Local."""
        with self._reading:
            while (message := self._channel.receive()) is not None:
                self._take(*message)

    def ask(self, key: str) -> None:
        """Ask rank 0 who has left, and how far they came in group `key`. Local."""
        if self._channel.rank != _HUB:
            self._channel.send(_HUB, _ASK, key.encode())

    def left(self) -> dict[int, Departure]:
        """Return the departures known here, by rank. Local."""
        return dict(self._left)

    def leave(self, departure: Departure, lost: Callable[[], bool] = lambda: False) -> bool:
        """Announce that this rank leaves, and wait quietly until all have; return whether they did.

        Collective over all ranks. With an exit code, the job ends if others stay for long. Once
        `lost` says that a rank has died, nobody is waited for.
        """
        self._announce(departure)
        self._channel.arrive()
        failure = _exit_failure(departure.code) if departure.code else None
        if failure is not None:
            self._tell(failure)
        began, nap = time.monotonic(), 0.001
        while not self._channel.all_arrived():
            if lost():
                return False
            self.poll()
            if failure is not None and time.monotonic() - began > self._pace.leave:
                self._speak_or_yield(failure)
            time.sleep(nap)
            nap = min(2 * nap, 0.02)
        self.poll()
        return True

    def fail(self, failure: Failure, leave: Callable[[int], object] | None = None) -> None:
        """End the job with one report for all ranks that fail together. Does not return.

        With `leave` this rank ends by calling it with the exit code, and leaves the others alone.
        """
        with self._ending:
            self._tell(failure)
            patient = failure.kind is Kind.CONSEQUENCE
            until = time.monotonic() + (self._pace.leave if patient else self._pace.together)
            while time.monotonic() < until and len(self._failed) < self._channel.size:
                time.sleep(0.01)
                self.poll()
            self._speak_or_yield(failure, leave)

    def _announce(self, departure: Departure) -> None:
        if self._channel.rank == _HUB:
            self._left[_HUB] = departure
        else:
            said = json.dumps([departure.code, dict(departure.done)])
            self._channel.send(_HUB, _LEFT, said.encode())

    def _tell(self, failure: Failure) -> None:
        self._failed[self._channel.rank] = (failure.kind, failure.summary)
        said = json.dumps([failure.kind, failure.summary[:200]]).encode()
        for rank in range(min(self._channel.size, _HEARERS)):
            if rank != self._channel.rank:
                self._channel.send(rank, _FAILED, said)

    def _take(self, src: int, tag: int, data: bytes) -> None:
        if tag == _FAILED:
            kind, summary = json.loads(data)
            self._failed[src] = (Kind(kind), summary)
        elif tag == _LEFT:
            code, done = json.loads(data)
            self._left[src] = Departure(code, done)
        elif tag == _ASK:
            self._channel.send(src, _TOLD, self._answer(data.decode()))
        else:
            assert tag == _TOLD
            key, rows = json.loads(data)
            self._left |= {rank: Departure(code, {key: done}) for rank, code, done in rows}

    def _answer(self, key: str) -> bytes:
        rows = [(rank, gone.code, gone.done.get(key, 0)) for rank, gone in self._left.items()]
        return json.dumps([key, rows]).encode()

    def _speak_or_yield(
        self, failure: Failure, leave: Callable[[int], object] | None = None
    ) -> None:
        """Let the lowest rank with a root cause print; then end the job, whoever comes first."""
        failed = dict(self._failed)  # the watchdog may be adding
        if min(failed, key=lambda rank: (failed[rank][0], rank)) == self._channel.rank:
            self._print(failure)
        elif leave is None:
            self._yield()
        (leave or self._channel.abort)(failure.code)

    def _yield(self) -> None:
        """Wait for another rank to end the job."""
        until = time.monotonic() + self._pace.yield_to
        # Open MPI with fault tolerance may end the job and leave a rank alone behind.
        while time.monotonic() < until and os.getppid() == self._launcher:
            time.sleep(0.05)

    def _print(self, failure: Failure) -> None:
        me = self._channel.rank
        told = sorted(dict(self._failed).items())
        others = [
            f"rank {rank} ({summary})"
            for rank, (kind, summary) in told
            if rank != me and (kind in _ROOTS or kind is failure.kind)
        ]
        lines = failure.report.rstrip("\n").split("\n")
        if others:
            lines.append(f"failed too: {', '.join(others)}")
        prefix = f"[rank {me}/{self._channel.size}] "
        sys.stdout.flush()
        out = last_words()
        out.write("".join(f"{prefix}{line}\n" for line in lines))
        out.flush()
        time.sleep(0.1)  # a launcher that is told to abort may drop what it has not read yet


def last_words() -> TextIO:
    """Return where to write what must be read though the process ends: standard error.

    torch's excepthook collects what hooks before it write, to print it when they return.
    """
    real = sys.__stderr__
    return real if real is not None and isinstance(sys.stderr, io.StringIO) else sys.stderr


def _exit_failure(code: int) -> Failure:
    text = f"left with exit code {code}"
    report = f"{text} while other ranks were still at work; the job ends."
    return Failure(Kind.EXIT, code, text, report)

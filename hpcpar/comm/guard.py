"""What `init` installs so that one rank's failure ends the job instead of hanging it.

MPI_Finalize waits for all ranks, so a rank that raises or exits leaves the others blocked in their
next operation until the wall time is over. The guard hooks the three ways out of Python (an
uncaught exception, ``sys.exit``, the end of the script), and a watchdog thread looks at operations
that stay open. What no hook can see, ``os._exit`` and kills, is the launcher's business.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, NoReturn

from ..errors import GroupFailed, RankFailed
from .channel import Channel
from .roll import Departure, Failure, Kind, Pace, Roll
from .where import last_lines, own_story

__all__ = ["Guard", "Waiting", "Watched"]

_log = logging.getLogger("hpcpar")
_INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


class Waiting(NamedTuple):
    """An operation that has begun and not ended, as the watchdog sees it.

    Attributes
    ----------
    text : str
        Names it in messages: ``"all_reduce #17 of group 'world'"``.
    seconds : float
        For how long it has been open.
    ranks : tuple of int
        Ranks of the job that it needs.
    limit : float or None
        Seconds after which the watchdog ends the job; None when the operation keeps its own time.
    key : str
        Which group, unique on this rank.
    done : int or None
        How many collectives this rank has finished in that group; a rank that left with more has
        done its part of this one. None for point-to-point operations.
    all_needed : bool
        False when one of `ranks` is enough (a receive from anybody).
    """

    text: str
    seconds: float
    ranks: tuple[int, ...]
    limit: float | None
    key: str = ""
    done: int | None = None
    all_needed: bool = True


@dataclass(frozen=True)
class Watched:
    """What the guard asks about this rank's operations; each is called from any thread.

    Attributes
    ----------
    oldest_open : callable
        Returns the `Waiting` that has been open longest, or None.
    begun : callable
        Returns the number of operations begun so far, of any sort.
    done : callable
        Returns the number of collectives finished, by group key.
    last : callable
        Returns the last operations as text, one a line, for the report.
    lost : callable
        Returns whether a rank is known to have died.
    last_of : callable
        Returns what another rank of the job did last, or None if its record cannot be read.
    """

    oldest_open: Callable[[], Waiting | None]
    begun: Callable[[], int]
    done: Callable[[], Mapping[str, int]]
    last: Callable[[], str]
    lost: Callable[[], bool] = lambda: False
    last_of: Callable[[int], str | None] = lambda rank: None


class Guard:
    """Ends the job when a rank fails or leaves too early; costs nothing per operation.

    Parameters
    ----------
    channel : Channel
        The control channel of all ranks of the job; the guard closes it.
    watched : Watched
        Looks at this rank's operations.
    pace : Pace
        Times.
    """

    def __init__(self, channel: Channel, watched: Watched, pace: Pace | None = None) -> None:
        self._channel, self._watched, self._pace = channel, watched, pace or Pace()
        self._roll = Roll(channel, self._pace)
        self._installed = False
        self._pid = os.getpid()
        self._noted = (0, 0)
        self._stop = threading.Event()
        self._watchdog: threading.Thread | None = None
        self._asked = 0.0
        self._logged = 0.0

    def install(self) -> None:
        """Set the hooks and start the watchdog. Local.

        Below MPI_THREAD_MULTIPLE there is no watchdog: exceptions and exit codes still end the
        job, but a rank that waits for one that left quietly waits for ever.
        """
        self._installed = True
        self._old_excepthook, self._old_exit = sys.excepthook, sys.exit
        self._hook, self._exit_hook = self._on_exception, self._on_exit
        sys.excepthook = self._hook
        setattr(sys, "exit", self._exit_hook)  # noqa: B010 - a plain assignment is no valid type
        atexit.register(self._at_exit)
        self._channel.on_finalize(self._disarm)
        if self._channel.threads:
            self._watchdog = threading.Thread(target=self._watch, name="hpcpar-guard", daemon=True)
            self._watchdog.start()

    def uninstall(self) -> None:
        """Wait until all ranks have come here or left, and take the hooks back.

        Collective over the ranks of the job. While an exception is on its way out the hooks stay:
        a ``finally: shutdown()`` must not hide the failure from the other ranks. So they do after
        a rank's death.
        """
        if self._active() and sys.exception() is None:
            self._leave(0)

    def _active(self) -> bool:
        """Tell whether hooks may act: not in a forked child, not after MPI's end."""
        return self._installed and os.getpid() == self._pid and self._channel.alive()

    def _leave(self, code: int) -> bool:
        """Leave together with the others; return False, and stay, if one of them has died."""
        self._stop_watchdog()
        departure, lost = Departure(code, self._watched.done()), self._watched.lost
        if lost() or not self._roll.leave(departure, lost):
            return False
        self._disarm()
        self._channel.close()
        return True

    def _disarm(self) -> None:
        """Take back hooks and thread without a word to others: MPI is about to end."""
        self._installed = False
        self._stop_watchdog()
        atexit.unregister(self._at_exit)
        if sys.excepthook is self._hook:
            sys.excepthook = self._old_excepthook
        if sys.exit is self._exit_hook:
            setattr(sys, "exit", self._old_exit)  # noqa: B010

    def _stop_watchdog(self) -> None:
        self._stop.set()
        if self._watchdog not in (None, threading.current_thread()):
            assert self._watchdog is not None
            self._watchdog.join(timeout=10)

    # The three ways out.

    def _on_exception(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        if not self._active():
            self._old_excepthook(kind, error, trace)
        elif isinstance(error, KeyboardInterrupt):
            text = "interrupted (Ctrl-C)"
            self._roll.fail(Failure(Kind.INTERRUPT, _INTERRUPTED, text, text))
        else:
            sort = Kind.CONSEQUENCE if _is_consequence(error) else Kind.ERROR
            written = io.StringIO()
            with contextlib.redirect_stderr(written):
                self._old_excepthook(kind, error, trace)
            summary = f"{kind.__name__}: {error}".partition("\n")[0]
            failure = Failure(sort, 1, summary, written.getvalue())
            # MPI that goes on after a death may not end the job, nor with a code, when told to.
            self._roll.fail(failure, _exit_now if self._watched.lost() else None)

    def _on_exit(self, status: object = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            self._noted = (_exit_code(status), self._watched.begun())
        self._old_exit(status)  # type: ignore[arg-type]  # sys.exit takes any object

    def _at_exit(self) -> None:
        if self._active():
            code, begun = self._noted
            # Operations after sys.exit(): the SystemExit was caught and the script went on.
            code = code if begun == self._watched.begun() else 0
            if not self._leave(code):
                _exit_now(code or 1)

    # The watchdog.

    def _watch(self) -> None:
        while not self._stop.wait(self._pace.period):
            if self._channel.rank == 0:
                self._roll.poll()
            waiting = self._watched.oldest_open()
            if waiting is not None:
                self._inspect(waiting)

    def _inspect(self, waiting: Waiting) -> None:
        if waiting.limit is not None and waiting.seconds > waiting.limit:
            text = f"{waiting.text}: not done within {waiting.limit:g} s"
            self._end(Kind.DEADLINE, f"CollectiveTimeout: {text}", "")
        if waiting.seconds > self._pace.gone:
            self._look_for_leavers(waiting)
        if waiting.seconds - self._logged_for(waiting) >= self._pace.late:
            self._logged = time.monotonic()
            rank = self._channel.rank
            _log.warning("rank %d waits in %s since %.0f s", rank, waiting.text, waiting.seconds)

    def _logged_for(self, waiting: Waiting) -> float:
        """How old the operation was at its last log line; 0 before the first."""
        return max(0.0, waiting.seconds - (time.monotonic() - self._logged))

    def _look_for_leavers(self, waiting: Waiting) -> None:
        now = time.monotonic()
        # Ask ever less often as the wait grows: jobs with slow steps wait all the time.
        if now - self._asked > min(8.0, waiting.seconds / 2):
            self._asked = now
            self._roll.ask(waiting.key)
        self._roll.poll()
        left = self._roll.left()
        needed = [rank for rank in waiting.ranks if rank != self._channel.rank]
        gone = [rank for rank in needed if _misses(left.get(rank), waiting)]
        if gone and (waiting.all_needed or gone == needed):
            names = ", ".join(f"rank {rank} (exit code {left[rank].code})" for rank in gone)
            verb = "has" if len(gone) == 1 else "have"
            self._end(
                Kind.STUCK,
                f"RankFailed: {waiting.text}: {names} {verb} left, and this rank waits",
                f" since {waiting.seconds:.1f} s. All ranks of a group must make the same calls "
                "before they leave.",
                gone,
            )

    def _end(self, kind: Kind, summary: str, more: str, gone: Sequence[int] = ()) -> None:
        others = "".join(f"{line}\n" for line in last_lines(gone, self._watched.last_of))
        own = own_story(self._watched.last())
        self._roll.fail(Failure(kind, 1, summary, f"{summary}{more}\n{others}{own}"))


def _exit_now(code: int) -> NoReturn:
    """End this process without MPI_Finalize, which would wait for a dead rank."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _misses(departure: Departure | None, waiting: Waiting) -> bool:
    """Tell whether a rank left without having done its part of the operation."""
    if departure is None:
        return False
    return waiting.done is None or departure.done.get(waiting.key, 0) <= waiting.done


def _is_consequence(error: BaseException | None) -> bool:
    """Tell whether the error, or what it was raised from, only reports another rank's failure."""
    while error is not None:
        if isinstance(error, RankFailed | GroupFailed):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _exit_code(status: object) -> int:
    """Give the process's exit code for an argument of ``sys.exit``."""
    if status is None:
        return 0
    if isinstance(status, int):
        return status & 0xFF
    return 1

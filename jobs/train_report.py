"""What the training job shows: a progress bar or plain lines, a loss plot, when to stop."""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from hpcpar.parallel import StepTimes

#: Set by ``hpcpar run`` on a terminal: ranks only see the launcher's pipe.
COLUMNS = "HPCPAR_COLUMNS"


def printable(text: str) -> str:
    """Return `text` without what standard output cannot encode or a terminal would obey."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "replace").decode(encoding)


class Report(ABC):
    """Where rank 0 shows how the job goes; the other ranks show nothing."""

    @abstractmethod
    def step(self, number: int, loss: float, tokens_per_second: float, times: StepTimes) -> None:
        """Show a finished step, counted from 1."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a line that stays."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Stop showing steps."""


class Silence(Report):
    """For the other ranks."""

    def step(self, number: int, loss: float, tokens_per_second: float, times: StepTimes) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""


class Lines(Report):
    """One line per step, for files and pipes."""

    def step(self, number: int, loss: float, tokens_per_second: float, times: StepTimes) -> None:
        """Print the step and the loss to 12 digits."""
        print(f"step {number} loss {loss:#.12g}", flush=True)

    def note(self, text: str) -> None:
        """Print the line."""
        print(printable(text), flush=True)


class Bar(Report):
    """A progress bar with loss, speed, waiting for communication and time left."""

    def __init__(self, done: int, total: int) -> None:
        from rich import console, progress

        columns = os.environ.get(COLUMNS)  # set: there is a terminal, at the launcher's end
        terminal = console.Console(
            force_terminal=True if columns else None, width=int(columns) if columns else None
        )
        self._bar = progress.Progress(
            progress.TextColumn("step {task.completed}/{task.total}"),
            progress.BarColumn(),
            progress.TextColumn("loss {task.fields[loss]:.4f}"),
            progress.TextColumn("{task.fields[speed]:,.0f} tokens/s"),
            progress.TextColumn("{task.fields[times]}"),
            progress.TimeRemainingColumn(),
            console=terminal,
        )
        self._task = self._bar.add_task(
            "train", total=total, completed=done, loss=float("nan"), speed=0.0, times=""
        )
        self._bar.start()

    def step(self, number: int, loss: float, tokens_per_second: float, times: StepTimes) -> None:
        """Move the bar."""
        said = f"waiting {times.wait_share:.0%}"
        if times.communicating:
            said += f", {times.overlap:.0%} hidden, {times.busbw / 1e9:.1f} GB/s"
        self._bar.update(
            self._task, completed=number, loss=loss, speed=tokens_per_second, times=said
        )

    def note(self, text: str) -> None:
        """Print the line above the bar."""
        self._bar.console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def make_report(rank: int, done: int, total: int) -> Report:
    """Return a bar on a terminal, lines elsewhere, silence on ranks other than 0."""
    if rank != 0:
        return Silence()
    if not sys.stdout.isatty() and COLUMNS not in os.environ:
        return Lines()
    try:
        return Bar(done, total)
    except ImportError:
        return Lines()


class Stop:
    """True once this rank wants to end early: Ctrl-C, SIGTERM, or out of time.

    The signal only sets a flag; the job acts on it at the end of a step, on all ranks at once.
    A second signal of the kind acts as it did before.
    """

    def __init__(self, max_minutes: float | None) -> None:
        self._end = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._signalled = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self._signalled or (self._end is not None and time.monotonic() > self._end)

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in list(self._before):
            self._restore(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        self._restore(number)

    def _restore(self, number: int) -> None:
        if number in self._before:
            before = self._before.pop(number)
            signal.signal(number, signal.SIG_DFL if before is None else before)


def plot_losses(path: Path, losses: Sequence[float], validation: Mapping[int, float]) -> bool:
    """Draw training and validation loss over steps; return False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    axes = (figure := Figure(figsize=(7, 4), layout="constrained")).add_subplot()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=1, label="training")
    axes.plot(list(validation), list(validation.values()), "o", label="validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per byte)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return True

"""Where an error happened: rank, group, sequence number and call site, put into its message."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence

from ..errors import (
    CollectiveTimeout,
    GroupFailed,
    HpcparError,
    MismatchError,
    RankFailed,
)

__all__ = ["add_last", "call_site", "last_lines", "located", "own_story", "place"]

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SENTENCE = re.compile(r"\.(?=\s+[A-Z])|\.$")
#: Errors in whose story earlier operations have a part.
_WITH_HISTORY = (CollectiveTimeout, GroupFailed, MismatchError, RankFailed)
_HISTORY = "last operations of this rank:"
_MOST_TOLD = 4


def place(error: HpcparError, here: str, history: str = "") -> None:
    """Put `here` into the message behind its first sentence; add the last operations as a note."""
    message = str(error)
    if "[rank " not in message:
        text, found = _SENTENCE.subn(f" {here}.", message, count=1)
        error.args = (text if found else f"{message} {here}",)
    if history and isinstance(error, _WITH_HISTORY) and not _has_history(error):
        error.add_note(own_story(history))


def own_story(history: str) -> str:
    """Return the last operations of this rank with a line that says so."""
    return f"{_HISTORY}\n{history}"


def _has_history(error: HpcparError) -> bool:
    return any(note.startswith(_HISTORY) for note in getattr(error, "__notes__", ()))


def add_last(
    error: HpcparError, ranks: Sequence[int], last_of: Callable[[int], str | None]
) -> None:
    """Add a note on what the ranks that an error names did last, where that can be known."""
    lines = last_lines(ranks, last_of)
    if lines:
        error.add_note("\n".join(lines))


def last_lines(ranks: Sequence[int], last_of: Callable[[int], str | None]) -> list[str]:
    """Return a line for each of the first 4 of `ranks` that says what it did last."""
    told = ((rank, last_of(rank)) for rank in ranks[:_MOST_TOLD])
    return [f"rank {rank} last: {words}" for rank, words in told if words is not None]


class located:  # noqa: N801 - a context like those of contextlib, without their cost
    """Let HpcparErrors of the block say where they happened."""

    __slots__ = ("_here", "_history")

    def __init__(self, here: Callable[[], str], history: Callable[[], str] | None = None) -> None:
        self._here, self._history = here, history

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HpcparError):
            place(error, self._here(), self._history() if self._history is not None else "")


def call_site() -> str:
    """Return ``file:line`` of the innermost caller outside the package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"

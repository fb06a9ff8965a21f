"""Which message goes to which receive: the first that fits, in the order both were issued."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from .backend import Operation

__all__ = ["Matching"]


class _Envelope(Protocol):
    """What matching looks at."""

    @property
    def source(self) -> int:
        """Who sent it."""

    @property
    def tag(self) -> int:
        """Its tag."""


class Matching:
    """The receives of one rank that wait, in the order of their calls.

    Callers hold a lock of their own.
    """

    def __init__(self) -> None:
        self._waiting: list[Operation] = []

    def post(self, op: Operation) -> None:
        """Put a "recv" at the end of the line; those that missed their deadline leave it."""
        self._waiting = [w for w in self._waiting if _is_live(w)]
        self._waiting.append(op)

    def take(self, op: Operation, messages: Sequence[_Envelope]) -> int | None:
        """Return the place of the message for `op`, which then leaves the line, or None."""
        found = self.find(op, messages)
        if found is not None and op in self._waiting:  # not if its deadline has just passed
            self._waiting.remove(op)
        return found

    def find(self, op: Operation, messages: Sequence[_Envelope]) -> int | None:
        """Return the place of the first message for `op` that no earlier receive will take."""
        line = [w for w in self._waiting if w is op or _is_live(w)]
        for place, message in enumerate(messages):
            taker = next((w for w in line if _fits(w, message)), None)
            if taker is op or (taker is None and _fits(op, message)):
                return place
            if taker is not None:
                line.remove(taker)
        return None


def _is_live(op: Operation) -> bool:
    return op.deadline is None or time.monotonic() <= op.deadline


def _fits(op: Operation, message: _Envelope) -> bool:
    return op.root in (None, message.source) and op.tag in (None, message.tag)

"""Where an error happened: rank, group, sequence number and call site, put into its message."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import (
    CollectiveTimeout,
    GroupFailed,
    HpcparError,
    MismatchError,
    RankFailed,
)

__all__ = ["call_site", "located", "place"]

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SENTENCE = re.compile(r"\.(?=\s+[A-Z])|\.$")
#: Errors in whose story earlier operations have a part.
_WITH_HISTORY = (CollectiveTimeout, GroupFailed, MismatchError, RankFailed)


def place(error: HpcparError, here: str, history: str = "") -> None:
    """Put `here` into the message behind its first sentence; add the last operations as a note."""
    message = str(error)
    if "[rank " not in message:
        text, found = _SENTENCE.subn(f" {here}.", message, count=1)
        error.args = (text if found else f"{message} {here}",)
    if history and isinstance(error, _WITH_HISTORY) and not hasattr(error, "__notes__"):
        error.add_note(f"last operations of this rank:\n{history}")


@contextmanager
def located(here: Callable[[], str], history: Callable[[], str] | None = None) -> Iterator[None]:
    """Let HpcparErrors of the block say where they happened."""
    try:
        yield
    except HpcparError as error:
        place(error, here(), history() if history is not None else "")
        raise


def call_site() -> str:
    """Return ``file:line`` of the innermost caller outside the package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"

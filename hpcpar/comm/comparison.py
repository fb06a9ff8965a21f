"""Which calls of a group the ranks compare before data moves, and what they make of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import HpcparError
from .agree import Header, different_sites, disagreement, mismatch
from .backend import Backend, Operation
from .request import Request, View
from .settings import Settings

__all__ = ["Comparison"]

_log = logging.getLogger("hpcpar")
_CHECKED_NBYTES = 65536
_CHECKED_CALLS = 16
_SIGNATURES = 4096


class Comparison:
    """The comparing of one group's calls, on this rank.

    Parameters
    ----------
    settings
        Whose `check` says how much is compared.
    backend, view
        The group's.
    here
        Names an operation by its number, for messages.
    forget
        Called when what was learned about calls is dropped.
    """

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        view: View,
        here: Callable[[int], str],
        forget: Callable[[], None],
    ) -> None:
        self._settings, self._backend, self._view = settings, backend, view
        self._here, self._forget = here, forget
        self._seen: dict[object, int] = {}
        self._told: set[str] = set()

    @property
    def takes_sites(self) -> bool:
        """Whether the lines of the program that make a call are compared too."""
        return self._settings.check == "full" and self._view.size > 1

    def is_settled(self, request: Request) -> bool:
        """Whether calls like `request` will not be compared any more."""
        if self.takes_sites:
            return False
        if self._backend.compares_itself:
            return True
        if request.exchanges or self._backend.always_checks:
            return False
        if self._view.size == 1 or self._settings.check == "off":
            return True
        if request.compares:
            return False
        small = request.agreed_nbytes() < _CHECKED_NBYTES
        often = self._seen.get(request.signature(), 0) >= _CHECKED_CALLS
        return small and often

    def is_due(self, request: Request, timeout: float | None) -> bool:
        """Whether headers travel for `request`; every rank decides alike if all is well."""
        if not request.collective:
            return False
        return request.exchanges or self._is_cautious(request, timeout)

    def _is_cautious(self, request: Request, timeout: float | None) -> bool:
        """Whether headers travel for safety."""
        check = self._settings.check
        if self._view.size == 1:
            return False
        if self._backend.always_checks or check == "full" or timeout is not None:
            return True
        if check == "off":
            return False
        if request.compares or request.agreed_nbytes() >= _CHECKED_NBYTES:
            return True
        key = request.signature()
        times = self._seen.get(key, 0)
        if times == 0 and len(self._seen) >= _SIGNATURES:
            # A call that is new here is new on every rank, and on no rank takes the hot path: so
            # all forget at the same call, and go on to compare alike.
            self._seen.clear()
            self._forget()
        self._seen[key] = times + 1
        request.counted = True
        return times < _CHECKED_CALLS

    def exchange(self, request: Request, seq: int, came: list[bytes] | None = None) -> Any:
        """Yield what brings the headers of all ranks, unless they came; return them."""
        local = request.local()
        if request.site is not None:
            local = [*local, f"site={request.site}"]
        mine = Header.make(request.agreed(), local, request.length, request.weight, seq)
        if self._view.size == 1:
            return [mine]
        if came is None:
            op = Operation("exchange", np.frombuffer(mine.pack(), np.uint8))
            yield op
            came = op.result
        headers = [Header.unpack(data) for data in came or ()]
        longest = max(h.full_nbytes for h in headers)
        if not any(h.cut for h in headers):
            return headers
        text = mine.text.encode().ljust(longest, b"\0")
        op = Operation("exchange", np.frombuffer(text, np.uint8))
        yield op
        return [h.with_text(data) for h, data in zip(headers, op.result, strict=True)]

    def judge(self, request: Request, headers: Sequence[Header], seq: int) -> None:
        """Raise if the ranks mean different calls, or one refuses its own."""
        try:
            message = disagreement(headers) or request.refusal(headers)
            message = message or request.objection(headers)
            if message is not None:
                raise mismatch(message, self._here(seq))
        except HpcparError:
            self._uncount(request)
            raise
        if request.site is not None:
            self._watch_sites(headers, seq)

    def _uncount(self, request: Request) -> None:
        """Forget a call that ranks made differently: each has counted its own, not the others'."""
        key = request.signature()
        if request.counted and key in self._seen:
            self._seen[key] -= 1
            if self._seen[key] == 0:
                del self._seen[key]

    def _watch_sites(self, headers: Sequence[Header], seq: int) -> None:
        """Say once if lines differ: a rank may have skipped a call, or has a branch of its own."""
        text = different_sites(headers)
        if text is not None and text not in self._told and self._view.rank == 0:
            self._told.add(text)
            _log.warning("%s %s", text, self._here(seq))

"""Several calls one after the other, as one call or as one Work."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from ..errors import CollectiveTimeout
from .work import Work

__all__ = ["Calls", "run_chained"]

#: Yields verbs, which are called with the deadline and with or without `async_op`; is sent their
#: results, and returns the result of all.
Calls: TypeAlias = Generator[Callable[..., Any], Any, Any]


def run_chained(
    verb: str, calls: Calls, *, timeout: float | None = None, async_op: bool = False
) -> Any:
    """Make the calls and return the result of all, or the Work that stands for it.

    Parameters
    ----------
    verb
        Name of the whole, for messages.
    calls
        What to do.
    timeout
        Of each call.
    async_op
        The first call begins at once; what follows it begins in `Work.wait` and `Work.done`, which
        the ranks call in the same order then.

    Examples
    --------
    >>> import hpcpar as hp
    >>> from functools import partial
    >>> def twice(group, x):
    ...     total = yield partial(group.all_reduce, x)
    ...     return (yield partial(group.all_reduce, total, "max"))
    >>> run_chained("twice", twice(hp.as_group(), 3))
    3
    """
    if async_op:
        chain = _Chain(calls, timeout)
        work = Work(verb, chain)
        chain.go_on(work, None)
        return work
    result: Any = None
    try:
        while True:
            result = calls.send(result)(timeout=timeout)
    except StopIteration as end:
        return end.value


class _Chain:
    """Begins the next call when the one before it is done."""

    def __init__(self, calls: Calls, timeout: float | None) -> None:
        self._calls, self._timeout = calls, timeout
        self._now: Work | None = None

    def go_on(self, work: Work, result: Any) -> None:
        """Begin the next call, or end."""
        self._now = None
        try:
            self._now = self._calls.send(result)(timeout=self._timeout, async_op=True)
        except StopIteration as end:
            work.finish(end.value, None)
        except Exception as error:
            work.finish(None, error)

    def drive(self, work: Work, timeout: float | None) -> None:
        """Go on until all is done or `timeout` seconds have passed."""
        until = None if timeout is None else time.monotonic() + timeout
        while (now := self._now) is not None:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                result = now.wait(left)
            except Exception as error:
                if isinstance(error, CollectiveTimeout) and not now.done():
                    return  # the time is over, the call goes on
                self._now = None
                self._calls.close()
                work.finish(None, error)
                return
            self.go_on(work, result)

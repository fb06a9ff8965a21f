"""Work: the handle of an asynchronous operation."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import CollectiveTimeout

__all__ = ["Driver", "Work"]

_log = logging.getLogger("hpcpar")


class Driver(Protocol):
    """Who moves operations on while a Work is waited for."""

    def drive(self, work: Work, timeout: float | None) -> None:
        """Return when `work` is done or `timeout` seconds have passed."""


class Work:
    """An operation on its way, as an asynchronous verb returns it.

    Local. The arrays given to the verb are read-only until the operation is done. A Work may be
    dropped: the operation still runs; its error, if nobody waits for it, is raised by the next
    call on its group or by `shutdown`.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> work = hp.as_group().all_reduce(np.ones(2), async_op=True)
    >>> work.wait()
    array([1., 1.])
    """

    def __init__(self, verb: str, driver: Driver) -> None:
        self._verb = verb
        self._driver = driver
        self._is_done = False
        self._gate = threading.Lock()  # held until it is done: an Event takes longer to make
        self._gate.acquire()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Work], object]] = []
        self._result: Any = None
        self._error: BaseException | None = None
        self._claimed = False

    def wait(self, timeout: float | None = None) -> Any:
        """Return the verb's result when it is there; blocks.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None waits until the operation ends by itself.

        Raises
        ------
        CollectiveTimeout
            `timeout` passed; the operation goes on and may be waited for again.
        HpcparError
            What the operation ended with.
        """
        if not self._is_done:
            self._driver.drive(self, timeout)
            if not self._is_done:
                raise CollectiveTimeout(f"{self._verb}: wait: not done after {timeout} s.")
        self._claimed = True
        if self._error is not None:
            raise self._error
        return self._result

    def done(self) -> bool:
        """Whether the operation has ended, well or with an error; does not block."""
        if not self._is_done:
            self._driver.drive(self, 0.0)
        return self._is_done

    def exception(self) -> BaseException | None:
        """Return the error of an ended operation, or None; does not block."""
        if self.done() and self._error is not None:
            self._claimed = True
        return self._error

    def on_done(self, fn: Callable[[Work], object]) -> None:
        """Call ``fn(work)`` when the operation has ended; at once if it has.

        `fn` runs on the thread that ends the operation and must not block; what it raises is
        logged.
        """
        with self._lock:
            if not self._is_done:
                self._callbacks.append(fn)
                return
        self._tell(fn)

    @property
    def claimed(self) -> bool:
        """Whether somebody has seen the outcome."""
        return self._claimed

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Set the outcome; called once by the driver."""
        self._result, self._error = result, error
        with self._lock:
            self._is_done = True
            self._gate.release()
            callbacks, self._callbacks = self._callbacks, []
        for fn in callbacks:
            self._tell(fn)

    def _tell(self, fn: Callable[[Work], object]) -> None:
        try:
            fn(self)
        except Exception:  # it must not stop the operations of others
            _log.exception("%s: a function given to on_done failed", self._verb)

    def join(self, timeout: float | None) -> bool:
        """Block until another thread ends the operation; return whether it did."""
        if not self._is_done and self._gate.acquire(timeout=-1 if timeout is None else timeout):
            self._gate.release()
        return self._is_done

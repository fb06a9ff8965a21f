"""What torch waits for: the end of a call, now or on the communication thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from ..comm.group import Group
from ..errors import CollectiveTimeout, HpcparError

__all__ = ["Callers", "Done", "FromAny", "Several", "Under", "torch_error"]

_LONGEST_PAUSE = 1e-3


class Callers:
    """Threads that end futures, and so run what hangs on them: it may wait for other calls.

    The communication thread must not, or nobody would end those. There is always an idle thread
    for the next; a thread that has nothing to do stays.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._threads = 0

    def call(self, function: Callable[[], object]) -> None:
        """Have `function` called soon. Does not wait."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._loop, name="hpcpar-torch", daemon=True).start()
        self._calls.put(function)

    def close(self) -> None:
        """Let the threads end."""
        with self._lock:
            threads, self._threads = self._threads, 0
        for _ in range(threads):
            self._calls.put(None)

    def _loop(self) -> None:
        while (function := self._calls.get()) is not None:
            function()
            with self._lock:
                self._idle += 1


class _Work(dist.Work):  # type: ignore[misc]  # torch tells its type nothing
    """What all kinds share."""

    def __init__(self, tensors: Sequence[torch.Tensor], source: int = -1) -> None:
        super().__init__()
        self._tensors, self._source = list(tensors), source

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def synchronize(self) -> None:
        self.wait()


class Done(_Work):
    """What has ended already."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return None

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Under(_Work):
    """What is on its way on the communication thread."""

    def __init__(
        self,
        work: Any,
        tensors: Sequence[torch.Tensor],
        take: Callable[[], object] | None,
        callers: Callers,
        source: int = -1,
    ) -> None:
        super().__init__(tensors, source)
        self._work, self._take, self._callers = work, take, callers
        self._lock = threading.Lock()
        self._base: Any = None
        self._future: Any = None
        self._ended = False
        work.on_done(self._end)

    def _end(self, work: Any) -> None:
        """Use what has come, once; whoever sees the end first does it."""
        with self._lock:
            if self._ended:
                return
            # torch keeps an error with its work: nobody else is told of one that is not waited for
            if work.exception() is None and self._take is not None:
                self._take()
            self._ended = True
            base = self._base
        if base is not None:
            self._callers.call(lambda: base.set_result(None))

    def _outcome(self, _: Any = None) -> list[torch.Tensor]:
        """Return the tensors or raise; called by torch, whose C++ then has the error too."""
        error = self._work.exception()
        if error is not None:
            raise torch_error(error)
        return self._tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end; raise what it ended with."""
        seconds = None if timeout is None else timeout.total_seconds()
        try:
            self._work.wait(seconds if seconds else None)
        except HpcparError as error:
            raise torch_error(error) from error
        self._end(self._work)
        while self._future is not None and not self._future.done():
            time.sleep(0)  # a caller is about to end it
        return True

    def is_completed(self) -> bool:
        if not self._work.done():
            return False
        self._end(self._work)
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._work.exception() is None

    def exception(self) -> BaseException | None:
        error = self._work.exception() if self.is_completed() else None
        return None if error is None else torch_error(error)

    def get_future(self) -> Any:
        with self._lock:
            is_new = self._base is None
            if is_new:
                self._base = torch.futures.Future()
                self._future = self._base.then(self._outcome)
            has_ended = is_new and self._ended
        if has_ended:
            self._base.set_result(None)
        return self._future


class FromAny(_Work):
    """A message from whoever sends first: taken when it is looked for.

    Parameters
    ----------
    group
        Where it comes from.
    tensor
        Where it goes to.
    receive
        Receives from a rank, blocking.
    tag, seconds
        Of the message, and how long to wait for it.
    """

    def __init__(
        self,
        group: Group,
        tensor: torch.Tensor,
        receive: Callable[[int], object],
        tag: int,
        seconds: float | None,
    ) -> None:
        super().__init__([tensor])
        self._group, self._receive, self._tag, self._seconds = group, receive, tag, seconds

    def _take(self) -> bool:
        """Receive if there is something; return whether it has been received."""
        if self._source < 0:
            found = self._group.probe(tag=self._tag)
            if found is None:
                return False
            self._receive(found.src)
            self._source = found.src
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for a message; raise at the deadline."""
        seconds = timeout.total_seconds() if timeout else self._seconds
        end, pause = None if seconds is None else time.monotonic() + seconds, 1e-5
        try:
            while not self._take():
                if end is not None and time.monotonic() > end:
                    raise CollectiveTimeout(
                        f"recv: nothing has come in {seconds} s, from any rank."
                    )
                time.sleep(pause)
                pause = min(1.5 * pause, _LONGEST_PAUSE)
        except HpcparError as error:
            raise torch_error(error) from error
        return True

    def is_completed(self) -> bool:
        return self._take()

    def is_success(self) -> bool:
        return self._take()

    def exception(self) -> BaseException | None:
        return None

    def get_future(self) -> Any:
        self.wait()
        return Done(self._tensors).get_future()


class Several(_Work):
    """Several that end together."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__([t for work in works for t in work.result()])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all(work.wait() if timeout is None else work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((e for e in (work.exception() for work in self._works) if e is not None), None)

    def get_future(self) -> Any:
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda _: self._tensors
        )


def torch_error(error: BaseException) -> BaseException:
    """Return an error as users of torch expect it."""
    if not isinstance(error, HpcparError):
        return error
    late = "Gave up, Timed out : " if isinstance(error, CollectiveTimeout) else ""
    told: BaseException = dist.DistBackendError(f"{late}{error}")
    return told

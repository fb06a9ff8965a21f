"""What torch waits for: the end of a call, now or on the communication thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import CollectiveTimeout, HpcparError

__all__ = ["Done", "Several", "Under", "torch_error"]


class Done(dist.Work):  # type: ignore[misc]  # torch tells its type nothing
    """What has ended already."""

    def __init__(self, tensors: Sequence[torch.Tensor], source: int = -1) -> None:
        super().__init__()
        self._tensors, self._source = list(tensors), source

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Under(Done):
    """What is on its way on the communication thread."""

    def __init__(
        self,
        work: Any,
        tensors: Sequence[torch.Tensor],
        take: Callable[[], None] | None,
        source: int = -1,
    ) -> None:
        super().__init__(tensors, source)
        self._work, self._take = work, take
        self._lock = threading.Lock()
        self._future: Any = None
        self._ended = False
        work.on_done(self._end)

    def _end(self, work: Any) -> None:
        """Use what has come, once; whoever sees the end first does it."""
        with self._lock:
            if self._ended:
                return
            if self._take is not None and work.exception() is None:
                self._take()
            self._ended = True
            future = self._future
        if future is not None:
            self._tell(future)

    def _tell(self, future: Any) -> None:
        error = self._work.exception()
        if error is None:
            future.set_result(self._tensors)
        else:
            future.set_exception(torch_error(error))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end; raise what it ended with."""
        seconds = None if timeout is None else timeout.total_seconds()
        try:
            self._work.wait(seconds if seconds else None)
        except HpcparError as error:
            raise torch_error(error) from error
        self._end(self._work)
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
            is_new = self._future is None
            if is_new:
                self._future = torch.futures.Future()
            tells = is_new and self._ended
        if tells:
            self._tell(self._future)
        return self._future


class Several(Done):
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
    late = "Timed out: " if isinstance(error, CollectiveTimeout) else ""
    told: BaseException = dist.DistBackendError(f"{late}{error}")
    return told

"""An operation on its way through MPI: stages of requests, tested or waited for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

__all__ = ["Running", "Stages"]

#: Requests to wait for; None where a call has blocked and is done, or to be asked again later.
Stages: TypeAlias = Generator[list[Any] | None, None, None]


class Running:
    """The stages of one operation: a generator, and the requests it waits for."""

    __slots__ = ("_done", "_stages", "requests")

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._done = False
        self.requests: list[Any] | None = None
        self._next()

    @property
    def can_block(self) -> bool:
        """Whether MPI may block on the requests; a stage without any has to be polled."""
        return bool(self.requests) or self._done

    def _next(self) -> None:
        try:
            self.requests = next(self._stages)
        except StopIteration:
            self._done, self.requests = True, None

    def test(self, mpi: Any) -> bool:
        """Move on without blocking; return whether all stages are done."""
        while not self._done:
            if self.requests and not mpi.Request.Testall(self.requests):
                return False
            waited = self.requests is not None
            self._next()
            if not waited and not self._done and self.requests is None:
                return False  # a stage that waits for something other than requests: later
        return True

    def finish(self, mpi: Any) -> None:
        """Block in MPI until all stages are done."""
        while not self._done:
            if self.requests:
                mpi.Request.Waitall(self.requests)
            self._next()

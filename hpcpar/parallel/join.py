"""Uneven inputs: ranks that ran out of data take part in the steps of those that have not."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, NamedTuple

import numpy as np

from ..errors import ArgumentError, MismatchError, RankFailed, UnsupportedError
from .replica import Replica
from .step import Step
from .window import Window

__all__ = ["Join"]

# What a rank says before each step; the dtype's name is what others read who call something else.
_WHAT = "state_in_ddp_join"
_STATE = np.dtype([(_WHAT, "i1"), ("weighted", "i1")])
_RUNNING, _DONE, _FAILED = 0, 1, 2
_ADVICE = (
    "In the block of ddp.join() ranks that ran out of data take part in the steps of the DDP, and "
    "in nothing else. Another collective on the DDP's group meets nobody there: call it after the "
    "block, or on a group of its own whose ranks all still have data."
)


class _Round(NamedTuple):
    """What all ranks said before a step."""

    running: tuple[int, ...]
    failed: tuple[int, ...]
    weighted: bool


class Join:
    """The block of `DDP.join`.

    Attributes
    ----------
    shadowed
        Steps of others in which this rank took part without data.
    last
        After the block: the rank whose parameters all have, one of those that had data longest.
        None if all had equally many steps: then nothing was sent.
    """

    def __init__(self, replica: Replica, by_initial_size: bool) -> None:
        if len(replica.groups) > 1:
            raise UnsupportedError(
                "ddp.join: parameters with groups of their own cannot follow the last rank. "
                "Give every rank equally many steps."
            )
        if any(hook.stays_local for hook in replica.hooks):
            raise UnsupportedError(
                f"ddp.join: {list(replica.hooks)} average parameters between steps, where ranks "
                "without data do not come. Give every rank equally many steps."
            )
        self.shadowed = 0
        self.last: int | None = None
        self._replica = replica
        self._by_initial_size = by_initial_size
        self._round = _Round((), (), False)

    def __enter__(self) -> Join:
        if self._replica.join is not None or self._replica.is_open:
            raise ArgumentError("ddp.join: a block of it, or a step, is open already.")
        self._replica.join = self
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        self._replica.join = None
        if exc is None:
            self._follow()
        elif self._replica.group.state == "ok":
            self._leave(exc)
        return False

    def begin_step(self, weighted: bool) -> None:
        """Say that this rank has data, before a step. Collective."""
        self._say(_RUNNING, weighted)
        self._check()

    @property
    def root(self) -> int:
        """A rank that has data: buffers follow it."""
        return self._round.running[0]

    @property
    def share(self) -> float:
        """What the mean over all ranks is divided by, to be one over those that have data."""
        if self._by_initial_size or self._round.weighted:
            return 1.0
        return len(self._round.running) / self._replica.group.size

    def _say(self, state: int, weighted: bool = False) -> None:
        mine = np.array([(state, weighted)], _STATE)
        said = self._replica.group.all_gather(mine, sizes="equal")
        running, failed = (np.flatnonzero(said[_WHAT] == s) for s in (_RUNNING, _FAILED))
        before = self._round.running
        flag = bool(said["weighted"][running].any())
        self._round = _Round(tuple(running.tolist()), tuple(failed.tolist()), flag)
        everybody = tuple(range(self._replica.group.size))
        if not running.size and before != everybody and before:
            self.last = before[0]

    def _check(self) -> None:
        if self._round.failed:
            raise RankFailed(
                f"ddp.join: the block of rank {self._round.failed[0]} ended with an exception "
                f"{self._replica.group.here()}. Parameters may differ between ranks."
            )

    def _follow(self) -> None:
        """Take part in the steps of others until all are done; then take over the last's model."""
        replica = self._replica
        replica.window = Window()
        try:
            while True:
                self._say(_DONE)
                self._check()
                if not self._round.running:
                    break
                self.shadowed += 1
                with Step(replica, 0.0 if self._round.weighted else None, shadows=self):
                    pass
        except Exception as exc:
            if replica.group.state == "ok":
                self._leave(exc)  # as the ranks do in whose block it is raised
            raise
        if self.last is not None:
            replica.broadcast_params(self.last)

    def _leave(self, exc: BaseException) -> None:
        """Tell the others that this rank's block failed."""
        if self._round.failed:  # they have said so, and all know
            return
        if isinstance(exc, MismatchError):
            exc.add_note(_ADVICE)
            self._replica.group.abort(exc)
            return
        try:
            self._say(_FAILED)
        except Exception as other:
            exc.add_note(f"The group was aborted, the others could not be told: {other}")
            self._replica.group.abort(exc)

"""Messages between ranks of a node, which MPI carries: their waits end when the other side dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..errors import RankFailed
from .backend import Backend, Operation
from .matching import counterparts

__all__ = ["WatchedMessages"]

_LOOK = 0.05  # seconds between two looks at whether the other side is alive


class WatchedMessages(Backend):
    """Carries the messages of one group.

    Parameters
    ----------
    carrier : Backend
        Who moves them, and waits for ever for who has died.
    ranks : sequence of int
        Global ranks of the group.
    is_dead : callable
        Returns whether the process of a global rank is gone.
    """

    def __init__(
        self, carrier: Backend, ranks: Sequence[int], is_dead: Callable[[int], bool]
    ) -> None:
        self.name, self.rank, self.size = carrier.name, carrier.rank, carrier.size
        self.mpi_comm = carrier.mpi_comm
        self._carrier, self._ranks, self._is_dead = carrier, tuple(ranks), is_dead
        self._looked = 0.0
        self._gone: set[int] = set()

    def supports(self, op: Operation) -> str | None:
        """Ask the carrier."""
        return self._carrier.supports(op)

    def missing(self, op: Operation) -> list[int] | None:
        """Ask the carrier."""
        return self._carrier.missing(op)

    def subgroup(self, ranks: Sequence[int]) -> WatchedMessages:
        """Return who carries the messages of these ranks of this group; collective over them."""
        chosen = [self._ranks[r] for r in ranks]
        return WatchedMessages(self._carrier.subgroup(ranks), chosen, self._is_dead)

    def close(self) -> None:
        """Free what the carrier holds; collective."""
        self._carrier.close()

    def abort(self, reason: BaseException) -> None:
        """End the job, as the carrier does."""
        self._carrier.abort(reason)

    def start(self, op: Operation) -> None:
        """Begin `op`."""
        with self._failures_named(op):
            self._carrier.start(op)

    def test(self, op: Operation) -> bool:
        """Move `op` on; look now and then at who is on the other side."""
        with self._failures_named(op):
            if self._carrier.test(op):
                return True
            gone = self._find_gone(op)
            if not gone:
                return False
            if self._carrier.test(op):  # what was sent before has come by now, if it ever does
                return True
        raise _no_message(gone)

    def relax(self, op: Operation, pause: float) -> float:
        """Give the core away between two tests, after a while for longer."""
        time.sleep(0 if pause < 2e-3 else 1e-4)
        return pause + 1e-6

    def _find_gone(self, op: Operation) -> list[int]:
        """Return the ranks that `op` needs if none of them is alive any more."""
        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            ranks = enumerate(self._ranks)
            self._gone |= {r for r, rank in ranks if r != self.rank and self._is_dead(rank)}
        needed = counterparts(op, self.rank, self.size)
        return needed if self._gone.issuperset(needed) else []

    @contextmanager
    def _failures_named(self, op: Operation) -> Iterator[None]:
        """Name who died where MPI has seen it first; mpi4py's errors are RuntimeErrors."""
        try:
            yield
        except RuntimeError as error:
            ranks = enumerate(self._ranks)
            dead = [r for r, rank in ranks if r != self.rank and self._is_dead(rank)]
            needed = set(counterparts(op, self.rank, self.size))
            if not dead:
                raise
            # Others may have left because of the one that this message needs.
            raise _no_message([r for r in dead if r in needed] or dead) from error


def _no_message(ranks: Sequence[int]) -> RankFailed:
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {list(ranks)} have"
    return RankFailed(f"{who} left or died, and no message can come or go.")

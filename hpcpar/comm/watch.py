"""Connects the guard to the record: what this rank waits in, what it has done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .channel import MpiChannel
from .group import Group
from .guard import Guard, Waiting, Watched
from .record import VERBS, Entry

__all__ = ["install_guard"]

_POINT_TO_POINT = ("send", "recv", "sendrecv", "probe")


def install_guard(group: Group) -> Callable[[], None]:
    """Install the guard of a world on MPI and return how to take it back; collective."""
    guard = Guard(MpiChannel(group.mpi_comm), _Watch(group).watched())
    guard.install()
    return guard.uninstall


class _Watch:
    """Reads the record of a rank for the guard; every method may be called from any thread."""

    def __init__(self, world: Group) -> None:
        self._home, self._runner = world._home, world._runner

    def watched(self) -> Watched:
        """Return what the guard asks."""
        last = self._home.last_operations
        return Watched(self.oldest_open, self.begun, self.done, last, self.lost, self.last_of)

    def last_of(self, rank: int) -> str | None:
        """Return what another rank did last, where its record can be read."""
        return None if self._runner is None else self._runner.backend.last_of(rank)

    def lost(self) -> bool:
        """Return whether a rank is known to have died."""
        return self._runner is not None and self._runner.backend.has_lost()

    def oldest_open(self) -> Waiting | None:
        """Return the operation that has been open longest."""
        found = self._home.recorder.oldest_open()
        if found is None:
            return None
        entry = Entry(*found)
        name, ranks = self._home.slots[entry.slot]
        verb = VERBS[entry.verb]
        alone = verb in _POINT_TO_POINT
        needed = ranks if entry.peer < 0 or not alone else (ranks[entry.peer],)
        return Waiting(
            text=f"{verb} #{entry.seq} of group {name!r}",
            seconds=(time.monotonic_ns() - entry.start_ns) / 1e9,
            ranks=tuple(needed),
            limit=self._limit(ranks, entry.seq, alone),
            key=str(ranks),
            done=None if alone else self.done().get(str(ranks), 0) - 1,  # this one is not done
            all_needed=not (alone and entry.peer < 0),
        )

    def _limit(self, ranks: tuple[int, ...], seq: int, alone: bool) -> float | None:
        group = self._home.groups.get(ranks)
        own = group is None or group.is_patient or group.keeps_own_time(seq, alone)
        return None if own else self._home.settings.timeout

    def begun(self) -> int:
        """Return how many operations this rank has begun."""
        return sum(self._home.recorder.seq(slot) for slot in range(len(self._home.slots)))

    def done(self) -> Mapping[str, int]:
        """Return how many collectives this rank has begun, by group, but for the one that failed.

        When it leaves these are the ones it has done its part of.
        """
        done: dict[str, int] = {}
        for slot, verb, ops, *_ in self._home.recorder.totals():
            if VERBS[verb] not in _POINT_TO_POINT:
                key = str(self._home.slots[slot][1])
                done[key] = done.get(key, 0) + ops
        for ranks, group in list(self._home.groups.items()):
            if group.state == "failed" and str(ranks) in done:
                done[str(ranks)] -= 1
        return done

"""What all groups of one rank share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core import Recorder
from . import record
from .frozen import ArrayLocks
from .layout import Memory
from .progress import Progress
from .settings import Settings

__all__ = ["Home", "Span"]

_SPANS = 4096


class Span(NamedTuple):
    """Something that took time on this rank, in nanoseconds of ``time.monotonic_ns()``."""

    track: str
    name: str
    start_ns: int
    end_ns: int


class Home:
    """What all groups of one rank share.

    Attributes
    ----------
    recorder : Recorder
    progress : Progress
    settings : Settings
    memory : Memory
    hosts : tuple of str
        Host of each global rank.
    locks : ArrayLocks
    slots : list of (str, tuple of int)
        Name and global ranks of a group by record slot.
    groups : dict
        Open groups by global ranks.
    busy : set
        Name and ranks of groups on which a step is open that begins operations as it goes.
    spans : deque of Span
        What rooms above did between operations, oldest first; for traces.
    """

    def __init__(
        self,
        progress: Progress,
        settings: Settings,
        memory: Memory,
        hosts: Sequence[str],
        recorder: Recorder | None = None,
    ) -> None:
        self.recorder = Recorder(own=record.OWN) if recorder is None else recorder
        self.locks = ArrayLocks()
        self.progress = progress
        self.settings = settings
        self.memory = memory
        self.hosts = tuple(hosts)
        self.slots: list[tuple[str, tuple[int, ...]]] = []
        self.groups: dict[tuple[int, ...], Any] = {}
        self.busy: set[tuple[str, tuple[int, ...]]] = set()
        self.spans: deque[Span] = deque(maxlen=_SPANS)

    def register(self, name: str, rank: int, ranks: tuple[int, ...]) -> int:
        """Return the record slot of a group; a group made anew goes on in its old slot."""
        if (name, ranks) in self.slots:
            return self.slots.index((name, ranks))
        slot = self.recorder.add_group(name, rank, len(ranks))
        self.slots.append((name, ranks))
        return slot

    def last_operations(self, count: int = 8) -> str:
        """Return the last records as lines."""
        return record.describe_records(self.recorder.last(count), [n for n, _ in self.slots])

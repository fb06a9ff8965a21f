"""How many bytes and messages a piece of code puts on the wire: a reader of the record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from ..comm.attach import as_group
from ..comm.group import Group
from ..comm.record import VERBS, Traffic

__all__ = ["Row", "Wire", "wire"]

_Totals: TypeAlias = dict[tuple[int, int], tuple[int, int, int, int]]


class Row(NamedTuple):
    """Traffic of one verb on one group.

    Attributes
    ----------
    group, verb
        Names.
    operations
        Calls of the verb.
    sent, received
        Bytes that this rank sent and received.
    messages
        Messages that this rank sent.
    """

    group: str
    verb: str
    operations: int
    sent: int
    received: int
    messages: int


class Wire:
    """What went over the wire on this rank since `wire` was entered, until it was left."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._before = _read(group)
        self._after: _Totals | None = None

    @property
    def rows(self) -> list[Row]:
        """One row per group and verb that were used."""
        rows = []
        names = self._group.home.slots
        for (slot, verb), now in (self._after or _read(self._group)).items():
            before = self._before.get((slot, verb), (0, 0, 0, 0))
            change = [a - b for a, b in zip(now, before, strict=True)]
            if change[0]:
                rows.append(Row(names[slot][0], VERBS[verb], *change))
        return rows

    @property
    def sent(self) -> int:
        """Bytes sent by this rank."""
        return sum(row.sent for row in self.rows)

    @property
    def received(self) -> int:
        """Bytes received by this rank."""
        return sum(row.received for row in self.rows)

    @property
    def messages(self) -> int:
        """Messages sent by this rank."""
        return sum(row.messages for row in self.rows)

    def by_verb(self) -> dict[str, Traffic]:
        """Return bytes and messages by verb, over all groups. Local."""
        found: dict[str, Traffic] = {}
        for row in self.rows:
            old = found.get(row.verb, Traffic(0, 0, 0))
            moved = (row.sent, row.received, row.messages)
            found[row.verb] = Traffic(*(a + b for a, b in zip(old, moved, strict=True)))
        return found

    def all_ranks(self) -> list[list[Row]]:
        """Return the rows of every rank, by rank. Collective over the group."""
        gathered = self._group.all_gather_object([list(row) for row in self.rows])
        return [[Row(*row) for row in rows] for rows in gathered]

    def stop(self) -> None:
        """Count no further. Local."""
        self._after = _read(self._group)


@contextmanager
def wire(group: Group | None = None) -> Iterator[Wire]:
    """Count what this rank sends and receives inside the block, on all groups. Local.

    Where hpcpar sends the messages itself the numbers are what it sent; where MPI's own
    collectives carry them, they are those of the bandwidth-optimal algorithm.

    Parameters
    ----------
    group
        Any group of this process; None is the current one.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.debug import wire
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     with wire(group) as counted:
    ...         group.all_reduce(np.ones(6, np.float32))
    ...     return counted.sent, counted.by_verb()["all_reduce"].messages
    >>> run_ranks(3, body)
    [(32, 4), (32, 4), (32, 4)]
    """
    counted = Wire(as_group(group))
    try:
        yield counted
    finally:
        counted.stop()


def _read(group: Group) -> _Totals:
    return {(slot, verb): tuple(rest) for slot, verb, *rest in group.recorder.totals()}  # type: ignore[misc]

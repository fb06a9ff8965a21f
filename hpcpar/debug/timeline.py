"""The record of all ranks as one file for the Perfetto or Chrome trace viewer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from .._arrays import DTYPE_NAMES
from ..comm.attach import as_group
from ..comm.group import Group
from ..comm.record import VERBS, Entry
from ..comm.root import on_root
from ..errors import ArgumentError

__all__ = ["RankRecord", "own_record", "trace", "trace_events", "write_trace"]

_CAPACITY = 1024
_FIRST_SPAN_TRACK = 1 << 30  # behind the tracks of 4,096 groups


class RankRecord(NamedTuple):
    """What one rank gives to a trace.

    Attributes
    ----------
    host
        Name of its machine.
    now_ns
        Its clock at a moment that is about the same on all ranks.
    groups
        Names of the groups by slot.
    entries
        Its records, oldest first.
    spans
        What it did between operations: track, name, start and end in nanoseconds.
    """

    host: str
    now_ns: int
    groups: Sequence[str]
    entries: Sequence[Sequence[Any]]
    spans: Sequence[Sequence[Any]] = ()


def own_record(group: Group) -> RankRecord:
    """Return the record of this rank as it is now. Local."""
    return RankRecord(
        socket.gethostname(),
        time.monotonic_ns(),
        [name for name, _ in group.home.slots],
        [list(entry) for entry in group.recorder.last(_CAPACITY)],
        [list(span) for span in group.home.spans],
    )


def trace(path: str | PathLike[str], *, group: Group | None = None) -> int:
    """Write the last operations of every rank to one JSON file. Collective over `group`.

    Open it at ui.perfetto.dev or in chrome://tracing: one process per rank, one track per
    group; operations that overlap get tracks of their own.

    Parameters
    ----------
    path
        File that rank 0 writes; its folder is made.
    group
        Ranks to show; None is the current group.

    Returns
    -------
    int
        Operations in the file, on every rank.

    Raises
    ------
    ArgumentError
        Rank 0 cannot write the file; raised on all ranks.
    """
    group = as_group(group)
    group.barrier()
    mine = list(own_record(group))
    gathered = [RankRecord(*record) for record in group.all_gather_object(mine)]
    on_root(lambda: write_trace(Path(path), trace_events(gathered)), group=group)
    return sum(len(record.entries) for record in gathered)


def trace_events(
    records: Sequence[RankRecord], ranks: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """Return the trace events of all ranks, on the first one's clock. Pure.

    Ranks on one machine share its clock. The clock of another machine is shifted so that the
    moments `now_ns` coincide.
    """
    events: list[dict[str, Any]] = []
    first = records[0]
    numbers = range(len(records)) if ranks is None else ranks
    for rank, record in zip(numbers, records, strict=True):
        shift = 0 if record.host == first.host else first.now_ns - record.now_ns
        events.append(_named("process_name", f"rank {rank} on {record.host}", rank, 0))
        events += _rank_events(rank, record, shift)
    return events


def _rank_events(rank: int, record: RankRecord, shift: int) -> Iterable[dict[str, Any]]:
    entries = [Entry(*entry) for entry in record.entries]
    tracks = _tracks(entries, record.now_ns)
    for track in sorted(set(tracks)):
        slot, number = track
        name = record.groups[slot] + (f" ({number + 1})" if number else "")
        yield _named("thread_name", name, rank, _track_id(track))
    for entry, track in zip(entries, tracks, strict=True):
        yield _operation(entry, record, rank, _track_id(track), shift)
    yield from _span_events(rank, record, shift)


def _span_events(rank: int, record: RankRecord, shift: int) -> Iterable[dict[str, Any]]:
    """Yield what lies between operations, on tracks below those of the groups."""
    names = sorted({track for track, *_ in record.spans})
    for number, name in enumerate(names):
        yield _named("thread_name", name, rank, _FIRST_SPAN_TRACK + number)
    for track, name, start_ns, end_ns in record.spans:
        yield {
            "ph": "X",
            "name": name,
            "cat": track,
            "pid": rank,
            "tid": _FIRST_SPAN_TRACK + names.index(track),
            "ts": (start_ns + shift) / 1000,
            "dur": (end_ns - start_ns) / 1000,
        }


def _tracks(entries: Sequence[Entry], now_ns: int) -> list[tuple[int, int]]:
    """Return (slot, number) per record: the first track of its group that is free."""
    free: dict[int, list[int]] = {}
    chosen = [(0, 0)] * len(entries)
    for index in sorted(range(len(entries)), key=lambda i: entries[i].start_ns):
        entry = entries[index]
        ends = free.setdefault(entry.slot, [])
        number = next((n for n, end in enumerate(ends) if end <= entry.start_ns), len(ends))
        ends[number:] = [entry.end_ns or now_ns, *ends[number + 1 :]]
        chosen[index] = (entry.slot, number)
    return chosen


def _track_id(track: tuple[int, int]) -> int:
    slot, number = track
    return slot * _CAPACITY + number + 1


def _operation(
    entry: Entry, record: RankRecord, rank: int, thread: int, shift: int
) -> dict[str, Any]:
    end_ns = entry.end_ns or record.now_ns
    state = "not done" if not entry.end_ns else "done" if entry.status == 0 else "failed"
    return {
        "ph": "X",
        "name": VERBS[entry.verb],
        "cat": record.groups[entry.slot],
        "pid": rank,
        "tid": thread,
        "ts": (entry.start_ns + shift) / 1000,
        "dur": (end_ns - entry.start_ns) / 1000,
        "args": {
            "seq": entry.seq,
            "dtype": DTYPE_NAMES[entry.dtype],
            "count": entry.elements,
            "nbytes": entry.elements * entry.itemsize,
            "sent": entry.sent,
            "received": entry.received,
            "messages": entry.messages,
            "state": state,
            "site": entry.site,
        },
    }


def _named(kind: str, name: str, rank: int, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}


def write_trace(path: Path, events: list[dict[str, Any]]) -> None:
    """Write trace events to a file, whose folder is made. Local."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as exc:
        raise ArgumentError(f"trace: path {path} cannot be written: {exc.strerror}.") from exc

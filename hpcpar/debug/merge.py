"""One file of the record per rank, written without the others; and what they say together."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ..comm.attach import as_group
from ..comm.group import Group
from ..comm.record import Entry, busy_seconds
from ..errors import ArgumentError
from .timeline import RankRecord, own_record

__all__ = ["load_records", "save_record", "summary"]

_PATTERN = "rank-*.json"
_FIELDS = (*RankRecord._fields, "rank", "wall_ns")


def save_record(folder: str | PathLike[str], *, group: Group | None = None) -> Path:
    """Write the last operations of this rank to a file of its own. Local: nobody is waited for.

    ``hpcpar trace FOLDER`` makes one trace of the files of all ranks.

    Parameters
    ----------
    folder
        Is made; all ranks may write to the same.
    group
        Names this rank; None is the current group.

    Returns
    -------
    Path
        The file, ``rank-00000.json`` for rank 0.

    Raises
    ------
    ArgumentError
        The file cannot be written.
    """
    group = as_group(group)
    path = Path(folder) / f"rank-{group.rank:05}.json"
    content = own_record(group)._asdict() | {"rank": group.rank, "wall_ns": time.time_ns()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"save_record: {path} cannot be written: {error}.") from None
    return path


def load_records(paths: Sequence[str | PathLike[str]]) -> dict[int, RankRecord]:
    """Read files of `save_record`, or all of folders; clocks are aligned by the time of day. Local.

    Raises
    ------
    ArgumentError
        There is none, one is no such file, or two are of one rank.
    """
    files = [file for path in map(Path, paths) for file in _files_of(path)]
    if not files:
        raise ArgumentError(f"trace: there is no {_PATTERN} in {', '.join(map(str, paths))}.")
    found: dict[int, dict[str, Any]] = {}
    for file in files:
        content = _read(file)
        if content["rank"] in found:
            raise ArgumentError(f"trace: {file} is of rank {content['rank']}, as one before it is.")
        found[content["rank"]] = content
    first = found[min(found)]["wall_ns"]
    return {rank: _record(found[rank], first) for rank in sorted(found)}


def _files_of(path: Path) -> list[Path]:
    return sorted(path.glob(_PATTERN)) if path.is_dir() else [path]


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        known: dict[str, Any] = {name: content[name] for name in _FIELDS}
        if not all(isinstance(known[name], int) for name in ("rank", "wall_ns", "now_ns")):
            raise TypeError("rank and times must be integers")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"trace: {file} is no record of a rank: {error!r}.") from None
    return known


def _record(content: dict[str, Any], wall_ns: int) -> RankRecord:
    """Return the record, its moment being that when the time of day was `wall_ns`."""
    moment = content["now_ns"] + wall_ns - content["wall_ns"]
    return RankRecord(**{name: content[name] for name in RankRecord._fields})._replace(
        now_ns=moment
    )


def summary(records: dict[int, RankRecord]) -> tuple[list[str], list[list[str]]]:
    """Return columns and a row of cells per rank: operations, bytes, and where the time went. Pure.

    Seconds of communication are those in which at least one operation was open.
    """
    tracks = sorted({(t, n) for record in records.values() for t, n, *_ in record.spans})
    columns = ["rank", "host", "operations", "MiB sent", "in communication s"]
    columns += [f"{track} {name} s" for track, name in tracks]
    rows = []
    for rank, record in records.items():
        entries = [Entry(*entry) for entry in record.entries]
        sent = sum(entry.sent for entry in entries) / 2**20
        busy = busy_seconds((e.start_ns, e.end_ns or record.now_ns) for e in entries)
        cells = [str(rank), record.host, str(len(entries)), f"{sent:.1f}", f"{busy:.3f}"]
        for key in tracks:
            took = sum(end - start for t, n, start, end in record.spans if (t, n) == key)
            cells.append(f"{took / 1e9:.3f}")
        rows.append(cells)
    return columns, rows

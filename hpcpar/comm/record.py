"""One record per operation (C), and what its numbers mean in words.

The bytes on the wire are those of the bandwidth-optimal algorithm on this rank's counts; where
the backend is MPI, whose algorithm is its own, they are a model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._arrays import DTYPE_NAMES
from .._core import Recorder, RecordReader
from .backend import Operation
from .sizes import uneven

__all__ = [
    "OWN",
    "VERBS",
    "Entry",
    "Traffic",
    "busy_seconds",
    "describe_newest",
    "describe_record",
    "describe_records",
    "traffic",
    "traffic_of",
    "verb_code",
]

#: Where files of this room lie, whose calls are nobody's call site.
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
#: Verbs by record code; the order is part of the record's format.
VERBS = (
    *("none", "barrier", "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter"),
    *("reduce_scatter", "all_to_all", "scan", "send", "recv", "sendrecv", "permute", "probe"),
)
_CODES = {verb: code for code, verb in enumerate(VERBS)}


def verb_code(verb: str) -> int:
    """Return the record's code of `verb`."""
    return _CODES[verb]


class Traffic(NamedTuple):
    """Bytes this rank sends and receives in one operation, and how many messages it sends."""

    sent: int
    received: int
    messages: int


class Entry(NamedTuple):
    """One record, as `_core.Recorder.last` gives it."""

    slot: int
    seq: int
    verb: int
    dtype: int
    elements: int
    itemsize: int
    peer: int
    start_ns: int
    end_ns: int
    status: int
    sent: int
    received: int
    messages: int
    site: str


def traffic(
    verb: str,
    rank: int,
    size: int,
    *,
    nbytes: int = 0,
    itemsize: int = 1,
    sent_parts: Sequence[int] = (),
    received_parts: Sequence[int] = (),
    root: int = 0,
) -> Traffic:
    """Return the bytes that `verb` moves on `rank`, by the bandwidth-optimal algorithm.

    Parameters
    ----------
    nbytes
        Bytes of this rank's whole buffer.
    sent_parts, received_parts
        Bytes per rank, for the verbs that cut or join.

    References
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    2009: an all-reduce moves at least 2 (p-1)/p n per rank.

    Examples
    --------
    >>> traffic("all_reduce", 0, 4, nbytes=4096, itemsize=4)
    Traffic(sent=6144, received=6144, messages=6)
    """
    if size == 1 and verb not in ("send", "recv", "sendrecv"):
        return Traffic(0, 0, 0)
    if verb in ("all_reduce", "reduce_scatter"):
        parts = list(sent_parts) or [n * itemsize for n in uneven(nbytes // itemsize, size)]
        rest, mine = sum(parts) - parts[rank], (size - 1) * parts[rank]
        if verb == "reduce_scatter":
            return Traffic(rest, mine, size - 1)
        return Traffic(rest + mine, rest + mine, 2 * (size - 1))
    if verb in ("broadcast", "reduce", "scan"):
        return _chain(verb, rank, size, nbytes, root)
    return _parts(verb, rank, size, nbytes, list(sent_parts), list(received_parts), root)


def _chain(verb: str, rank: int, size: int, nbytes: int, root: int) -> Traffic:
    """Pass whole buffers along the ranks, pipelined: each but the last sends n once."""
    place = rank if verb == "scan" else (rank - root) % size
    first, last = place == 0, place == size - 1
    if verb == "reduce":
        first, last = last, first
    return Traffic(0 if last else nbytes, 0 if first else nbytes, 0 if last else 1)


def _parts(
    verb: str, rank: int, size: int, nbytes: int, sent: list[int], got: list[int], root: int
) -> Traffic:
    own = sent[rank] if rank < len(sent) else nbytes
    if verb == "all_gather":
        return Traffic((size - 1) * nbytes, sum(got) - nbytes, size - 1)
    if verb == "gather":
        return Traffic(0, sum(got) - nbytes, 0) if rank == root else Traffic(nbytes, 0, 1)
    if verb == "scatter":
        if rank == root:
            return Traffic(sum(sent) - own, 0, size - 1)
        return Traffic(0, nbytes, 0)
    if verb in ("all_to_all", "permute"):
        others = sum(n > 0 for r, n in enumerate(sent) if r != rank)
        return Traffic(sum(sent) - own, sum(got) - (got[rank] if got else 0), others)
    return Traffic(sum(sent), sum(got), int(verb in ("send", "sendrecv")))


def describe_records(entries: Sequence[Sequence[Any]], names: Sequence[str]) -> str:
    """Return records as lines, oldest first, for error messages.

    Examples
    --------
    >>> entry = (0, 17, 2, 12, 4096, 4, -1, 0, 42_000, 0, 0, 0, 0, "train.py:9")
    >>> print(describe_records([entry], ["tp"]))
      tp #17 all_reduce float32[4096] 16.0 KiB at train.py:9 done 42 us
    """
    return "\n".join(f"  {describe_record(Entry(*entry), names)}" for entry in entries)


def describe_newest(record: Recorder | RecordReader, now_ns: int) -> str:
    """Return the newest operation of a record in words, and when that was. Local.

    Parameters
    ----------
    record : Recorder or RecordReader
    now_ns : int
        Of ``time.monotonic_ns()``, which all processes of a machine share.
    """
    newest = record.last(2)  # it may have died while it wrote the newest
    if not newest:
        return "no operation"
    entry = Entry(*newest[-1])
    words = describe_record(entry, [name for name, *_ in record.groups()])
    if entry.end_ns:
        return f"{words} ({(now_ns - entry.end_ns) / 1e9:.1f} s ago)"
    return f"{words}, begun {(now_ns - entry.start_ns) / 1e9:.1f} s ago"


def describe_record(entry: Entry, names: Sequence[str]) -> str:
    """Return one record as a line; whoever wrote it may know verbs that we do not."""
    what = f"{names[entry.slot]} #{entry.seq} {_name(VERBS, entry.verb)}"
    if entry.elements or entry.dtype:
        kib = entry.elements * entry.itemsize / 1024
        what += f" {_name(DTYPE_NAMES, entry.dtype)}[{entry.elements}] {kib:.1f} KiB"
    what += f" at {entry.site}" if entry.site else ""
    if not entry.end_ns:
        return f"{what} not done"
    state = "done" if entry.status == 0 else "failed"
    return f"{what} {state} {(entry.end_ns - entry.start_ns) / 1000:.0f} us"


def _name(names: Sequence[str], code: int) -> str:
    return names[code] if code < len(names) else f"({code})"


def traffic_of(op: Operation, rank: int, size: int) -> Traffic:
    """Return the traffic of one operation of the backend seam."""
    if op.verb == "recv":
        came = op.recv if op.result is None else op.result.data
        return Traffic(0, 0 if came is None else came.nbytes, 0)
    buffer = op.send if op.send is not None else op.recv
    if buffer is None:
        steps = (size - 1).bit_length() if op.verb == "barrier" else 0
        return Traffic(0, 0, steps)
    item = buffer.dtype.itemsize
    if op.verb == "send":
        return Traffic(buffer.nbytes, 0, 1)
    verb = "scan" if op.verb == "exscan" else op.verb
    return traffic(
        verb,
        rank,
        size,
        nbytes=buffer.nbytes,
        itemsize=item,
        sent_parts=[n * item for n in op.send_counts],
        received_parts=[n * item for n in op.recv_counts],
        root=op.root or 0,
    )


def busy_seconds(intervals: Iterable[tuple[int, int]]) -> float:
    """Return how long at least one of the intervals, in nanoseconds, was open. Pure.

    Examples
    --------
    >>> busy_seconds([(0, 10**9), (5 * 10**8, 2 * 10**9), (3 * 10**9, 4 * 10**9)])
    3.0
    """
    total = end = 0
    for start, stop in sorted(intervals):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e9

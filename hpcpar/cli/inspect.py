"""``hpcpar inspect``: what a running process does and did, read from outside."""

from __future__ import annotations

import os
import shlex
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from mmap import MAP_SHARED, PROT_READ, mmap
from typing import NamedTuple

from .._core import RecordReader, node_sizes
from ..comm.record import Entry, describe_record
from ..comm.window import LAYOUT_VERSION, Header, read_header
from ..errors import ArgumentError, BackendUnavailable
from .command import Command

__all__ = ["COMMAND", "lines_of"]

_DESCRIPTION = """\
Show what a rank does and did last, from outside and while it runs, hangs or is stopped.

  hpcpar inspect 4711             # one process
  hpcpar inspect --all 4711       # every process of its job on this machine
  hpcpar inspect --last 50 4711

Reads the flight record in the memory that the ranks of a machine share, so the job needs the node
engine (`hpcpar info`: auto takes node), and nothing of it is stopped, asked or changed. The process
must be yours, or you root. Times are those since an operation ended or, in the last section, began.
"""
_ALL_RECORDS = 1 << 20
_LEFT = {1: ", has left", 2: ", has failed"}
_STATES = {"T": "stopped", "t": "stopped by a debugger", "Z": "dead, not yet waited for"}


class _Rank(NamedTuple):
    """A process that has a window."""

    pid: int
    header: Header
    fd_path: str


def lines_of(reader: RecordReader, last: int, now_ns: int) -> list[str]:
    """Return what a record says as lines: groups, last operations, what is open.

    Local. Reads while its owner writes.

    Parameters
    ----------
    reader : RecordReader
    last : int
        So many operations.
    now_ns : int
        Of ``time.monotonic_ns()``.
    """
    entries = [Entry(*entry) for entry in reader.last(_ALL_RECORDS)]
    groups = reader.groups()  # after the records, whose groups it knows then
    names = [name for name, *_ in groups]
    begun = [entry for entry in entries if not entry.end_ns]
    recent = entries[len(entries) - min(last, len(entries)) :]
    return [
        "  groups",
        *_group_lines(reader, groups),
        "  last operations",
        *(_table((_age(e.end_ns, now_ns), describe_record(e, names)) for e in recent)),
        "  open now",
        *(_table((_age(e.start_ns, now_ns), describe_record(e, names)) for e in begun)),
    ]


def _group_lines(
    reader: RecordReader, groups: Sequence[tuple[str, int, int, int]]
) -> Iterable[str]:
    sent = [0] * len(groups)
    for slot, _, _, nbytes, *_ in reader.totals():
        if slot < len(sent):
            sent[slot] += nbytes
    for (name, rank, size, seq), nbytes in zip(groups, sent, strict=True):
        counted = f"{seq} operations, {nbytes / 2**20:.1f} MiB sent"
        yield f"    {name}: rank {rank}/{size}, {counted}"


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"    {age:>12}  {words}" for age, words in rows] or ["    none"]


def _age(moment_ns: int, now_ns: int) -> str:
    """Return how long ago something was; empty if it has not happened."""
    if not moment_ns:
        return ""
    seconds = (now_ns - moment_ns) / 1e9
    return f"{seconds:.3f} s ago" if seconds < 1000 else f"{seconds / 60:.0f} min ago"


def _find_all() -> list[_Rank]:
    """Return the processes that have windows and may be looked into."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it has just ended, or is not mine
                found += _windows_of(int(name))
    return found


def _windows_of(pid: int) -> list[_Rank]:
    """Return the windows that a process has made; those of other versions may be others'.

    Raises
    ------
    OSError
        There is no such process, or it may not be looked into.
    """
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        with suppress(OSError):  # it has closed it meanwhile, or nobody may read it
            header = read_header(path) if "hpcpar" in os.readlink(path) else None
            if header is not None and (header.version != LAYOUT_VERSION or header.is_of(pid)):
                found[os.stat(path).st_ino] = _Rank(pid, header, path)  # may be open twice
    return list(found.values())


def _find(pid: int) -> list[_Rank]:
    """Return the windows of one process; else say why there is none."""
    who = f"PID {pid}"
    try:
        found = _windows_of(pid)
    except FileNotFoundError:
        raise ArgumentError(f"{who}: there is no such process.") from None
    except PermissionError:
        owner = os.stat(f"/proc/{pid}").st_uid
        raise BackendUnavailable(
            f"{who}: not permitted to look into it: it is user {owner}'s, this process user "
            f"{os.geteuid()}'s. Be the same user in the same container, or root outside."
        ) from None
    if not found:
        others = sorted({rank.pid for rank in _find_all()})
        there = ", ".join(map(str, others)) if others else "none"
        raise BackendUnavailable(
            f"{who}: it has no shared memory of hpcpar. It must be a rank on the node engine, "
            f"between init() and shutdown(). Processes here that are: {there}."
        )
    return found


def _record_of(rank: _Rank) -> RecordReader:
    """Map the record of a window, to read it."""
    who = f"PID {rank.pid}"
    if rank.header.version != LAYOUT_VERSION:
        raise BackendUnavailable(
            f"{who}: its memory has layout version {rank.header.version}, and this hpcpar reads "
            f"{LAYOUT_VERSION}. Use the hpcpar that the job runs."
        )
    sizes = node_sizes()
    try:
        fd = os.open(rank.fd_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # All in front of the record is mapped too: pages may be larger than what lies there.
            memory = mmap(fd, sizes["areas"], flags=MAP_SHARED, prot=PROT_READ)
        finally:
            os.close(fd)
        return RecordReader(memoryview(memory)[sizes["record"] : sizes["areas"]])
    except (OSError, ValueError) as error:
        raise BackendUnavailable(f"{who}: its record cannot be read: {error}.") from None


def _show(rank: _Rank, last: int) -> None:
    reader = _record_of(rank)
    lines = lines_of(reader, last, time.monotonic_ns())
    state = _LEFT.get(rank.header.state, "") + _state_of(rank.pid)
    print(f"rank {rank.header.rank}, PID {rank.pid}{state}: {_command_of(rank.pid)}")
    print("\n".join(lines), flush=True)


def _state_of(pid: int) -> str:
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
        state = file.read().rpartition(")")[2].split()[0]  # the name may hold anything
        return f", {_STATES[state]}" if state in _STATES else ""
    return ""


def _command_of(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().rstrip(b"\0").decode(errors="replace").split("\0")
        return shlex.join(words)
    return "?"


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("pid", type=int, metavar="PID", help="process number of a rank")
    parser.add_argument(
        "--all", action="store_true", help="show all processes of the same job on this machine"
    )
    parser.add_argument(
        "--last", type=int, default=8, metavar="N", help="so many operations (default 8)"
    )


def _call(args: Namespace) -> int:
    for name, value, least in (("PID", args.pid, 1), ("--last", args.last, 0)):
        if value < least:
            raise ArgumentError(f"{name} {value}: it is at least {least}.")
    ranks = _find(args.pid)
    if args.all:
        keys = {rank.header.key for rank in ranks}
        ranks = [rank for rank in _find_all() if rank.header.key in keys]
    for rank in sorted(ranks, key=lambda rank: rank.header.rank):
        _show(rank, args.last)
    return 0


COMMAND = Command(
    "inspect",
    "show the last operations of a running process, from outside",
    _DESCRIPTION,
    _add_arguments,
    _call,
)

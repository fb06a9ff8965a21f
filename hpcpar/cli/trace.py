"""``hpcpar trace``: one trace of the records that ranks have written each for itself."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..bench.table import Table, render
from ..debug.merge import load_records, summary
from ..debug.timeline import trace_events, write_trace
from .command import Command

__all__ = ["COMMAND"]

_DESCRIPTION = """\
Merge what ranks wrote with hpcpar.debug.save_record into one file, and print a summary.

  hpcpar trace runs/records
  hpcpar trace runs/records -o runs/trace.json
  hpcpar trace rank-00000.json rank-00003.json --quiet -o two.json

Open the file at ui.perfetto.dev or in chrome://tracing: a process per rank, a track per group, and
below them what the rank did in between, as the parts of data parallel steps. Ranks of other
machines are aligned by their time of day.
"""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="folders, or files of ranks")
    parser.add_argument("-o", "--out", default="trace.json", help="the merged file (trace.json)")
    parser.add_argument("--quiet", action="store_true", help="print no summary")


def _call(args: Namespace) -> int:
    records = load_records(args.paths)
    write_trace(Path(args.out), trace_events(list(records.values()), list(records)))
    if not args.quiet:
        print(render(Table(f"{args.out}: {len(records)} ranks", *summary(records))))
    return 0


COMMAND = Command(
    "trace",
    "merge the records of ranks into one file for Perfetto, and sum them up",
    _DESCRIPTION,
    _add_arguments,
    _call,
)

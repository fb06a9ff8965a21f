"""``hpcpar tune``: measure where one way of the node engine becomes faster, and keep it."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Any

from ..bench import tune
from ..comm import tuning, tuning_file
from ..comm.launch import is_launched
from ..comm.world import init, shutdown
from ..errors import ArgumentError
from . import run
from .command import Command
from .report import check_place, show

__all__ = ["COMMAND"]

_DESCRIPTION = """\
Measure the switch points of the node engine on this machine, and keep them for later jobs.

  hpcpar tune -n 2             # seconds; leave the machine alone meanwhile
  hpcpar tune -n 2 --dry-run   # measure and show, keep nothing
  hpcpar tune --show           # what jobs on this machine take now, and where from

Candidates take turns with what is built in; one replaces it where it is at least 3 % faster. The
table is kept by processor in $XDG_CACHE_HOME/hpcpar/tuning.json (~/.cache), or in the file that
HPCPAR_TUNING names; HPCPAR_TUNING=off ignores it. Rank 0's table holds for all ranks. No result
depends on it, to the bit.
"""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-n", type=int, metavar="N", help="start N ranks (default: the cores)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (default 9)")
    parser.add_argument("--dry-run", action="store_true", help="keep nothing")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--json", metavar="FILE", help="write all figures; - prints them only")


def _call(args: Namespace) -> int:
    options = tune.Options(args.rounds)
    check_place(args.json)
    if args.show:
        return _show_current()
    if not is_launched(os.environ):
        return _start(args)
    if args.n is not None:
        raise ArgumentError(f"-n {args.n}: this is a job already. Leave -n to mpiexec.")
    path = tuning_file.where_kept(os.environ)
    os.environ["HPCPAR_TUNING"] = "off"  # what is there may be wrong, or not be there yet
    group = init(backend="node")
    report = tune.run(group, options, _say if group.rank == 0 else None)
    if group.rank == 0:
        _tell(report, args, None if args.dry_run else path)
    shutdown()
    return 0


def _start(args: Namespace) -> int:
    ranks = args.n if args.n is not None else max(2, len(os.sched_getaffinity(0)))
    words = ["tune", "--rounds", str(args.rounds)]
    words += ["--dry-run"] * args.dry_run
    words += [] if args.json is None else ["--json", args.json]
    return run.start_own(ranks, words)


def _show_current() -> int:
    found, path = tuning_file.find(os.environ)
    print(f"{tuning_file.cpu_name()}: {'built in' if path is None else f'from {path}'}")
    for name, value in asdict(found).items():
        print(f"  {name:<11} {value}")
    return 0


def _say(line: str) -> None:
    print(f"hpcpar tune: {line}", file=sys.stderr, flush=True)


def _tell(report: dict[str, Any], args: Namespace, path: str | None) -> None:
    show(report, args.json)
    if path is not None:
        tuning_file.save(path, tuning.Tuning(**report["tuning"]))
        _say(f"kept in {path}")


COMMAND = Command(
    "tune",
    "measure the node engine's switch points and keep them",
    _DESCRIPTION,
    _add_arguments,
    _call,
)

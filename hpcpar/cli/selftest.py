"""``hpcpar selftest``: random collectives on several numbers of ranks, each equal to NumPy's."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._arrays import Array
from ..bench import selftest
from ..bench.environment import environment
from ..bench.selftest import CaseFailed, Options
from ..bench.selftest_report import Failure, Tally, tables
from ..bench.table import render
from ..comm.launch import is_launched
from ..comm.libmpi import find_mpiexec
from ..comm.settings import Settings
from ..comm.world import init, run_ranks, shutdown
from ..errors import ArgumentError, BackendUnavailable
from .command import Command
from .selftest_job import AT, TALLY, Watch, run_job

__all__ = ["COMMAND"]

_DESCRIPTION = """\
Run random cases of the collectives: verb, dtype, op, sizes, layouts, sub-group, in place or not,
asynchronous or not, ranks that come late. Compare each result with NumPy's.

  hpcpar selftest --quick
  hpcpar selftest --minutes 10 -n 2,8
  hpcpar selftest --cases 1000 --backend threads --json out.json
  mpiexec -n 4 hpcpar selftest --minutes 1

The first difference or error ends the run with a report: the case, the rank, the first element
that differs, and the command that repeats just this case. The exit code is then 1; it is 2 for a
mistake in the request.
"""
_RANKS = "2,3,4,8"
_QUICK_SECONDS = 45.0
_LEAST_SECONDS = 0.5


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-n", metavar="A,B", help=f"numbers of ranks, one after the other (default {_RANKS})"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, metavar="N", help="for all numbers of ranks")
    length.add_argument("--quick", action="store_true", help="less than a minute (default)")
    length.add_argument("--cases", type=int, metavar="N", help="for each number of ranks")
    parser.add_argument("--seed", type=int, help="of the cases (default: a new one)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default 0)")
    parser.add_argument("--backend", default="auto", help="as in init; threads without MPI")
    parser.add_argument("--check", choices=("off", "auto", "full"), default="auto")
    parser.add_argument("--json", metavar="FILE", help="write all counts, or the failure")
    parser.add_argument("--into", metavar="FOLDER", help="for the ranks that -n starts: results")


def _call(args: Namespace) -> int:
    if args.json is not None and not Path(args.json).absolute().parent.is_dir():
        raise ArgumentError(f"--json {args.json}: there is no such folder.")
    Settings(args.backend, check=args.check)
    if args.backend == "fake":
        raise ArgumentError("--backend fake: moves no data. Take mpi or threads.")
    launched = is_launched(os.environ)
    if launched and args.n is not None:
        raise ArgumentError(f"-n {args.n}: this is a job already. Leave -n to mpiexec.")
    args.seed = secrets.randbits(32) if args.seed is None else args.seed
    return _in_job(args) if launched else _start(args)


def _options(args: Namespace, seconds: float | None) -> Options:
    return Options(args.seed, args.first, args.cases, seconds)


def _seconds(args: Namespace) -> float | None:
    """Return how long the whole run takes; None where cases are counted."""
    if args.cases is not None:
        return None
    seconds = _QUICK_SECONDS if args.minutes is None else 60.0 * args.minutes
    return Options(seconds=seconds).seconds


def _again(args: Namespace) -> tuple[str, ...]:
    """Return the further words of the command that repeats a case."""
    backend = () if args.backend == "auto" else ("--backend", args.backend)
    return (*backend, *(() if args.check == "auto" else ("--check", args.check)))


# -- the ranks of a job --------------------------------------------------------------------


def _in_job(args: Namespace) -> int:
    """Be a rank of a job that runs cases."""
    group = init(backend=args.backend, check=args.check, timeout=selftest.TIMEOUT)
    args.seed = group.broadcast_object(args.seed)
    folder = None if args.into is None else Path(args.into)
    if folder is not None and not folder.is_dir():  # on another host
        folder = None
    options = _options(args, _seconds(args))
    try:
        tally = selftest.run(group, options, at=_shared(folder), say=_line(args, group))
    except CaseFailed as error:
        failure = replace(error.failure, words=_again(args))
        if folder is not None:
            (folder / f"{group.rank}.json").write_text(json.dumps(asdict(failure)))
        # The guard of the job ends it: it says once, for all ranks, what this one says.
        raise CaseFailed(failure) from None
    if group.rank == 0 and folder is not None:
        (folder / TALLY).write_text(json.dumps(tally.to_dict()))
    elif group.rank == 0 and args.into is None:
        _finish(args, [tally], None)
    shutdown()
    return 0


def _shared(folder: Path | None) -> Array | None:
    return None if folder is None else np.memmap(folder / AT, np.int64, "r+")


def _line(args: Namespace, group: Any) -> Any:
    """Return what says how far the job is, where nobody else does."""
    if group.rank or args.into is not None:
        return None
    watch = Watch(_seconds(args), args.cases)
    return lambda done: watch.update(group.size, done)


# -- the process that starts them ----------------------------------------------------------


def _start(args: Namespace) -> int:
    sizes = _sizes(_RANKS if args.n is None else args.n)
    seconds = _seconds(args)
    _options(args, seconds)  # refused here rather than on each rank
    mpiexec = None if args.backend == "threads" else find_mpiexec(probe=True)
    if mpiexec is None and args.backend not in ("auto", "threads"):
        raise BackendUnavailable(
            f"--backend {args.backend}: there is no mpiexec to start ranks with. Install an MPI, "
            "or take --backend threads."
        )
    tallies: list[Tally] = []
    failure: Failure | None = None
    end = None if seconds is None else time.monotonic() + seconds
    with Watch(seconds, None if args.cases is None else args.cases * len(sizes)) as watch:
        for place, size in enumerate(sizes):
            options = _options(args, _share(end, len(sizes) - place))
            if mpiexec is None:
                outcome = _on_threads(args, size, options, watch)
            else:
                words = ["--backend", args.backend, "--check", args.check]
                outcome = run_job(mpiexec, size, options, words, watch)
            if isinstance(outcome, Failure):
                failure = replace(outcome, words=_again(args))
                break
            watch.finished += outcome.cases
            tallies.append(outcome)
    return _finish(args, tallies, failure)


def _sizes(text: str) -> list[int]:
    sizes = []
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) < 1:
            raise ArgumentError(f"-n {word}: the number of ranks is at least 1.")
        sizes.append(int(word))
    return sizes


def _share(end: float | None, left: int) -> float | None:
    """Return the seconds of the next world: its share of what is left."""
    return None if end is None else max(_LEAST_SECONDS, (end - time.monotonic()) / left)


def _on_threads(args: Namespace, size: int, options: Options, watch: Watch) -> Tally | Failure:
    """Run on ranks that are threads of this process."""
    failures: list[Failure] = []

    def body(group: Any) -> Tally:
        """Play one rank."""
        say = (lambda done: watch.update(size, done)) if group.rank == 0 else None
        try:
            return selftest.run(group, options, say=say)
        except CaseFailed as error:
            failures.append(error.failure)
            raise

    try:
        found: list[Tally] = run_ranks(size, body, check=args.check, timeout=selftest.TIMEOUT)
    except Exception:
        if not failures:
            raise
        return min(failures, key=lambda failure: (failure.consequence, failure.rank))
    return found[0]


def _finish(args: Namespace, tallies: Sequence[Tally], failure: Failure | None) -> int:
    """Show what was run; return the exit code."""
    if args.json is not None:
        report = {
            "selftest": "collectives",
            "schema": 1,
            "environment": environment(),
            "seed": args.seed,
            "results": [tally.to_dict() for tally in tallies],
            "failure": None if failure is None else asdict(failure),
        }
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    if failure is not None:
        print(f"hpcpar selftest: {failure.text()}", file=sys.stderr, flush=True)
        return 1
    cases, seconds = sum(t.cases for t in tallies), sum(t.seconds for t in tallies)
    print(f"selftest, seed {args.seed}: {cases} cases in {seconds:.1f} s, all as NumPy's")
    print("\n\n".join(render(table) for table in tables(tallies)), flush=True)
    return 0


COMMAND = Command(
    "selftest",
    "run random collectives and compare them with NumPy",
    _DESCRIPTION,
    _add_arguments,
    _call,
)

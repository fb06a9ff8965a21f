"""Ranks as processes for ``hpcpar selftest``: started, watched, their end explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .._arrays import Array
from ..bench.selftest import TIMEOUT, Options
from ..bench.selftest_draw import draw
from ..bench.selftest_report import Failure, Tally
from ..comm.libmpi import mpiexec_library
from ..errors import LaunchError
from . import run

__all__ = ["AT", "TALLY", "Watch", "run_job"]

#: Files of a job's folder: the number of each rank's case; what rank 0 says at the end.
AT, TALLY = "at", "tally.json"
_OUTPUT = "output"
_LOOK = 0.2
# The deadline of a call is the job's own; this is for ranks that do not even keep that.
_STUCK_SECONDS = TIMEOUT + 60.0
_LINE_SECONDS = 5.0
_TAIL = 2000


class Watch:
    """Says how far a run is: in one changing line on a terminal, else every few seconds.

    Parameters
    ----------
    seconds : float or None
        Of the whole run; None where cases are counted.
    cases : int or None
        Of the whole run.

    Attributes
    ----------
    finished : int
        Cases of the worlds that are done.
    """

    def __init__(self, seconds: float | None, cases: int | None) -> None:
        self._seconds, self._cases = seconds, cases
        self._begin = time.monotonic()
        self._next = self._begin + _LINE_SECONDS
        self._status: Any = None
        self.finished = 0

    def __enter__(self) -> Watch:
        if find_spec("rich") and sys.stderr.isatty():
            from rich.console import Console  # heavy and optional

            self._status = Console(stderr=True).status("starting ranks")
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, ranks: int, done: int) -> None:
        """Say it, if it is time to.

        Parameters
        ----------
        ranks : int
            Of the world that runs now.
        done : int
            Its cases so far.
        """
        if self._status is not None:
            self._status.update(self.line(ranks, done))
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            print(f"hpcpar selftest: {self.line(ranks, done)}", file=sys.stderr, flush=True)

    def line(self, ranks: int, done: int) -> str:
        """Return cases so far, how many in a second, and the time left."""
        passed, done = time.monotonic() - self._begin, self.finished + done
        rate = done / passed if passed else 0.0
        left = 0.0 if self._seconds is None else self._seconds - passed
        if self._cases is not None and rate:
            left = (self._cases - done) / rate
        return f"{ranks} ranks, {done} cases, {rate:.0f}/s, {max(0.0, left):.0f} s left"


def run_job(
    mpiexec: str, size: int, options: Options, words: Sequence[str], watch: Watch
) -> Tally | Failure:
    """Run cases on `size` processes.

    Parameters
    ----------
    mpiexec : str
    size : int
    options : Options
    words : sequence of str
        Further words for the ranks.
    watch : Watch

    Returns
    -------
    Tally or Failure

    Raises
    ------
    LaunchError
        No rank came as far as its first case.
    """
    with tempfile.TemporaryDirectory(prefix="hpcpar-selftest-") as name:
        folder = Path(name)
        at: Array = np.memmap(folder / AT, np.int64, "w+", shape=(size,))
        at[:] = -1
        command, env = _command(mpiexec, size, folder, options, words)
        with open(folder / _OUTPUT, "wb") as output:
            job = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            stuck = _watch(job, at, options, watch)
        finally:
            _end(job)
        return _outcome(folder, at, options, stuck, job.returncode)


def _command(
    mpiexec: str, size: int, folder: Path, options: Options, words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    program = ["-m", "hpcpar", "selftest", "--into", str(folder), *words]
    program += ["--seed", str(options.seed), "--first", str(options.first)]
    if options.cases is not None:
        program += ["--cases", str(options.cases)]
    elif options.seconds is not None:
        program += ["--minutes", repr(options.seconds / 60)]
    # The ranks shall run this installation, not a source tree that they happen to start in.
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    made = run.plan(
        program,
        size,
        None,
        mpiexec,
        mpiexec_library(mpiexec),
        env,
        root=os.geteuid() == 0,
        cores=len(os.sched_getaffinity(0)),
    )
    return made.command, {**env, **made.env}


def _watch(job: subprocess.Popen[bytes], at: Array, options: Options, watch: Watch) -> bool:
    """Wait for the end of the job; return whether it did not come."""
    seen, changed = at.copy(), time.monotonic()
    while True:
        try:
            job.wait(_LOOK)
        except subprocess.TimeoutExpired:
            pass
        else:
            return False
        if (at != seen).any():
            seen, changed = at.copy(), time.monotonic()
        elif time.monotonic() - changed > _STUCK_SECONDS:
            return True
        if at[0] >= 0:
            watch.update(at.size, int(at[0]) - options.first)


def _end(job: subprocess.Popen[bytes]) -> None:
    """See that the launcher, and with it its ranks, are gone."""
    if job.poll() is not None:
        return
    job.terminate()
    try:
        job.wait(10)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def _outcome(folder: Path, at: Array, options: Options, stuck: bool, code: int) -> Tally | Failure:
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in _reporters(folder)]
    if told:
        found = [Failure.from_dict(one) for one in told]
        return min(found, key=lambda failure: (failure.consequence, failure.rank))
    if code == 0 and not stuck and (folder / TALLY).is_file():
        return Tally.from_dict(json.loads((folder / TALLY).read_text()))
    tail = (folder / _OUTPUT).read_text(errors="replace")[-_TAIL:].strip()
    if at.max() < 0:
        ended = "they were still starting" if stuck else f"exit code {code}"
        raise LaunchError(f"selftest: the {at.size} ranks did not start, {ended}.\n{tail}")
    case = draw(options.seed, int(at.max()), at.size)
    why = f"no case ended for {_STUCK_SECONDS:.0f} s" if stuck else f"exit code {code}, no report"
    problem = f"{why}; the ranks were in cases {at.tolist()}.\n{tail}"
    return Failure.of(case, -1, problem)


def _reporters(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())

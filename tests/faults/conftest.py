"""Jobs that are meant to go wrong: each is an mpiexec of its own with a hard limit."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from hpcpar.comm import launch
from hpcpar.comm.libmpi import find_mpiexec

OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_osc": "^ucx",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
LEFT_BEHIND = ("mpich_shm_", "sm_segment.")

PREAMBLE = """
import os, signal, sys, time
import numpy as np
import hpcpar as hp
group = hp.init()
last = group.rank == group.size - 1
"""

HOLD = 'trap "" USR1; "$@"; code=$?; test $code -lt 128 || sleep 1; exit $code'
NODE_PREAMBLE = """
import json, os, signal, subprocess, sys, time
import numpy as np
import hpcpar as hp
from hpcpar.errors import *
from pathlib import Path

def say(what, error=None):
    text = "" if error is None else f"{type(error).__name__}: {error}"
    with open(Path(__file__).with_name("notes"), "a") as file:
        file.write(json.dumps([group.rank, time.time(), what, text]) + "\\n")

def signal_me(name, delay, then=":"):
    # From outside, so that any moment may be hit.
    note = Path(__file__).with_name("signalled")
    script = f"sleep {delay}; date +%s.%N > {note}; kill -{name} {os.getpid()}; {then}"
    subprocess.Popen(["sh", "-c", script], stdin=-3, stdout=-3, stderr=-3)
"""
NODE_START = """
group = hp.init()
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Hydra sends it to survivors
last = group.rank == group.size - 1
x = np.ones(int(os.environ.get("COUNT", 4)))
out = np.empty_like(x)
"""


@dataclass(frozen=True)
class Result:
    """How a job ended; `code` is None when it had to be killed."""

    code: int | None
    out: str
    err: str
    seconds: float


@pytest.fixture
def job(tmp_path):
    """Return a function that runs a script, after the preamble, on n ranks."""
    if launch.is_launched(os.environ):
        pytest.skip("starts jobs of its own, which does not work inside a job")

    def run(body, n=2, *, limit=30.0, preamble=PREAMBLE, survive=False, around=(), under=(), **env):
        script = tmp_path / "script.py"
        script.write_text(preamble + textwrap.dedent(body))
        mpiexec = find_mpiexec()
        flags, shell = survivors(mpiexec) if survive else ((), ())
        under = (*under, *shell)
        command = [*around, mpiexec, *flags, "-n", str(n), *under, sys.executable, str(script)]
        return run_limited(command, limit, {**os.environ, **OPEN_MPI, **env})

    return run


@dataclass(frozen=True)
class Note:
    """What a rank wrote, and when."""

    rank: int
    at: float
    what: str
    text: str


@dataclass(frozen=True)
class Story(Result):
    """How a job of the node engine ended, and what its ranks wrote."""

    notes: list[Note]
    signalled: float

    def said(self, what):
        """Return the notes about one thing."""
        return [note for note in self.notes if note.what == what]


@pytest.fixture
def node_job(job, tmp_path):
    """Return a function that runs a script of ranks that write notes; nothing of it is left."""

    def run(body, n=2, *, start=NODE_START, **how):
        path, when = tmp_path / "notes", tmp_path / "signalled"
        for old in (path, when):  # of a job before
            old.unlink(missing_ok=True)
        result = job(body, n, preamble=NODE_PREAMBLE + start, survive=True, **how)
        nothing_is_left(str(tmp_path / "script.py"))
        lines = path.read_text().splitlines() if path.exists() else []
        notes = sorted((Note(*json.loads(line)) for line in lines), key=lambda note: note.at)
        signalled = float(when.read_text()) if when.exists() else 0.0
        return Story(result.code, result.out, result.err, result.seconds, notes, signalled)

    return run


def nothing_is_left(script):
    """Check that no process of the job lives and none of our files lies in /dev/shm."""
    end = time.monotonic() + 5
    while (alive := processes_of(script)) and time.monotonic() < end:
        time.sleep(0.05)
    assert alive == []
    assert [path.name for path in Path("/dev/shm").glob("hpcpar*")] == []


def processes_of(script):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            command = (process / "cmdline").read_bytes()
            found += [process.name] if script.encode() in command else []
    return found


@cache
def survivors(mpiexec):
    """Return what makes a launcher leave the others alone when one dies: flags, each rank's shell.

    Hydra now and then ends the job in spite of its flag. So a shell stands between it and the
    rank, and tells it of a death only when the others have seen it.
    """
    version = [mpiexec, "--version"]
    done = subprocess.run(version, capture_output=True, timeout=20, env={**os.environ, **OPEN_MPI})
    if b"HYDRA" in done.stdout:
        return ["-disable-auto-cleanup"], ["sh", "-c", HOLD, "sh"]
    return ["--with-ft", "ulfm", "--mca", "coll", "^han"], []


def run_limited(command, limit, env):
    began = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            out, err = end(process)
            code = None
    seconds = time.monotonic() - began
    return Result(code, out.decode(errors="replace"), err.decode(errors="replace"), seconds)


def end(process):
    """End a job that hangs: the launcher first, which takes its ranks along."""
    process.terminate()
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


@pytest.fixture(scope="session", autouse=True)
def _swept():
    """Remove the shared memory files that killed jobs left and no process maps."""
    sweep()
    yield
    sweep()


def sweep():
    mapped = "".join(maps_of(process) for process in Path("/proc").glob("[0-9]*"))
    for path in Path("/dev/shm").iterdir():
        if path.name.startswith(LEFT_BEHIND) and str(path) not in mapped and is_old(path):
            path.unlink(missing_ok=True)


def maps_of(process):
    try:
        return (process / "maps").read_text()
    except OSError:  # it ended, or it is not ours
        return ""


def is_old(path):
    """Tell whether nobody can be about to map it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.getuid() and time.time() - found.st_ctime > 5

"""Jobs that are meant to go wrong: each is an mpiexec of its own with a hard limit."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
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

    def run(body, n=2, *, limit=30.0, preamble=PREAMBLE, **env):
        script = tmp_path / "script.py"
        script.write_text(preamble + textwrap.dedent(body))
        command = [find_mpiexec(), "-n", str(n), sys.executable, str(script)]
        return run_limited(command, limit, {**os.environ, **OPEN_MPI, **env})

    return run


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

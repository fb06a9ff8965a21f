"""torch.distributed over our backend: programs of torch's under mpirun, torchrun, and spawned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.comm import launch
from hpcpar.comm.libmpi import find_mpiexec

HERE = Path(__file__).resolve().parent
ENV = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def torch():
    """Give torch, or say why not."""
    if launch.is_launched(os.environ) or find_mpiexec() is None:
        pytest.skip("starts jobs of its own, which needs an mpiexec and no job around it")
    return pytest.importorskip("torch")


def started(words, timeout=200):
    env = {name: value for name, value in ENV.items() if name not in NAMES}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_under_mpirun(size):
    script = str(HERE / "torch_checks.py")
    said = started([sys.executable, "-m", "hpcpar", "run", "-n", str(size), script]).split()
    assert "training" in said
    assert "checkpoint" in said


def test_under_torchrun_without_mpi():
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words += ["--master-port", "0", "--standalone"]
    said = started([*words, str(HERE / "torch_checks.py"), "reductions", "messages", "groups"])
    assert said.split()[-3:] == ["reductions", "messages", "groups"]


SPAWNED = """
import sys, torch, torch.distributed as dist, hpcpar.interop.torch
def work(rank, where):
    dist.init_process_group("hpcpar", init_method=f"file://{where}", rank=rank, world_size=2)
    x = torch.ones(1) * (rank + 1)
    dist.all_reduce(x)
    assert x == 3 and "mpi4py.MPI" not in sys.modules
    dist.destroy_process_group()
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(sys.argv[1],), nprocs=2)
    print("done")
"""


def test_spawned_processes(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    assert started([sys.executable, str(script), str(tmp_path / "store")]) == "done\n"


ALONE = """
import torch, torch.distributed as dist, hpcpar.interop.torch
dist.init_process_group("hpcpar", init_method="tcp://localhost:0", rank=0, world_size=1)
x = torch.ones(2)
dist.all_reduce(x)
got = [torch.zeros(2)]
dist.all_gather(got, x)
assert x.tolist() == got[0].tolist() == [1, 1]
print("done")
"""


def test_a_world_of_one():
    assert started([sys.executable, "-c", ALONE]) == "done\n"


def test_ranks_on_several_machines_need_mpi(tmp_path):
    """Ranks that share no memory look like it."""
    script = tmp_path / "apart.py"
    script.write_text(
        SPAWNED.replace("    x = torch", "    raise AssertionError\n    x = torch").replace(
            "def work", "import os\nos.environ['HPCPAR_SHM'] = 'none'\ndef work"
        )
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")],
        env=ENV, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode != 0
    assert "UnsupportedError: hpcpar: without MPI all ranks must share the memory" in done.stderr


def test_torchs_own_tests(tmp_path):
    pytest.importorskip("expecttest", reason="torch's suite needs it")
    script = str(HERE / "torch_suite.py")
    said = started([sys.executable, "-m", "hpcpar", "run", "-n", "3", script, str(tmp_path)])
    passed = next(int(line.split()[0]) for line in said.splitlines() if line.endswith(" passed"))
    assert passed >= 25


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_what_reviewers_tried(size):
    script = str(HERE / "torch_trials.py")
    said = started([sys.executable, "-m", "hpcpar", "run", "-n", str(size), script]).split()
    assert said[-1] == "again"


@pytest.mark.slow
def test_torchrun_in_a_job_of_mpi():
    """The ranks that it starts inherit what says which rank of MPI it is."""
    words = [sys.executable, "-m", "hpcpar", "run", "-n", "1"]
    words += ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    said = started([*words, str(HERE / "torch_trials.py"), "one_order", "again"])
    assert said.split()[-2:] == ["one_order", "again"]


FAILING = """
import sys, time, torch, torch.distributed as dist, hpcpar.interop.torch
from datetime import timedelta
dist.init_process_group("hpcpar", timeout=timedelta(seconds=3))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 50))
model(torch.ones(1, 50)).sum().backward()
if dist.get_rank() == 1:
    if sys.argv[1] == "late":
        time.sleep(6)
    sys.exit()
try:
    model(torch.ones(1, 50)).sum().backward()
except RuntimeError as error:
    print("told:", error, flush=True)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [("gone", "left or died"), pytest.param("late", "Timed out", marks=pytest.mark.slow)],
)
def test_a_failure_under_ddp_is_an_error(tmp_path, how, said):
    """torch's C++ must see it as one."""
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*words, "--standalone", str(script), how],
        env=ENV, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "told:" in done.stdout, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_modules_under_our_ddp(size):
    script = str(HERE / "torch_attached.py")
    said = started([sys.executable, "-m", "hpcpar", "run", "-n", str(size), script]).split()
    assert said[-1] == "what_is_refused"


UNCAUGHT = """
import torch.distributed as dist, hpcpar as hp, hpcpar.interop.torch
hp.init()
dist.init_process_group("gloo")
raise ValueError("a mistake")
"""


def test_an_uncaught_exception_is_told_though_torch_collects_it(tmp_path):
    script = tmp_path / "uncaught.py"
    script.write_text(UNCAUGHT)
    words = [sys.executable, "-m", "hpcpar", "run", "-n", "2", str(script)]
    done = subprocess.run(words, env=ENV, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "ValueError: a mistake" in done.stdout + done.stderr

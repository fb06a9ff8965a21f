"""The `hpcpar` command, as functions and as a process."""

import json
import os
import subprocess
import sys
import termios

import pytest

from hpcpar import cli
from hpcpar.cli import facts, info, run
from hpcpar.comm.bootstrap import SelfBootstrap
from hpcpar.errors import BackendUnavailable


def hpcpar(*words, **env):
    done = subprocess.run(
        [sys.executable, "-m", "hpcpar", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_help_and_version(capsys):
    for words, expected in [
        (["--help"], "info "),
        (["--version"], "hpcpar "),
        (["run", "--help"], "hpcpar run -n 4 train.py"),
        (["info", "--help"], "printed once, by rank 0"),
    ]:
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        assert left.value.code == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["nothing"], ["run"], ["run", "-n", "x", "s.py"]])
def test_a_wrong_command_line_is_refused(words, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 2
    assert "usage: hpcpar" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "-n", "0", __file__], "-n 0: the number of ranks is at least 1"),
        (["run", "none.py"], "none.py: no such script"),
        (["run", "-n", "2", "-m"], "-m: names no module"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_starts(words, message, capsys):
    assert cli.main(words) == 2
    assert f"hpcpar run: {message}" in capsys.readouterr().err


def test_no_mpiexec_is_said(monkeypatch, capsys):
    monkeypatch.setattr(run, "find_mpiexec", lambda probe: None)
    assert cli.main(["run", "-n", "2", __file__]) == 2
    assert "no mpiexec beside" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "separated"),
    [
        ("run -n 2 s.py -n 3", "run -n 2 -- s.py -n 3"),
        ("run -v --hosts a:2,b s.py", "run -v --hosts a:2,b -- s.py"),
        ("run --hosts=a -n2 -m mod -m x", "run --hosts=a -n2 -- -m mod -m x"),
        ("run -n 2 -- s.py", "run -n 2 -- s.py"),
        ("run --help", "run --help"),
        ("run", "run"),
    ],
)
def test_options_of_the_program_stay_its_own(words, separated):
    assert run.separate(words.split()) == separated.split()


def plan(library, *, num_ranks=4, hosts=None, env=None, root=False, cores=2):
    return run.plan(
        ["s.py", "-x"], num_ranks, hosts, "/m/mpiexec", library, env or {}, root=root, cores=cores
    )


def test_plan_of_mpich_needs_nothing():
    made = plan("MPICH", root=True)
    assert made.command == ["/m/mpiexec", "-n", "4", sys.executable, "s.py", "-x"]
    assert (made.env, made.reasons) == ({}, [])
    made = plan("MPICH", num_ranks=None, hosts="a:2,b:2", env={"HPCPAR_X": "1"})
    assert made.command == ["/m/mpiexec", "-hosts", "a:2,b:2", sys.executable, "s.py", "-x"]


def test_plan_of_open_mpi_adds_what_it_refuses_without():
    made = plan("Open MPI", root=True)
    assert made.command[1:5] == ["--oversubscribe", "--bind-to", "none", "-n"]
    assert made.env == {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert len(made.reasons) == 2
    made = plan("Open MPI", num_ranks=2)
    assert made.command[1:3] == ["-n", "2"]
    assert (made.env, made.reasons) == ({}, [])


def test_plan_of_open_mpi_carries_settings_to_other_hosts():
    env = {"HPCPAR_TIMEOUT": "9", "OMP_NUM_THREADS": "1", "HOME": "/", "HPCPAR_A": ""}
    made = plan("Open MPI", hosts="a:2,b:2", env=env)
    carried = ["-x", "HPCPAR_A", "-x", "HPCPAR_TIMEOUT", "-x", "OMP_NUM_THREADS"]
    assert made.command[1:-3] == [*carried, "-n", "4", "--host", "a:2,b:2"]


def test_run_gives_arguments_and_the_exit_code_of_the_job(tmp_path):
    script = tmp_path / "s.py"
    script.write_text(
        "import sys\nfrom mpi4py import MPI\n"
        "words = MPI.COMM_WORLD.gather(sys.argv[1:])\n"
        "if words:\n    print(words, flush=True)\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "sys.exit(3)\n"
    )
    code, out, err = hpcpar("run", "-v", "-n", "3", str(script), "-n", "--help")
    assert (code, out) == (3, f"{[['-n', '--help']] * 3}\n"), err
    assert f"mpiexec{' --oversubscribe' * ('OMPI' in err)}" in err
    assert f"-n 3 {sys.executable} {script} -n --help" in err


def test_run_tells_ranks_how_wide_the_terminal_is(tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import os\nprint(os.environ.get('HPCPAR_COLUMNS'))\n")
    assert hpcpar("run", "-n", "1", str(script))[1] == "None\n"
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 91))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    words = [sys.executable, "-m", "hpcpar", "run", "-n", "2", str(script)]
    code = subprocess.run(words, stdout=theirs, env=env, timeout=60).returncode
    os.close(theirs)
    assert (code, os.read(ours, 100).split()) == (0, [b"91", b"91"])
    os.close(ours)


def test_info_alone_starts_no_mpi_and_tells_all_sections():
    code, out, err = hpcpar("info", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert list(told) == [
        *("software", "native core", "MPI", "launch", "job", "cores", "BLAS"),
        *("shared memory", "node engine", "devices"),
    ]
    assert told["launch"] == {
        "launcher": "python",
        "rank": 0,
        "size": 1,
        "local_rank": 0,
        "hint": "",
    }
    assert told["MPI"]["library"].startswith(("MPICH ", "Open MPI "))
    assert told["MPI"]["path"].startswith("/")
    assert told["job"]["size"] == 1
    assert told["cores"]["usable"] == sorted(os.sched_getaffinity(0))
    code, out, _ = hpcpar("info")
    assert code == 0
    assert all(f"{name}\n" in out for name in told)


def test_info_of_a_job_is_printed_once_by_rank_0():
    code, out, err = hpcpar("run", "-n", "3", "-m", "hpcpar", "info", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["launch"]["rank"], told["launch"]["size"]) == (0, 3)
    assert told["launch"]["threads"] == "multiple"
    assert list(told["job"]["nodes"].values()) == [[0, 1, 2]]
    assert len(told["job"]["cores of ranks"]) == 3


def test_info_without_mpi_says_so(tmp_path):
    code, out, err = hpcpar("info", "--json", MPI4PY_LIBMPI=str(tmp_path / "libmpi.so"))
    assert (code, err) == (0, "")
    assert "finds no MPI library" in json.loads(out)["MPI"]["problem"]


def test_info_shows_a_launch_that_cannot_work(monkeypatch, capsys):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setattr(info, "is_launched", lambda env: False)
    monkeypatch.setattr(info, "mpi_facts", dict)
    for name in [name for name in os.environ if name.startswith(("PMI", "OMPI_COMM", "PMIX"))]:
        monkeypatch.delenv(name)
    assert cli.main(["info"]) == 0
    assert "SLURM_STEP_NUM_TASKS=4 says that 4 processes" in capsys.readouterr().out


def test_errors_of_a_command_are_one_line(monkeypatch, capsys):
    def fails():
        raise BackendUnavailable("no such thing")

    monkeypatch.setattr(info, "_collect", fails)
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err == "hpcpar info: no such thing\n"


def rank(host, usable, threads):
    return {"host": host, "usable": usable, "threads": threads}


@pytest.mark.parametrize(
    ("every", "said"),
    [
        ([rank("a", [0, 1], 2)], ""),
        ([rank("a", [0, 1], 1), rank("a", [0, 1], 1)], ""),
        ([rank("a", [0], 1), rank("a", [1], 1)], ""),
        ([rank("a", [0, 1], 2), rank("b", [0, 1], 2)], ""),
        (
            [rank("b", [0], 1), rank("a", [0, 1], 2), rank("a", [0, 1], 2)],
            "a: 2 rank(s) with 4 BLAS threads in all on 2 core(s)",
        ),
        ([rank("a", [0, 1], 1)] * 3, "a: 3 ranks share 2 core(s)"),
    ],
)
def test_blas_warning(every, said):
    warning = info.blas_warning(every)
    assert warning.startswith(said)
    assert bool(warning) == bool(said)


def test_job_of_one():
    told = info.job(SelfBootstrap(), [0, 1], 4)
    assert told["size"] == 1
    assert list(told["nodes"].values()) == [[0]]
    assert "4 BLAS threads in all on 2 core(s)" in told["warning"]


@pytest.mark.parametrize(
    ("env", "threads", "source"),
    [
        ({}, 8, None),
        ({"OMP_NUM_THREADS": "3"}, 3, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4,2"}, 4, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "2"}, 2, "OPENBLAS_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "x"}, 8, None),
        ({"OMP_NUM_THREADS": "0"}, 8, None),
    ],
)
def test_blas_threads(env, threads, source):
    told = facts.blas_facts(env, 8)
    assert (told["threads"], told["set by"]) == (threads, source)


def test_facts_of_optional_packages_never_raise(monkeypatch):
    def fails():
        raise OSError("driver")

    monkeypatch.setattr(facts.importlib.util, "find_spec", lambda name: object())
    assert facts._quietly(fails) == "fails: driver"
    monkeypatch.setattr(facts.importlib.util, "find_spec", lambda name: None)
    assert facts._quietly(fails) is None
    monkeypatch.setattr(facts.shutil, "which", lambda name: None)
    assert facts.device_facts() == {"gpus": [], "cupy": None, "nccl": None}


def test_values_are_readable():
    assert info._text("dev_shm_bytes", 3 * 2**29) == "1.50 GiB"
    assert info._text("gpus", []) == "none"
    assert info._text("hint", "") == "none"
    assert info._text("size", 0) == "0"
    assert info._text("bound", False) == "False"

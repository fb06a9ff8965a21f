"""``hpcpar selftest`` as a command: what it starts, watches, says and refuses."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from hpcpar import cli
from hpcpar.bench.selftest import Options
from hpcpar.bench.selftest_report import Tally
from hpcpar.cli import selftest, selftest_job
from hpcpar.cli.selftest_job import Watch, run_job
from hpcpar.comm.group import Group
from hpcpar.errors import LaunchError

THREADS = ("--backend", "threads")


def test_two_threads_for_a_second(capsys, tmp_path):
    path = tmp_path / "out.json"
    words = ["selftest", *THREADS, "-n", "1,2", "--minutes", "0.01", "--json", str(path)]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert re.match(r"selftest, seed \d+: \d+ cases in \d+\.\d s, all as NumPy's\n", said)
    for line in (
        "cases by verb",
        "cases by dtype",
        "in all",
        "    all_reduce ",
        "backend  threads",
    ):
        assert line in said
    report = json.loads(path.read_text())
    assert [row["ranks"] for row in report["results"]] == [1, 2]
    assert (report["schema"], report["failure"]) == (1, None)
    assert all(row["cases"] > 0 for row in report["results"])


@pytest.fixture
def broken(monkeypatch):
    """Make a sum on rank 1 wrong."""
    right = Group.all_reduce

    def wrong(self, x, op="sum", **how):
        result = right(self, x, op, **how)
        if op == "bxor" and self.rank == 1 and isinstance(result, np.ndarray) and result.size > 1:
            result[(0,) * result.ndim] ^= 1
        return result

    monkeypatch.setattr(Group, "all_reduce", wrong)


def test_a_broken_verb_is_reported_with_the_command_that_repeats_it(broken, capsys, tmp_path):
    path = tmp_path / "out.json"
    asked = ["selftest", *THREADS, "-n", "3", "--seed", "5", "--check", "full"]
    assert cli.main([*asked, "--cases", "900", "--json", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    first = re.match(r"hpcpar selftest: case (\d+) with seed 5 failed on rank \d of 3: ", told.err)
    assert "verb         all_reduce" in told.err
    assert "elements differ\n  at (0" in told.err
    command = re.search(r"Repeat it: hpcpar (.*)\n", told.err)[1].split()
    case = first[1]
    assert command == (
        f"selftest --seed 5 --first {case} --cases 1 -n 3 --backend threads --check full".split()
    )
    assert json.loads(path.read_text())["failure"]["case"] == int(case)
    assert cli.main(command) == 1
    assert capsys.readouterr().err.splitlines()[:3] == told.err.splitlines()[:3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--minutes -1", "--minutes -1: it is above 0"),
        ("--cases 0", "--cases 0: it is at least 1"),
        ("--seed -1", "--seed -1: it is at least 0"),
        ("--first -2", "--first -2: it is at least 0"),
        ("-n 0", "-n 0: the number of ranks is at least 1"),
        ("-n 2,x", "-n x: the number of ranks is at least 1"),
        ("--backend smoke", "backend 'smoke' must be one of"),
        ("--backend fake", "--backend fake: moves no data"),
        ("--json /no/folder/x", "--json /no/folder/x: there is no such folder"),
    ],
)
def test_wrong_requests_are_refused(words, message, capsys):
    assert cli.main(["selftest", *words.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"hpcpar selftest: {message}" in told.err.replace("init: ", "")


@pytest.mark.parametrize("words", ["--quick --cases 1", "--minutes x", "--check never"])
def test_wrong_words_are_refused(words, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["selftest", *words.split()])
    assert left.value.code == 2
    assert "usage: hpcpar selftest" in capsys.readouterr().err


def test_ranks_are_left_to_the_launcher_in_a_job(monkeypatch, capsys):
    monkeypatch.setattr(selftest, "is_launched", lambda env: True)
    assert cli.main(["selftest", "-n", "2"]) == 2
    assert "this is a job already" in capsys.readouterr().err


def test_without_an_mpi_ranks_are_threads_unless_mpi_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(selftest, "find_mpiexec", lambda probe: None)
    assert cli.main(["selftest", "-n", "1", "--cases", "1", "--seed", "1"]) == 0
    assert "backend  threads" in capsys.readouterr().out
    assert cli.main(["selftest", "-n", "1", "--backend", "mpi"]) == 2
    assert "--backend mpi: there is no mpiexec" in capsys.readouterr().err


# -- ranks as processes --------------------------------------------------------------------


def test_processes(capfd):
    words = ["--backend", "mpi", "-n", "2", "--cases", "12", "--first", "3", "--seed", "8"]
    assert cli.main(["selftest", *words]) == 0
    told = capfd.readouterr()
    assert told.out.startswith("selftest, seed 8: 12 cases in ")
    assert "backend      mpi" in told.out


def test_a_job_of_the_user_ends_with_one_report(tmp_path):
    """Rank 1 gets a wrong element; the guard of the job says what it found."""
    script = tmp_path / "s.py"
    script.write_text(
        "from hpcpar.comm.group import Group\n"
        "from hpcpar import cli\n"
        "right = Group.scan\n"
        "def wrong(self, *args, **how):\n"
        "    result = right(self, *args, **how)\n"
        "    return result if self.rank != 1 else 3\n"
        "Group.scan = wrong\n"
        "cli.main(['selftest', '--seed', '1', '--cases', '200'])\n"
    )
    words = [sys.executable, "-m", "hpcpar", "run", "-n", "2", str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("Repeat it: hpcpar selftest --seed 1 --first ") == 1
    assert "failed on rank 1 of 2: " in done.stderr


@pytest.fixture
def job(monkeypatch, tmp_path):
    """Return a function that plays a job of 2 ranks by a script, which finds its folder."""

    def play(text, **options):
        script = tmp_path / "job.py"
        script.write_text(
            "import json, os, pathlib, struct, sys, time\n"
            "folder = pathlib.Path(sys.argv[1])\n"
            "def at(*numbers):\n"
            "    with open(folder / 'at', 'r+b') as file:\n"
            "        file.write(struct.pack('qq', *numbers))\n"
            "        file.flush()\n" + text
        )

        def command(mpiexec, size, folder, options, words):
            return [sys.executable, "-S", str(script), str(folder)], dict(os.environ)

        monkeypatch.setattr(selftest_job, "_command", command)
        return run_job("mpiexec", 2, Options(4, cases=100), [], Watch(None, 100))

    return play


def test_the_tally_of_a_job(job):
    told = Tally(2, "mpi", cases=5).to_dict()
    found = job(f"at(4, 4)\n(folder / 'tally.json').write_text({json.dumps(told)!r})\n")
    assert found == Tally(2, "mpi", cases=5)


def test_of_several_failures_the_cause_is_reported(job):
    failure = {"seed": 4, "case": 7, "ranks": 2, "problem": "p", "parameters": {}, "index": [1]}
    failure |= {"got": "1", "want": "2", "words": []}
    ranks = [
        failure | {"rank": 0, "consequence": True},
        failure | {"rank": 1, "consequence": False},
    ]
    text = "at(7, 7)\n"
    for rank, told in enumerate(ranks):
        text += f"(folder / '{rank}.json').write_text({json.dumps(told)!r})\n"
    found = job(text + "sys.exit(1)\n")
    assert (found.rank, found.case, found.index) == (1, 7, (1,))


def test_ranks_that_die_without_a_word_leave_their_cases(job):
    found = job("at(9, 12)\nprint('Segmentation fault', flush=True)\nos._exit(139)\n")
    assert (found.rank, found.case) == (-1, 12)
    assert found.problem == (
        "exit code 139, no report; the ranks were in cases [9, 12].\nSegmentation fault"
    )
    assert found.repeat(8) == "hpcpar selftest --seed 4 --first 8 --cases 5 -n 2"


def test_ranks_that_hang_are_ended(job, monkeypatch):
    monkeypatch.setattr(selftest_job, "_STUCK_SECONDS", 0.5)
    found = job("at(3, 3)\ntime.sleep(50)\n")
    assert found.problem.startswith("no case ended for 0 s; the ranks were in cases [3, 3]")


def test_ranks_that_do_not_start_are_no_failed_case(job):
    with pytest.raises(LaunchError, match="2 ranks did not start, exit code 2"):
        job("print('no MPI here')\nsys.exit(2)\n")


def test_the_ranks_get_what_was_asked(tmp_path):
    options = Options(7, 3, seconds=1.5)
    words = ["--backend", "mpi", "--check", "off"]
    command, env = selftest_job._command("/m/mpiexec", 2, tmp_path, options, words)
    args = cli._parser().parse_args(command[command.index("hpcpar") + 1 :])
    assert (args.seed, args.first, args.cases, args.into) == (7, 3, None, str(tmp_path))
    assert (args.backend, args.check, args.n) == ("mpi", "off", None)
    assert selftest._seconds(args) == pytest.approx(1.5)
    assert env["PYTHONSAFEPATH"] == "1"
    counted, _ = selftest_job._command("/m/mpiexec", 2, tmp_path, Options(7, 3, 9), words)
    args = cli._parser().parse_args(counted[counted.index("hpcpar") + 1 :])
    assert (args.cases, args.minutes) == (9, None)


def test_progress_is_said_every_few_seconds(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(selftest_job.time, "monotonic", lambda: now[0])
    with Watch(60.0, None) as watch:
        for _ in range(12):
            now[0] += 1
            watch.update(4, 50)
    assert capsys.readouterr().err.splitlines() == [
        "hpcpar selftest: 4 ranks, 50 cases, 10/s, 55 s left",
        "hpcpar selftest: 4 ranks, 50 cases, 5/s, 50 s left",
    ]
    watch = Watch(None, 400)
    watch.finished = 60
    now[0] += 10
    assert watch.line(2, 40) == "2 ranks, 100 cases, 10/s, 30 s left"


def test_a_share_is_what_is_left(monkeypatch):
    monkeypatch.setattr(selftest.time, "monotonic", lambda: 100.0)
    assert selftest._share(None, 3) is None
    assert selftest._share(130.0, 3) == 10
    assert selftest._share(90.0, 1) == selftest._LEAST_SECONDS

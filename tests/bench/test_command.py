"""``hpcpar bench`` as a command."""

import json
import os
import subprocess
import sys

import pytest

from hpcpar import cli
from hpcpar.cli import bench, report

pytestmark = pytest.mark.threads_only


def hpcpar_bench(*words):
    done = subprocess.run(
        [sys.executable, "-m", "hpcpar", "bench", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["collectives", "pack", "import"])
def test_help(name, capsys):
    for words in (["bench", "--help"], ["bench", name, "--help"]):
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        assert left.value.code == 0
    assert "--json FILE" in capsys.readouterr().out


def test_two_ranks_beside_mpi4py(tmp_path):
    path = tmp_path / "out.json"
    words = "collectives -n 2 --verbs all_reduce,broadcast,gather -b 4 -e 1K -f 256 --rounds 2"
    how = ("--backend", "mpi", "--check", "off", "--json", str(path))
    code, out, err = hpcpar_bench(*words.split(), *how)
    assert code == 0, err
    assert out.startswith("all_reduce  2 ranks, mpi backend, check off, 2 rounds, load")
    report = json.loads(path.read_text())
    assert report["options"]["verbs"] == ["all_reduce", "broadcast", "gather"]
    assert len(report["results"]) == 4 + 2 + 2
    for row in report["results"]:
        who = row["contestants"]
        assert list(who) == ["hpcpar", "mpi4py", "copyto"]
        assert who["hpcpar"]["wrong"] == who["mpi4py"]["wrong"] == 0


def test_a_world_of_one_prints_json():
    code, out, err = hpcpar_bench("collectives", "-e", "4", "--rounds", "1", "--json", "-")
    assert code == 0, err
    report = json.loads(out)
    assert (report["bench"], report["schema"]) == ("collectives", 1)
    assert report["environment"]["backend"] == "threads"


def test_pack_and_import_say_what_they_measured():
    small = "pack --layers 1 --hidden 64 --vocab 8 --rounds 1 --warmup 1"
    code, out, err = hpcpar_bench(*small.split())
    assert code == 0, err
    assert out.splitlines()[2].split()[:2] == ["pack", "GPT"]
    code, out, err = hpcpar_bench("import", "--rounds", "1")
    assert code == 0, err
    assert "hpcpar over NumPy" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("collectives --verbs nothing", "verbs 'nothing': known are"),
        ("collectives -b 0", "'0' is no size"),
        ("collectives -b 8 -e 4", "the range is empty"),
        ("collectives -f 1", "factor 1"),
        ("collectives --rounds 0", "rounds 0"),
        ("collectives --peers nccl", "peers 'nccl'"),
        ("collectives --op band", "has no meaning for dtype float32"),
        ("collectives -n 0", "-n 0: the number of ranks is at least 1"),
        ("collectives --backend smoke", "backend 'smoke' must be one of"),
        ("collectives --json /no/folder/x", "--json /no/folder/x: there is no such folder"),
        ("pack --hidden 3", "hidden 3"),
        ("import --rounds 0", "rounds 0"),
    ],
)
def test_wrong_requests_are_refused(words, message, capsys):
    assert cli.main(["bench", *words.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("hpcpar bench: ")
    assert message in told.err


@pytest.mark.parametrize("words", ["collectives --check never", "collectives -w x", "", "pick"])
def test_wrong_words_are_refused(words, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["bench", *words.split()])
    assert left.value.code == 2
    assert "usage: hpcpar bench" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["collectives -n 2", "pack", "import"])
def test_what_starts_or_is_alone_is_refused_in_a_job(words, monkeypatch, capsys):
    monkeypatch.setattr(bench, "is_launched", lambda env: True)
    assert cli.main(["bench", *words.split()]) == 2
    assert "mpiexec" in capsys.readouterr().err


def test_the_ranks_run_the_installation_and_nothing_leaks(monkeypatch):
    """Ranks may start in a source tree without a compiled core; this process goes on as it was."""
    started = []

    def replaces_this_process(*call):
        started.append(call)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", replaces_this_process)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(bench, "is_launched", lambda env: False)
    with pytest.raises(SystemExit):
        cli.main(["bench", "collectives", "-n", "2", "-b", "8"])
    (_, command, env), *_ = started
    assert command[command.index("-m") + 1 :][:3] == ["hpcpar", "bench", "collectives"]
    assert env["PYTHONSAFEPATH"] == "1"
    assert "PYTHONSAFEPATH" not in os.environ


def test_the_ranks_get_what_was_asked():
    args = bench_args("collectives", "-n", "2", "-b", "8", "-e", "1K", "--in-place", "--json", "-")
    again = bench_args("collectives", *bench._words(args))
    other = {name: value for name, value in vars(again).items() if value != getattr(args, name)}
    assert other == {"n": None}


def bench_args(*words):
    return cli._parser().parse_args(["bench", *words])


def test_a_wrong_result_is_an_exit_code(capsys):
    right = {"wrong": 0, "contestants": {"hpcpar": {"wrong": 0}, "copyto": {}}}
    wrong = {"contestants": {"hpcpar": {"wrong": 1}}}
    assert report.show({"results": [right]}, "-") == 0
    assert report.show({"results": [right, wrong]}, "-") == 1
    capsys.readouterr()


def test_progress_is_said_once_in_a_second(capsys):
    progress = bench._Progress()
    progress.say("early")
    progress._next = 0
    progress.say("late")
    progress.say("again")
    assert capsys.readouterr().err == "hpcpar bench: late\n"

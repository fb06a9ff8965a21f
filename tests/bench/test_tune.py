"""`hpcpar tune`: what is measured, chosen, kept and refused."""

import os
import subprocess
import sys

import pytest

from hpcpar.bench import tune
from hpcpar.cli import main
from hpcpar.comm import tuning_file
from hpcpar.comm.tuning import Tuning
from hpcpar.errors import ArgumentError
from hpcpar.testing import run_ranks

pytestmark = pytest.mark.threads_only


def test_candidates_are_right_tables():
    best = Tuning(chunk=524288, copy_chunk=131072)
    made = tune._candidates(best, "chunk", (65536, 524288))
    assert made == {524288: best, 65536: Tuning(chunk=65536, copy_chunk=65536)}
    small = Tuning(chunk=65536, copy_chunk=16384)
    assert list(tune._candidates(small, "copy_chunk", (32768, 131072))) == [16384, 32768]


def test_it_measures_and_leaves_the_choice_in_use(monkeypatch):
    plan = (
        ("chunk", (131072,), "all_reduce", (400_000,)),
        ("copy_chunk", (32768,), "all_gather", (400_000,)),
        ("stream", (1 << 40,), "all_reduce", (400_000,)),
    )
    monkeypatch.setattr(tune, "_PLAN", plan)
    monkeypatch.setattr(tune, "choose", lambda gains, current: list(gains)[-1])
    said = []

    def body(group):
        report = tune.run(group, tune.Options(1), said.append if group.rank == 0 else None)
        assert group.all_reduce(1) == 2
        return report

    first, second = run_ranks(2, body)
    assert Tuning(**first["tuning"]) == Tuning(131072, 32768, 100, 1 << 40)
    assert first["tuning"] == second["tuning"]
    assert [(r["parameter"], r["chosen"]) for r in first["results"]][::2] == [
        (name, False) for name in ("chunk", "copy_chunk", "stream")
    ]
    assert len(said) == 3


def test_one_rank_is_refused():
    with pytest.raises(ArgumentError, match=r"tune: 1 rank\(s\).*hpcpar tune -n 2"):
        run_ranks(1, lambda group: tune.run(group, tune.Options()))
    with pytest.raises(ArgumentError, match="rounds 0 must be >= 1"):
        tune.Options(0)


def test_show_says_what_is_taken_and_where_from(monkeypatch, tmp_path, capsys):
    path = tmp_path / "t.json"
    monkeypatch.setenv("HPCPAR_TUNING", "off")
    assert main(["tune", "--show"]) == 0
    assert f"{tuning_file.cpu_name()}: built in\n" in capsys.readouterr().out
    monkeypatch.setenv("HPCPAR_TUNING", str(path))
    assert main(["tune", "--show"]) == 2
    assert "no file" in capsys.readouterr().err
    tuning_file.save(str(path), Tuning(stream=12345))
    assert main(["tune", "--show"]) == 0
    shown = capsys.readouterr().out
    assert f"from {path}" in shown
    assert "stream      12345" in shown


def test_a_report_that_can_go_nowhere_is_refused_at_once(tmp_path, capsys):
    assert main(["tune", "-n", "2", "--json", str(tmp_path / "no" / "t.json")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_job_measures_and_keeps(tmp_path):
    path = tmp_path / "cache" / "t.json"
    path.parent.mkdir()
    command = [sys.executable, "-m", "hpcpar", "tune", "-n", "2", "--rounds", "1"]

    def run(*more):
        env = {**os.environ, "HPCPAR_TUNING": str(path)}
        return subprocess.run(
            [*command, *more], env=env, capture_output=True, text=True, timeout=120
        )

    assert run("--dry-run").returncode == 0
    assert not path.exists()
    done = run()
    assert (done.returncode, list(tuning_file.read(str(path)))) == (0, [tuning_file.cpu_name()])
    assert "switch points, times as fast" in done.stdout
    assert f"kept in {path}" in done.stderr

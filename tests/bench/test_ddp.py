"""The benchmark of data parallel training runs, checks itself, and refuses nonsense."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hpcpar.bench import ddp
from hpcpar.bench.steps import by_turns, median_interval
from hpcpar.bench.table import render, tables
from hpcpar.errors import ArgumentError
from hpcpar.testing import run_ranks


def test_intervals_hold_the_middle():
    rounds = np.random.default_rng(1).normal(3, 0.1, size=(40, 1))
    middle, low, high = median_interval(rounds, lambda rows: np.median(rows[..., 0], axis=-1))
    assert low < middle < high
    assert 2.9 < low < high < 3.1


def test_ways_take_turns():
    def body(group):
        order = []
        calls = [lambda: order.append(0), lambda: order.append(1), lambda: order.append(2)]
        seconds = by_turns(group, calls, rounds=2)
        assert seconds.shape == (2, 3)
        return order

    assert run_ranks(1, body)[0] == [0, 1, 2, 2, 0, 1, 1, 2, 0, 0, 1, 2, 2, 0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [(("nothing",), "cases 'nothing': it is one of gpt, small, alone, sleep")],
)
def test_refuses_unknown_cases(options, message):
    def body(group):
        with pytest.raises(ArgumentError, match=message):
            ddp.run(group, ddp.Options(options, 3))
        with pytest.raises(ArgumentError, match="steps 0: it is at least 1"):
            ddp.run(group, ddp.Options((), 0))

    run_ranks(2, body)


@pytest.mark.slow
def test_sleeping_layers_hide_communication():
    (report, _) = run_ranks(2, lambda group: ddp.run(group, ddp.Options(("sleep",), 3)))
    row = report["results"][0]
    assert row["communication_ms"] > 0
    assert "hidden / hideable" in render(tables(report)[0])


@pytest.mark.slow
@pytest.mark.threads_only
def test_our_gradients_are_torchs(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "out.json"
    words = [sys.executable, "-m", "hpcpar", "bench", "ddp", "-n", "2", "--steps", "2"]
    subprocess.run([*words, "--cases", "gpt,small", "--json", str(out)], check=True, timeout=300)
    results = json.loads(out.read_text())["results"]
    assert [(row["case"], row["wrong"]) for row in results] == [("gpt", 0), ("small", 0)]

"""The benchmark of distributed arrays runs, tells its figures, and refuses nonsense."""

import numpy as np
import pytest

from hpcpar.bench import dtensor
from hpcpar.bench.table import render, tables
from hpcpar.errors import ArgumentError
from hpcpar.testing import run_ranks


def test_the_stencil_is_numpys_on_both():
    u = np.random.default_rng(0).random((9, 9))
    right = u.copy()
    inner = right[1:-1, 1:-1]
    around = right[:-2, 1:-1] + right[2:, 1:-1] + right[1:-1, :-2] + right[1:-1, 2:]
    right[1:-1, 1:-1] = inner + 0.1 * (around - 4 * inner)
    assert np.array_equal(dtensor.stencil(u, 1), right)


def test_a_table_tells_the_figures(monkeypatch):
    monkeypatch.setattr(dtensor, "_SIDE", 32)
    monkeypatch.setattr(dtensor, "_STEPS", 2)
    monkeypatch.setattr(dtensor, "_LONG", 1 << 10)
    options = dtensor.Options(tuple(dtensor.CASES), 2, False)
    (report, _) = run_ranks(2, lambda group: dtensor.run(group, options))
    assert len(report["results"]) == 9
    text = render(tables(report)[0])
    for what in ("x + y", "np.add(x, y)", "x[0] = 1.0", "S0 -> S1, 4 MiB", "np.sort on one / ours"):
        assert what in text


def test_what_is_refused(monkeypatch):
    monkeypatch.setattr(dtensor.importlib.util, "find_spec", lambda name: None)

    def body(group):
        for options, match in (
            (dtensor.Options(("nothing",), 3, False), "cases 'nothing': it is one of overhead"),
            (dtensor.Options((), 0, False), "rounds 0: it is at least 1"),
            (dtensor.Options((), 1, True), "torch is not installed"),
        ):
            with pytest.raises(ArgumentError, match=match):
                dtensor.run(group, options)

    run_ranks(2, body)

"""The benchmarks of one process, and tables."""

import json

import numpy as np
import pytest

from hpcpar.bench import pack, startup
from hpcpar.bench.table import Table, render, tables
from hpcpar.errors import ArgumentError

QUICK = {"layers": 1, "hidden": 64, "vocab": 10, "rounds": 2, "warmup": 1, "seconds": 1e-5}


def test_pack():
    said = []
    report = pack.run(pack.Options(**QUICK), said.append)
    assert said[1:] == [row["name"] for row in report["results"]]
    assert [row["name"] for row in report["results"]][:2] == ["pack GPT", "unpack GPT"]
    for row in report["results"]:
        assert row["wrong"] == 0
        assert list(row["contestants"]) == ["plan", "copyto", "loop"]
        assert row["contestants"]["plan"]["ratio"] == 1
    assert report["results"][2]["arrays"] == 1000
    assert report["results"][2]["nbytes"] == 1000 * 1024
    json.dumps(report)


def test_wrong_packing_is_counted(monkeypatch):
    class Plan:
        def __init__(self, layouts):
            self.real = real(layouts)
            self.nbytes, self.offsets = self.real.nbytes, self.real.offsets

        def pack(self, arrays, flat):
            self.real.pack(arrays, flat)
            flat[: arrays[0].nbytes].view(arrays[0].dtype)[0] += 1

        def unpack(self, flat, arrays):
            self.real.unpack(flat, arrays)

    real = pack.PackPlan
    monkeypatch.setattr(pack, "PackPlan", Plan)
    row = pack._measure([np.ones((2, 3), np.float32)], False, pack.Options(**QUICK))
    assert row["wrong"] == 2


@pytest.mark.parametrize(
    ("chosen", "message"),
    [({"layers": 0}, "layers 0"), ({"hidden": 65}, "hidden 65: it must be a multiple of 64")],
)
def test_refused_pack_options(chosen, message):
    with pytest.raises(ArgumentError, match=message):
        pack.Options(**{**QUICK, **chosen})


@pytest.mark.threads_only
@pytest.mark.parametrize("strace", [True, False])
def test_import(monkeypatch, strace):
    if not strace:
        monkeypatch.setattr(startup.shutil, "which", lambda name: None)
    said = []
    report = startup.run(1, said.append)
    assert said == ["round 1/1"]
    base, ours = report["results"]
    assert (base["module"], ours["module"]) == ("numpy", "hpcpar")
    assert ours["modules"] > base["modules"] > 0
    assert ours["files"] > base["files"] > 0
    assert report["ratio"] == pytest.approx(ours["median_ms"] / base["median_ms"])
    assert strace or report["files_by"] == "sys.modules"
    assert tables(report)[0].rows[1][0] == "hpcpar"


def test_import_refuses_no_rounds():
    with pytest.raises(ArgumentError, match="rounds 0"):
        startup.run(0)


def test_opened_files_are_counted_once_and_only_if_they_opened():
    trace = (
        '7 openat(AT_FDCWD, "/a", O_RDONLY|O_CLOEXEC) = 3\n'
        '7 openat(AT_FDCWD, "/b", O_RDONLY) = -1 ENOENT (No such file or directory)\n'
        '8 open("/a", O_RDONLY) = 4\n'
        '8 open("/c", O_RDONLY) = 5\n'
        "8 +++ exited with 0 +++\n"
    )
    assert startup.count_opened(trace) == 2


def test_tables_are_aligned():
    made = Table("title", ["a", "long"], [["12345", "1"], ["1", "2"]])
    assert render(made) == "title\n    a  long\n12345     1\n    1     2"


def test_tables_of_verbs_and_of_packing():
    ours = {
        "median_us": 2.5,
        "min_us": 2.0,
        "p99_us": 1234.5,
        "algbw": 1.0,
        "busbw": 1.5,
        "wrong": 0,
    }
    peer = {"median_us": 5.0, "min_us": 4.0, "ratio": 2.0, "ours_minus_this_us": -2.5, "wrong": 3}
    row = {"verb": "all_reduce", "mode": "out", "nbytes": 4, "count": 1, "dtype": "float32"}
    row |= {"op": "sum", "root": None}
    bare = {"hpcpar": ours, "copyto": peer}
    report = {
        "bench": "collectives",
        "environment": {"ranks": 2, "backend": "mpi", "load": 0.5, "cores": 2},
        "options": {"check": "off", "rounds": 9},
        "results": [
            {**row, "contestants": {"hpcpar": ours, "mpi4py": peer, "copyto": peer}},
            {**row, "mode": "in", "contestants": bare},
            {**row, "verb": "scan", "contestants": bare},
        ],
    }
    found = tables(report)
    assert [table.title.split()[0] for table in found] == ["all_reduce", "scan"]
    first, second = found[0].rows
    assert first[:6] == ["4", "1", "float32", "sum", "-", "out"]
    assert first[6:12] == ["2.50", "2.00", "1234", "1.000", "1.500", "0"]
    assert first[12:16] == ["5.00 (3 wrong)", "4.00", "2.000", "-2.50"]
    assert second[12:16] == ["-"] * 4
    assert len(first) == len(second) == len(found[0].columns)
    packed = tables(pack.run(pack.Options(**QUICK)))[0]
    assert all(len(cells) == len(packed.columns) for cells in packed.rows)

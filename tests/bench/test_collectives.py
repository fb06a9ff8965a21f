"""The benchmark of the verbs on ranks as threads: right results pass, wrong ones are counted."""

import json
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from hpcpar.bench import collectives, contestants
from hpcpar.bench.cases import VERBS, Case, expected, operand
from hpcpar.bench.collectives import Options
from hpcpar.bench.contestants import Ours, check_peers, open_peers
from hpcpar.bench.formulas import BUS_FACTORS
from hpcpar.errors import ArgumentError, BackendUnavailable, UnsupportedError

ALL = tuple(VERBS)
QUICK = {"rounds": 2, "warmup": 1, "seconds": 1e-5}


def all_verbs(**chosen):
    return Options(verbs=ALL, sizes=(4, 100), **QUICK, **chosen)


def test_every_verb_has_a_bandwidth():
    assert VERBS.keys() == BUS_FACTORS.keys()


@pytest.mark.sizes(1, 3)
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float32", "sum"),
        ("bfloat16", "prod"),
        ("int16", "bxor"),
        ("float16", "max"),
        ("bool", "min"),
    ],
)
def test_every_verb_gives_what_is_expected(ranks, dtype, op):
    def body(group):
        report = collectives.run(group, all_verbs(dtype=dtype, op=op))
        assert {row["verb"] for row in report["results"]} == set(ALL)
        for row in report["results"]:
            assert row["contestants"]["hpcpar"]["wrong"] == 0, row
            assert row["op"] == (op if VERBS[row["verb"]].reduces else None)
            assert row["dtype"] == dtype

    ranks(body)


def test_symmetric_arrays_also_shared_ones(ranks):
    def body(group):
        options = Options(verbs=("all_reduce", "all_gather"), sizes=(640,), symmetric=True, **QUICK)
        rows = collectives.run(group, options)["results"]
        shared = [] if group.backend == "mpi" and group.size > 1 else ["shared"]
        assert [row["mode"] for row in rows] == ["out", "in", "out", "in", *shared]
        assert all(row["contestants"]["hpcpar"]["wrong"] == 0 for row in rows)

    ranks(body)


def test_the_report_is_json_and_the_same_on_all_ranks(ranks):
    def body(group):
        said = []
        options = Options(verbs=("all_reduce", "all_gather"), sizes=(64,), **QUICK)
        report = collectives.run(group, options, said.append)
        assert said[0] == "1/4 all_reduce 64 bytes out of place"
        assert len(said) == len(report["results"]) == 4
        text = json.dumps(report["results"])
        assert set(group.all_gather_object(text)) == {text}
        first, _, gathered, _ = report["results"]
        assert (first["mode"], first["nbytes"], first["count"]) == ("out", 64, 16)
        assert gathered["count"] == max(1, 16 // group.size)
        assert gathered["nbytes"] == 4 * gathered["count"] * group.size
        ours, copy = first["contestants"]["hpcpar"], first["contestants"]["copyto"]
        assert ours["algbw"] == pytest.approx(64 / ours["median_us"] / 1e3)
        assert ours["busbw"] == pytest.approx(ours["algbw"] * 2 * (group.size - 1) / group.size)
        assert copy.keys() >= {"ratio", "ours_minus_this_us"}
        assert report["environment"]["ranks"] == group.size

    ranks(body)


class Broken(Ours):
    """Returns from a broadcast without data, and spoils one element of a sum on one rank."""

    def bind(self, case, x, out):
        if case.verb == "broadcast":
            return partial(int)
        return partial(self.spoil, super().bind(case, x, out), out)

    def spoil(self, call, out):
        call()
        out[-1] += self._group.rank == self._group.size - 1


def test_wrong_results_are_counted(ranks, monkeypatch):
    monkeypatch.setattr(collectives, "Ours", Broken)

    def body(group):
        options = Options(verbs=("all_reduce", "broadcast"), sizes=(40,), **QUICK)
        rows = collectives.run(group, options)["results"]
        wrong = [row["contestants"]["hpcpar"]["wrong"] for row in rows]
        # Each is looked at before and after the clock ran.
        assert wrong[:2] == [2, 2]
        assert (wrong[2] > 0) == (group.size > 1)

    ranks(body)


@pytest.mark.sizes(3)
def test_expected_values(ranks):
    def body(group):
        n, rank, f32 = group.size, group.rank, np.dtype(np.float32)
        whole = [operand(Case("all_to_all", n, 2, f32), r) for r in range(n)]
        assert len({part.tobytes() for part in whole}) == n
        own = slice(2 * rank, 2 * rank + 2)
        got = expected(Case("all_to_all", n, 2, f32), rank)
        assert got.tolist() == np.concatenate([part[own] for part in whole]).tolist()
        got = expected(Case("reduce_scatter", n, 2, f32, "sum"), rank)
        assert got.tolist() == sum(whole)[own].tolist()
        got = expected(Case("scan", n, 6, f32, "sum"), rank)
        assert got.tolist() == sum(whole[: rank + 1]).tolist()
        got = expected(Case("reduce", n, 6, f32, "max", 1), rank)
        assert (got is None) == (rank != 1)

    ranks(body)


def test_half_types_are_expected_to_be_summed_in_float32():
    case = Case("all_reduce", 200, 4, np.dtype(ml_dtypes.bfloat16), "mean")
    exact = sum(operand(case, rank).astype(np.float64) for rank in range(200)) / 200
    assert expected(case, 0).tolist() == exact.astype(np.float32).astype(case.dtype).tolist()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"verbs": ("sum",)}, "verbs 'sum': known are all_reduce"),
        ({"op": "median"}, "op 'median': known are sum"),
        ({"dtype": "object"}, "dtype 'object': write float32"),
        ({"dtype": "int33"}, "dtype 'int33': write float32"),
        ({"dtype": ">f4"}, "dtype '>f4': write float32"),
        ({"rounds": 0}, "rounds 0: it is at least 1"),
        ({"warmup": 0}, "warmup 0: it is at least 1"),
        ({"root": -1}, "root -1: it is at least 0"),
        ({"peers": ("nccl",)}, "peers 'nccl': write auto, none"),
        ({"peers": ("auto", "gloo")}, "peers 'auto,gloo': write auto, none"),
        ({"verbs": ("scan",), "op": "mean"}, "has no meaning for scan"),
    ],
)
def test_refused_options(chosen, message):
    with pytest.raises(ArgumentError, match=message):
        Options(**chosen)


def test_an_op_without_meaning_is_refused_only_where_it_is_used():
    with pytest.raises(UnsupportedError, match="op 'band' has no meaning for dtype float32"):
        Options(op="band")
    assert Options(op="band", verbs=("all_gather",)).cases(2)[0].op == ""


def test_what_only_the_group_knows_is_refused_on_all_ranks(ranks):
    def body(group):
        with pytest.raises(ArgumentError, match="root 9: ranks are 0 to"):
            collectives.run(group, Options(root=9))
        with pytest.raises(ArgumentError, match="none of them works in this mode"):
            collectives.run(group, Options(verbs=("all_to_all",), modes=("in",)))
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_sizes_that_come_to_the_same_are_run_once():
    cases = Options(verbs=("all_gather",), sizes=(1, 4, 16)).cases(4)
    assert [(case.count, case.nbytes, case.mode) for case in cases] == [
        (1, 16, "out"),
        (1, 16, "in"),
    ]


@pytest.mark.threads_only
def test_peers_that_are_not_there(ranks, monkeypatch):
    monkeypatch.setattr(contestants, "find_spec", lambda name: None)

    def body(group):
        assert open_peers(group, ("none",)) == open_peers(group, ("auto",)) == []
        with pytest.raises(BackendUnavailable, match="Gloo comes with torch"):
            open_peers(group, ("gloo",))
        with pytest.raises(BackendUnavailable, match="Start with -n N or under mpiexec"):
            open_peers(group, ("mpi4py",))

    ranks(body)
    check_peers(("mpi4py", "gloo"))

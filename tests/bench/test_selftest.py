"""``hpcpar selftest`` on ranks: right verbs pass, each broken verb is found and reported."""

import json
import threading
import time
from dataclasses import asdict
from functools import cache

import numpy as np
import pytest

from hpcpar.bench import selftest
from hpcpar.bench.selftest import CaseFailed, Options, run
from hpcpar.bench.selftest_case import BLOCK, VERBS
from hpcpar.bench.selftest_draw import draw
from hpcpar.bench.selftest_report import Failure, Tally, tables
from hpcpar.bench.table import render
from hpcpar.comm.group import Group
from hpcpar.errors import ArgumentError, GroupFailed
from hpcpar.testing import run_ranks

SEED = 21


def test_cases_pass(ranks):
    def body(group):
        at, heard = np.full(group.size, -1), []
        tally = run(group, Options(SEED, 3, 30), at=at, say=heard.append)
        assert tally.cases == sum(tally.verbs.values()) == 30
        assert tally.seconds > 0
        assert at[group.rank] == 32
        assert heard == [5, 13, 21, 29, 30]

    ranks(body)


def test_time_ends_the_run_on_all_ranks_at_once(ranks):
    def body(group):
        tally = run(group, Options(SEED, seconds=0.05 if group.rank == 0 else 9))
        assert tally.cases % BLOCK == 0
        assert len(set(group.all_gather_object(tally.cases))) == 1

    ranks(body)


def test_blocks_begin_at_multiples():
    assert list(Options(0, 6, 4).blocks()) == [range(6, 8), range(8, 10)]
    assert next(iter(Options(0, 17, seconds=1).blocks())) == range(17, 24)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "--seed -1"),
        ({"seed": 1 << 64}, "--seed 18446744073709551616"),
        ({"first": -1}, "--first -1"),
        ({"cases": 0}, "--cases 0"),
        ({"seconds": -60.0}, "--minutes -1"),
        ({"seconds": 0.0}, "--minutes 0"),
        ({"seconds": float("nan")}, "--minutes nan"),
    ],
)
def test_options_out_of_range_are_refused(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        Options(**wrong)


@cache
def cases_of(size):
    """Return cases on all ranks, none of which is empty."""
    drawn = [draw(SEED, number, size) for number in range(3000)]
    whole = [case for case in drawn if case.members == tuple(range(size))]
    return [case for case in whole if case.verb == "barrier" or all(map(sum, case.table))]


def case_with(size, **wanted):
    """Return the first case that has these values."""
    return next(
        case for case in cases_of(size) if all(getattr(case, k) == v for k, v in wanted.items())
    )


def failure_of(case):
    """Run a case on threads and return the failure that is reported."""
    failures = []

    def body(group):
        try:
            run(group, Options(case.seed, case.number, 1))
        except CaseFailed as error:
            failures.append(error.failure)
            raise

    with pytest.raises(CaseFailed):
        run_ranks(case.size, body, timeout=5)
    return min(failures, key=lambda failure: (failure.consequence, failure.rank))


def broken(monkeypatch, verb, change, on_rank=None):
    """Put ``change(group, right, x, args, how)`` in the place of a verb, perhaps on one rank.

    Only where the selftest makes the call of a case: it calls verbs for itself, too.
    """
    right, case_call, inside = getattr(Group, verb), selftest._CALLS[verb], threading.local()

    def of_case(*args):
        inside.case = True
        try:
            return case_call(*args)
        finally:
            inside.case = False

    def wrong(self, *args, **how):
        def call(*args, **how):
            return right(self, *args, **how)

        if on_rank not in (None, self.rank) or not getattr(inside, "case", False):
            return call(*args, **how)
        return change(self, call, args, how)

    monkeypatch.setitem(selftest._CALLS, verb, of_case)
    monkeypatch.setattr(Group, verb, wrong)


@pytest.mark.parametrize("verb", [v for v, kind in VERBS.items() if v != "barrier"])
def test_a_wrong_element_on_one_rank_is_found(verb, monkeypatch):
    wanted = {"root": 1} if VERBS[verb].rooted else {}
    case = case_with(2, verb=verb, async_op=False, dtype=np.dtype(np.int32), **wanted)
    assert case.verb != "permute" or 1 in dict(case.pairs).values()

    def change(group, call, args, how):
        result = call(*args, **how)
        result[(-1,) * result.ndim] ^= 1
        return result

    broken(monkeypatch, verb, change, on_rank=1)
    failure = failure_of(case)
    assert (failure.rank, failure.case, failure.ranks) == (1, case.number, 2)
    assert "1 of " in failure.problem
    assert "elements differ" in failure.problem
    assert failure.index is not None
    got, want = (int(text.split()[0]) for text in (failure.got, failure.want))
    assert got == want ^ 1
    assert failure.parameters["verb"] == verb


@pytest.mark.parametrize("place", ["new", "out", "in"])
def test_a_dropped_tail_is_found(place, monkeypatch):
    case = case_with(
        2, verb="all_reduce", place=place, op="band", dtype=np.dtype(np.uint8), async_op=False
    )

    def change(group, call, args, how):
        result = call(*args, **how)
        result[..., result.shape[-1] // 2 :] = 3
        return result

    broken(monkeypatch, "all_reduce", change)
    assert "elements differ" in failure_of(case).problem


@pytest.mark.parametrize("verb", ["reduce", "gather"])
def test_a_wrong_root_is_found(verb, monkeypatch):
    case = case_with(3, verb=verb, place="new", async_op=False)

    def change(group, call, args, how):
        return call(*args, **{**how, "root": (how["root"] + 1) % group.size})

    broken(monkeypatch, verb, change)
    assert "NoneType" in failure_of(case).problem or "must get None" in failure_of(case).problem


def test_the_operand_of_a_neighbour_is_found(monkeypatch):
    case = case_with(3, verb="broadcast", place="in", async_op=False, dtype=np.dtype(np.int64))

    def change(group, call, args, how):
        return call(*args, **{**how, "root": (how["root"] + 1) % group.size})

    broken(monkeypatch, "broadcast", change)
    assert "elements differ" in failure_of(case).problem


def test_a_stale_result_of_a_repeated_call_is_found(monkeypatch):
    case = case_with(2, verb="all_reduce", op="sum", calls=20, place="out")
    kept = {}

    def change(group, call, args, how):
        result = call(*args, **how)
        result[...] = kept.setdefault(group.rank, result.copy())
        return result

    broken(monkeypatch, "all_reduce", change)
    assert failure_of(case).problem.startswith("call 2 of 20: ")


def test_a_changed_input_is_found(monkeypatch):
    case = case_with(2, verb="all_gather", async_op=False, layouts=("C", "C"))

    def change(group, call, args, how):
        result = call(*args, **how)
        args[0].reshape(-1).view(np.uint8)[0] ^= 1
        return result

    broken(monkeypatch, "all_gather", change, on_rank=1)
    failure = failure_of(case)
    assert (failure.rank, failure.problem) == (1, "x was changed")


def test_a_write_between_the_elements_of_out_is_found(monkeypatch):
    plain = {"place": "out", "out_layouts": ("strided", "strided"), "symmetric": ()}
    case = case_with(2, verb="all_reduce", **plain)

    def change(group, call, args, how):
        result = call(*args, **how)
        base = how["out"]
        while base.base is not None:
            base = base.base
        base[64 + how["out"].dtype.itemsize] ^= 1
        return result

    broken(monkeypatch, "all_reduce", change, on_rank=0)
    assert "beside the elements of out" in failure_of(case).problem


def test_a_result_that_is_not_out_is_found(monkeypatch):
    case = case_with(2, verb="scan", place="out", async_op=False, calls=1)

    def change(group, call, args, how):
        return call(*args, **how).copy()

    broken(monkeypatch, "scan", change)
    assert failure_of(case).problem == "the result is not out"


def test_other_bits_of_equal_numbers_are_found(monkeypatch):
    case = case_with(
        2, verb="all_reduce", op="max", dtype=np.dtype(np.float32), place="new", async_op=False
    )

    def change(group, call, args, how):
        result = call(*args, **how)
        result[np.isnan(result)] = -np.float32(np.nan)
        result[result == 0] = -0.0 if group.rank else 0.0
        return result

    broken(monkeypatch, "all_reduce", change)
    assert failure_of(case).problem == "the results of ranks 0 and 1 are not the same bits"


def test_a_barrier_left_early_is_found(monkeypatch):
    case = case_with(2, verb="barrier", async_op=False)

    def late(seconds):
        if threading.current_thread().name == "hpcpar-rank-0":
            time.sleep(0.2)

    monkeypatch.setattr(selftest, "_pause", late)
    broken(monkeypatch, "barrier", lambda group, call, args, how: None)
    assert failure_of(case).problem == "rank 1 left before the last rank had come"


def test_an_error_of_one_rank_is_reported_and_not_what_it_leads_to(monkeypatch):
    case = case_with(3, verb="all_to_all", async_op=False)

    def change(group, call, args, how):
        time.sleep(0.05)
        raise OSError("no memory")

    broken(monkeypatch, "all_to_all", change, on_rank=2)
    failure = failure_of(case)
    assert (failure.rank, failure.problem) == (2, "OSError: no memory")
    assert not failure.consequence


def test_an_error_between_cases_names_the_last_one(monkeypatch):
    def fails(group):
        raise GroupFailed("close: gone")

    monkeypatch.setattr(Group, "close", fails)
    failure = failure_of(draw(SEED, 9, 2))
    assert failure.problem == "between the cases, after this one: GroupFailed: close: gone"
    assert (failure.case, failure.consequence) == (9, True)


def test_the_report_says_all():
    case = draw(SEED, 12, 4)
    failure = Failure.of(
        case, 3, "1 of 9 elements differ", index=(2, 0), got="1", want="0", words=("--check", "off")
    )
    text = failure.text()
    assert text.startswith(f"case 12 with seed {SEED} failed on rank 3 of 4: 1 of 9 elements")
    assert "at (2, 0): got 1, expected 0" in text
    again = f"hpcpar selftest --seed {SEED} --first 12 --cases 1 -n 4 --check off"
    assert f"Repeat it: {again}\n" in text
    assert f"With those before it: {again.replace('12 --cases 1', '8 --cases 5')}" in text
    for name, value in case.describe().items():
        assert f"  {name}" in text
        assert value in text
    assert Failure.from_dict(json.loads(json.dumps(asdict(failure)))) == failure
    assert "With those" not in Failure.of(draw(SEED, 16, 4), -1, "x").text()
    assert "failed on 4 ranks: x" in Failure.of(case, -1, "x").text()


def test_tables_count_by_verb_and_dtype():
    tally = Tally(2, "mpi", seconds=2.0)
    for number in range(40):
        tally.count(draw(SEED, number, 2))
    text = "\n".join(render(table) for table in tables([tally, tally]))
    assert "cases/s       20       20" in text
    verbs, dtypes, _ = tables([tally, tally])
    assert [row[0] for row in verbs.rows] == list(VERBS)
    assert sum(int(row[-1]) for row in verbs.rows) == 80
    assert sum(int(row[1]) for row in dtypes.rows) == 40 - tally.verbs["barrier"]
    assert Tally.from_dict(json.loads(json.dumps(tally.to_dict()))) == tally
    assert Tally(2, "mpi").rate == 0

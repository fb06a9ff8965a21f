"""The planner of ``hpcpar selftest``, its arrays, and what it expects of the verbs."""

import hashlib
import math
from collections import Counter
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from hpcpar.bench import selftest_draw, selftest_values
from hpcpar.bench.selftest_case import BLOCK, VERBS, Case
from hpcpar.bench.selftest_draw import DTYPES, draw, subgroup_of
from hpcpar.bench.selftest_layout import LAYOUTS, lay, layouts_for
from hpcpar.bench.selftest_values import differing, expected, operands
from hpcpar.comm.reductions import OPS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def cases():
    return [draw(11, number, 4) for number in range(2500)]


def test_every_part_of_a_case_is_drawn(cases):
    assert {case.verb for case in cases} == set(VERBS)
    assert {case.dtype for case in cases} == set(DTYPES)
    assert {case.op for case in cases} == {"", "premul_sum", *OPS}
    assert {layout for case in cases for layout in case.layouts} == set(LAYOUTS)
    for name in ("async_op", "exclusive"):
        assert {getattr(case, name) for case in cases} == {False, True}
    assert {case.data for case in cases} == {"bits", "whole", "rough"}
    assert {len(case.members) for case in cases} == {1, 2, 3, 4}
    assert {case.root for case in cases} == {-1, 0, 1, 2, 3}
    assert {len(case.shape) for case in cases} == {0, 1, 2, 3}
    assert {case.calls for case in cases} == {1, 2, 3, 4, 20}
    assert any(case.weights for case in cases)
    assert any(any(case.delays) for case in cases)


def test_every_verb_is_drawn_with_every_dtype_place_and_promise(cases):
    pairs = {(case.verb, case.dtype) for case in cases if case.verb != "barrier"}
    assert len(pairs) > 0.95 * (len(VERBS) - 1) * len(DTYPES)
    for verb, kind in VERBS.items():
        mine = [case for case in cases if case.verb == verb]
        assert {case.place for case in mine} == set(kind.places)
        assert {case.sizes for case in mine} == set(kind.promises)


def test_sizes_lie_around_borders(cases):
    sizes = Counter()
    for case in cases:
        nbytes = math.prod(case.shape_of(0)) * case.dtype.itemsize
        sizes["empty"] += nbytes == 0
        for border in (1 << 10, 1 << 16, 1 << 18):
            sizes[border] += abs(nbytes - border) <= 64
        sizes["MiB"] += nbytes >= 1 << 20
    assert min(sizes.values()) > 2
    assert len(sizes) == 5


def test_a_case_depends_on_its_numbers_alone():
    assert draw(3, 77, 8) == draw(3, 77, 8)
    assert len({str(draw(s, k, n)) for s in (1, 2) for k in (5, 6) for n in (4, 8)}) == 8


@pytest.mark.threads_only
def test_all_ranks_draw_one_plan(ranks):
    def body(group):
        plan = [draw(9, number, group.size) for number in range(50)]
        plans = group.all_gather_object(hashlib.sha256(str(plan).encode()).hexdigest())
        assert len(set(plans)) == 1
        rows = [operands(case, 0)[0].tobytes() for case in plan if case.verb != "barrier"]
        sums = group.all_gather_object(hashlib.sha256(b"".join(rows)).hexdigest())
        assert len(set(sums)) == 1

    ranks(body)


def test_all_cases_of_a_block_have_one_subgroup():
    for block in range(20):
        members = subgroup_of(5, block, 8)
        world = tuple(range(8))
        drawn = {draw(5, block * BLOCK + i, 8).members for i in range(BLOCK)}
        assert drawn <= {members, world}
    assert {len(subgroup_of(5, block, 8)) for block in range(100)} == set(range(1, 9))


def test_cases_are_such_as_the_verbs_take(cases):
    for case in cases:
        ranks = len(case.members)
        lengths = [sum(row) for row in case.table]
        assert len(case.table) == len(case.delays) == ranks
        if case.kind.cuts:
            assert {len(row) for row in case.table} == {ranks}
        if case.verb in ("all_reduce", "reduce", "scan", "reduce_scatter", "scatter", "broadcast"):
            assert len(set(case.table)) == 1
        if case.verb == "all_to_all" and case.sizes == "equal":
            assert len({n for row in case.table for n in row}) == 1
        if case.place == "in":
            assert "read-only" not in case.layouts
            assert case.verb != "sendrecv" or all(lengths[s] == lengths[t] for s, t in case.pairs)
        assert "read-only" not in case.out_layouts
        assert all(0 <= delay <= 2.1e-3 for delay in case.delays)
        for layout in case.layouts:
            assert layout in layouts_for(case.dtype, len(case.shape))


def test_ranks_and_calls_have_other_values(cases):
    for case in cases[:500]:
        few = math.prod(case.shape_of(0)) < 24
        if case.verb == "barrier" or few or case.dtype.kind == "b" or len(set(case.table)) > 1:
            continue
        seen = [x.tobytes() for call in range(min(case.calls, 2)) for x in operands(case, call)]
        assert len(set(seen)) == len(seen)


def test_large_operands_repeat_a_pattern_that_no_chunk_divides():
    case = plain("broadcast", 2, 1 << 16, root=0, dtype="uint64")
    x = operands(case, 0)[0]
    assert (x[8191 : 2 * 8191] == x[:8191]).all()
    for chunk in (1 << 10, 1 << 12, 1 << 13, 1 << 15):
        assert (x[chunk : chunk + 100] != x[:100]).all()


def plain(verb, ranks, count, dtype="int64", **more):
    """Return a case with nothing special: `count` elements on each rank."""
    table = ((count,),) * ranks
    case = Case(1, 0, ranks, tuple(range(ranks)), verb, np.dtype(dtype), table=table)
    return replace(case, **more)


GIVEN = [np.arange(6) + 10, np.arange(6) + 20, np.arange(6) + 30]
RANKS = (1, 2, 3)
THIRDS = ((2, 2, 2),) * 3


@pytest.mark.parametrize(
    ("verb", "more", "wanted"),
    [
        ("all_reduce", {"op": "sum"}, [[60 + 3 * i for i in range(6)]] * 3),
        ("reduce", {"op": "max", "root": 1}, [None, [30 + i for i in range(6)], None]),
        ("scan", {"op": "sum"}, [[10 * s * (s + 1) // 2 + s * i for i in range(6)] for s in RANKS]),
        (
            "scan",
            {"op": "sum", "exclusive": True},
            [[10 * s * (s + 1) // 2 + s * i for i in range(6)] for s in (0, 1, 2)],
        ),
        ("scan", {"op": "min", "exclusive": True}, [[2**63 - 1] * 6, *[list(range(10, 16))] * 2]),
        (
            "reduce_scatter",
            {"op": "min", "table": ((1, 2, 3),) * 3},
            [[10], [11, 12], [13, 14, 15]],
        ),
        ("broadcast", {"root": 2}, [list(range(30, 36))] * 3),
        ("scatter", {"root": 1, "table": ((3, 0, 3),) * 3}, [[20, 21, 22], [], [23, 24, 25]]),
        ("gather", {"root": 0}, [[10 * s + i for s in RANKS for i in range(6)], None, None]),
        ("all_gather", {}, [[10 * s + i for s in RANKS for i in range(6)]] * 3),
        (
            "all_to_all",
            {"table": THIRDS},
            [[10, 11, 20, 21, 30, 31], [12, 13, 22, 23, 32, 33], [14, 15, 24, 25, 34, 35]],
        ),
        ("permute", {"pairs": ((0, 2), (2, 1))}, [None, list(range(30, 36)), list(range(10, 16))]),
        ("barrier", {}, [None] * 3),
    ],
)
def test_expected(verb, more, wanted):
    case = plain(verb, 3, 6, **more)
    got = [expected(case, member, GIVEN) for member in range(3)]
    assert [None if x is None else x.tolist() for x in got] == wanted


def test_expected_of_means_and_factors():
    third = plain("all_reduce", 3, 2, "float32", op="mean", data="whole")
    given = [np.full(2, v, np.float32) for v in (1, 2, 7)]
    assert (expected(third, 0, given) == np.float32(10) / np.float32(3)).all()
    weighted = replace(third, weights=(0, 1, 3))
    assert expected(weighted, 0, given).tolist() == [23 / 4] * 2
    scaled = replace(third, op="premul_sum", factor=0.5)
    assert expected(scaled, 0, given).tolist() == [5.0] * 2
    # Complex division by 3 + 0j would multiply by 1/3.
    both = [x.astype(np.complex64) * (1 + 1j) for x in given]
    mean = expected(replace(third, dtype=np.dtype(np.complex64)), 0, both)
    assert mean.real.tolist() == mean.imag.tolist() == [np.float32(10) / np.float32(3)] * 2


def test_narrow_floats_are_rounded_once():
    case = plain("all_reduce", 3, 1, BFLOAT16, op="sum", data="whole")
    given = [np.array([v], BFLOAT16) for v in (256, 1, 1)]  # one after the other: 256 stays
    assert expected(case, 0, given).tolist() == [258]


def test_what_differs_when_moved_are_bits():
    case = plain("broadcast", 2, 3, "float64", root=0)
    nan = np.array([0.0, np.nan, 1.0])
    assert differing(case, nan.copy(), nan, []).size == 0
    assert differing(case, np.array([-0.0, np.nan, 1.0]), nan, []).tolist() == [0]
    assert differing(case, nan.astype(">f8"), nan, []).size == 0


def test_what_differs_when_reduced_are_numbers():
    case = plain("all_reduce", 2, 3, "float64", op="max", data="whole")
    want = np.array([0.0, np.nan, 1.0])
    assert differing(case, np.array([-0.0, -np.nan, 1.0]), want, []).size == 0
    assert differing(case, np.array([0.0, 0.0, np.nan]), want, []).tolist() == [1, 2]
    case = replace(case, op="sum")
    assert differing(case, want.copy(), np.zeros(3), []).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", BFLOAT16])
def test_rough_sums_may_be_off_by_their_roundings(dtype):
    case = plain("all_reduce", 3, 200, dtype, op="sum", data="rough")
    given = operands(case, 0)
    want = expected(case, 0, given)
    got = sum(x.astype(np.float64) for x in reversed(given)).astype(dtype)
    assert differing(case, got, want, given).size == 0
    got[7] += np.asarray(8, dtype)
    assert differing(case, got, want, given).tolist() == [7]
    assert differing(case, np.full(200, np.nan).astype(dtype), want, given).size == 200


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 0), (2, 3, 4)], ids=str)
def test_layouts(dtype, shape):
    values = operands(plain("broadcast", 1, math.prod(shape), dtype, root=0), 0)[0]
    for layout in layouts_for(dtype, len(shape)):
        laid = lay(shape, dtype, layout)
        laid.view[...] = values.reshape(shape)
        assert laid.view.shape == shape
        assert laid.view.dtype.isnative == (layout != "big-endian")
        assert laid.strays() == 0
        for place in {0, len(laid.base) - 1}:
            laid.base[place] ^= 1
            assert laid.strays() == 1
            laid.base[place] ^= 1


def test_layouts_are_what_they_are_called():
    made = {name: lay((3, 4), np.dtype(np.int32), name).view for name in LAYOUTS}
    assert made["fortran"].flags.f_contiguous
    assert made["strided"].strides == (32, 8)
    assert made["reversed"].strides == (-16, -4)
    assert not made["unaligned"].flags.aligned
    assert made["C"].flags.c_contiguous
    assert made["C"].flags.aligned
    assert made["big-endian"].dtype == ">i4"
    laid = lay((4,), np.dtype(np.int16), "strided")
    laid.base[64 + 2] = 1  # between the first two elements
    assert laid.strays() == 1


def test_the_tables_name_what_the_library_knows():
    assert set(selftest_values._UFUNCS) == {*OPS, "premul_sum"}
    assert len(DTYPES) == 17
    assert set(selftest_draw._DECK) == set(VERBS)

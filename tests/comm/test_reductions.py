"""Every dtype with every op gives what NumPy gives; the rest is refused before traffic."""

import os

import ml_dtypes
import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm import launch
from hpcpar.errors import ArgumentError, MismatchError, UnsupportedError

INTS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
FLOATS = [*HALVES, np.dtype(np.float32), np.dtype(np.float64)]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]
EIGHTS = [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
BOOL = [np.dtype(bool)]
TABLE = {
    "sum": [*BOOL, *INTS, *FLOATS, *COMPLEX, *EIGHTS],
    "mean": [*FLOATS, *COMPLEX],
    "prod": [*BOOL, *INTS, *FLOATS, *COMPLEX],
    "min": [*BOOL, *INTS, *FLOATS, *EIGHTS],
    "max": [*BOOL, *INTS, *FLOATS, *EIGHTS],
    "band": [*BOOL, *INTS],
    "bor": [*BOOL, *INTS],
    "bxor": [*BOOL, *INTS],
    hp.premul_sum(0.5): [*FLOATS, *COMPLEX],
}
DTYPES = TABLE["sum"]
UFUNCS = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def operand(dtype, rank, count=7):
    """Return small integers, another set on each rank; their sums and products are exact."""
    values = (np.arange(count) * 5 + rank * 3) % 4
    if dtype.kind == "c":
        return (values + 1j * (rank - values)).astype(dtype)
    if dtype.kind in "fV" or dtype.name.startswith(("bfloat", "float8")):
        return (values - 1.0).astype(dtype)
    return values.astype(dtype)


def expected(op, dtype, operands):
    """Return NumPy's result over the operands, accumulated where it is exact."""
    exact = dtype.kind in "biuc"
    stack = np.stack(operands) if exact else np.stack([x.astype(np.float64) for x in operands])
    if isinstance(op, hp.premul_sum(1.0).__class__):
        return (stack.sum(axis=0) * op.factor).astype(dtype)
    ufunc = UFUNCS[op]
    if dtype.kind == "b" and op in ("sum", "prod"):
        ufunc = np.logical_or if op == "sum" else np.logical_and
    result = ufunc.reduce(stack, axis=0, dtype=dtype if exact and dtype.kind != "b" else None)
    if op != "mean":
        return result.astype(dtype)
    if dtype.kind == "c":  # each part by itself: NumPy's complex division rounds twice
        part = dtype.type(0).real.dtype
        return (result.view(part) / part.type(len(operands))).view(dtype)
    return (result / len(operands)).astype(dtype)


def assert_same(got, wanted):
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert got.tobytes() == wanted.tobytes(), (got, wanted)


@pytest.mark.parametrize("op", TABLE, ids=str)
def test_every_dtype_gives_what_numpy_gives(ranks, op):
    def body(group):
        mine, size = group.rank, group.size
        for dtype in TABLE[op]:
            operands = [operand(dtype, r) for r in range(size)]
            wanted = expected(op, dtype, operands)
            x, untouched = operands[mine].copy(), operands[mine]
            assert_same(group.all_reduce(x, op), wanted)
            reduced = group.reduce(x, op, root=size - 1)
            assert reduced is None if mine != size - 1 else (assert_same(reduced, wanted) is None)
            chunk = -(-len(wanted) // size)
            part = group.reduce_scatter(x, op)
            assert_same(part, wanted[mine * chunk : (mine + 1) * chunk])
            assert_same(x, untouched)
            if op != "mean":
                assert_same(group.scan(x, op), expected(op, dtype, operands[: mine + 1]))
            if mine and op != "mean":
                before = expected(op, dtype, operands[:mine])
                assert_same(group.scan(x, op, exclusive=True), before)
            elif op != "mean":
                group.scan(x, op, exclusive=True)

    ranks(body)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "band", "bor", "bxor"])
def test_first_of_an_exclusive_scan_is_neutral(ranks, op):
    def body(group):
        for dtype in TABLE[op]:
            x = operand(dtype, 2)
            neutral = group.scan(x, op, exclusive=True)
            if group.rank == 0 and dtype.kind not in "c":
                wide = dtype.kind in "biu"
                both = [neutral if wide else neutral.astype(float), x if wide else x.astype(float)]
                ufunc = {"sum": np.logical_or, "prod": np.logical_and}.get(op, UFUNCS[op])
                ufunc = ufunc if dtype.kind == "b" else UFUNCS[op]
                assert_same(ufunc(*both).astype(dtype), x)

    ranks(body)


def test_refused_combinations_leave_the_group_usable(ranks):
    def body(group):
        for op, known in TABLE.items():
            for dtype in set(DTYPES) - set(known):
                x = operand(dtype, group.rank)
                for verb in (group.all_reduce, group.reduce, group.reduce_scatter, group.scan):
                    with pytest.raises(UnsupportedError, match=rf"dtype {dtype.name}.*\[rank "):
                        verb(x, op)
        with pytest.raises(UnsupportedError, match="scan: op 'mean'"):
            group.scan(np.ones(2), "mean")
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.parametrize("dtype", ["U3", "S4", "M8[s]", "V8", "f4,i4", object])
@pytest.mark.sizes(1, 2)
def test_dtypes_without_arithmetic_are_refused(ranks, dtype):
    def body(group):
        for verb in (group.all_reduce, group.reduce, group.reduce_scatter, group.scan):
            with pytest.raises(UnsupportedError):
                verb(np.zeros(3, dtype))
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_integers_wrap(ranks):
    def body(group):
        n = group.size
        total = group.all_reduce(np.array([100, -100], np.int8))
        assert total.tolist() == [(100 * n + 128) % 256 - 128, (-100 * n + 128) % 256 - 128]
        assert group.all_reduce(np.array([2**63], np.uint64))[0] == (2**63 * n) % 2**64
        assert group.all_reduce(np.array([16], np.uint8), "prod")[0] == 16**n % 256

    ranks(body)


def test_booleans_stay_booleans(ranks):
    def body(group):
        x = np.array([[True, False, False], [True, True, False]])[group.rank % 2]
        for op in ("sum", "max", "bor"):
            got = group.all_reduce(x, op)
            assert got.dtype == bool
            assert got.tolist() == [True, group.size > 1, False]
        for op in ("prod", "min", "band"):
            assert group.all_reduce(x, op).tolist() == [True, False, False]
        assert group.broadcast(x, root=0).tolist() == [True, False, False]
        assert group.all_gather(x).tolist()[:3] == [True, False, False]

    ranks(body)


@pytest.mark.parametrize("dtype", [*FLOATS, EIGHTS[1]], ids=str)
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins_whoever_holds_it(ranks, op, dtype):
    def body(group):
        for holder in range(group.size):
            x = np.array([5 + group.rank, 1]).astype(dtype)
            if group.rank == holder:
                x[0] = np.nan
            for got in (group.all_reduce(x, op), group.reduce(x, op)):
                if got is not None:
                    assert np.isnan(got.astype(float)[0])
                    assert got[1] == 1
            same = group.all_gather(group.all_reduce(x, op).view(f"u{dtype.itemsize}")[None])
            assert (same == same[0]).all()

    ranks(body)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_infinity_and_signed_zero(ranks, dtype):
    def body(group):
        x = np.array([-np.inf if group.rank == 0 else 3.0], dtype)
        assert group.all_reduce(x, "max")[0] == (3.0 if group.size > 1 else -np.inf)
        assert group.all_reduce(x, "min")[0] == -np.inf
        zero = np.array([0.0 if group.rank == group.size - 1 else -0.0], dtype)
        for op in ("min", "max", "sum"):
            bits = group.all_reduce(zero, op).tobytes()
            assert len(set(group.all_gather_object(bits))) == 1
        assert np.signbit(group.all_reduce(np.array([-0.0], dtype)).astype(float)[0])

    ranks(body)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_all_ranks_end_with_the_same_bits(ranks, dtype):
    def body(group):
        draw = np.random.default_rng(group.rank)
        for count in (1, 1000, 40_001):
            x = draw.normal(size=count).astype(dtype)
            for op in ("sum", "mean", "prod", hp.premul_sum(1 / 3)):
                first, again = group.all_reduce(x, op), group.all_reduce(x, op)
                assert first.tobytes() == again.tobytes()
                assert len(set(group.all_gather_object(first.tobytes()))) == 1

    ranks(body)


def test_half_types_accumulate_in_float32(ranks):
    def body(group):
        ones = 2048.0 if group.rank == 0 else 1.0  # 2048 + 1 == 2048 in float16
        got = group.all_reduce(np.array([ones], np.float16))
        assert got[0] == np.float16(2048 + group.size - 1)
        big = group.all_reduce(np.array([60000.0], np.float16), "mean")
        assert big[0] == 60000  # the sum would not fit

    ranks(body)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_weighted_mean(ranks, dtype):
    def body(group):
        weight = group.rank  # rank 0 counts for nothing
        x = np.array([4.0, 8.0 + group.rank], dtype)
        if group.size == 1:
            assert group.all_reduce(x, "mean", weight=2.5).tolist() == [4.0, 8.0]
            return
        total = sum(range(group.size))
        wanted = sum(r * (8.0 + r) for r in range(group.size)) / total
        got = group.all_reduce(x, "avg", weight=weight)
        assert got.dtype == dtype
        assert got.astype(float)[0] == 4.0
        assert got.astype(float)[1] == pytest.approx(wanted, rel=float(ml_dtypes.finfo(dtype).eps))
        tree = group.all_reduce({"a": x[:1], "b": 4.0}, "mean", weight=weight)
        assert tree == {"a": x[:1], "b": 4.0}

    ranks(body)


def test_weights_that_say_nothing_are_refused(ranks):
    def body(group):
        with pytest.raises(MismatchError, match="weights of all ranks sum to 0"):
            group.all_reduce(np.ones(2), "mean", weight=0)
        for weight in (-1, np.nan, np.inf, True, "1"):
            with pytest.raises(ArgumentError, match="weight"):
                group.all_reduce(np.ones(2), "mean", weight=weight)
        with pytest.raises(ArgumentError, match="weight goes with op 'mean', not 'sum'"):
            group.all_reduce(np.ones(2), weight=1)
        with pytest.raises(UnsupportedError):
            group.all_reduce(np.ones(2, int), "mean", weight=1)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.parametrize("factor", ["2", True, np.nan, np.inf, None, 1j])
def test_premul_factors_are_checked(factor):
    with pytest.raises(ArgumentError, match="premul_sum: factor"):
        hp.premul_sum(factor)


@pytest.mark.skipif(not launch.is_launched(os.environ), reason="only MPI counts in C ints")
def test_chunks_give_the_same_bits(ranks):
    """Counts above what one MPI call can take; with a limit of 1,000 elements instead of 2**31."""

    def body(group):
        halves = np.random.default_rng(group.rank).normal(size=2501)
        r, n, x = group.rank, group.size, np.arange(2501.0) + group.rank
        calls = [
            lambda: group.all_reduce(x),
            lambda: group.all_reduce(halves.astype(np.float16)),
            lambda: group.all_reduce(x, "max"),
            lambda: group.reduce(x, root=n - 1),
            lambda: group.reduce_scatter(x),
            lambda: group.scan(x),
            lambda: group.scan(x, exclusive=True),
            lambda: group.broadcast(x, root=n - 1),
            lambda: group.all_gather(x[: 700 + r]),
            lambda: group.gather(x[:700]),
            lambda: group.scatter(x),
            lambda: group.all_to_all(x),
            lambda: group.all_reduce(x, out=x),
        ]
        whole = [np.array(call()) for call in calls[:-1]]
        group._runner.backend.max_count = 1000
        for call, wanted in zip(calls, [*whole, whole[0]], strict=True):
            assert np.array(call()).tobytes() == wanted.tobytes()

    ranks(body, check="full")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_integers_wrap(ranks, dtype):
    """Vector code of Open MPI stays at the largest value."""

    def body(group):
        top = np.iinfo(dtype).max
        x = np.full(257, top, dtype)
        want = np.array(top).astype(np.int64) * group.size
        assert (group.all_reduce(x) == want.astype(dtype)).all()

    ranks(body)

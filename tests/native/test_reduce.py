"""_core.reduce: the dtype x op table against NumPy, aliasing, alignment, what is refused."""

import itertools
import threading

import ml_dtypes
import numpy as np
import pytest

from hpcpar import _core

INTS = [np.dtype(c) for c in "bhilqBHILQ"]
FLOATS = [np.dtype(c) for c in "efd"]
COMPLEX = [np.dtype(c) for c in "FD"]
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
NARROW = [np.dtype("e"), BF16, *FLOAT8]
BOOL = np.dtype(bool)
ALL = [BOOL, *INTS, *FLOATS, BF16, *COMPLEX, *FLOAT8]
OPS = ["sum", "prod", "min", "max", "band", "bor", "bxor"]
UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def name(dtype):
    return dtype.name


def allowed(dtype, op):
    """The table, written a second time."""
    if op in ("band", "bor", "bxor"):
        return dtype == BOOL or dtype in INTS
    if op in ("mean", "premul_sum"):
        return dtype in [*FLOATS, BF16, *COMPLEX]
    if op in ("min", "max"):
        return dtype not in COMPLEX
    return op == "sum" or dtype not in FLOAT8


def make(dtype, shape, rng):
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype in INTS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    whole = rng.integers(-4, 5, shape).astype(np.float64)
    return (whole + 1j * rng.integers(-4, 5, shape) if dtype in COMPLEX else whole).astype(dtype)


def expect(srcs, op):
    """NumPy's fold; narrow floats in float32 with one rounding at the end."""
    dtype = srcs[0].dtype
    wide = np.float32 if dtype in NARROW else dtype
    result = srcs[0].astype(wide)
    for x in srcs[1:]:
        with np.errstate(over="ignore", invalid="ignore"):
            result = UFUNCS[op](result, x.astype(wide))
    return result.astype(dtype)


@pytest.mark.parametrize("op", [*OPS, "mean", "premul_sum"])
@pytest.mark.parametrize("dtype", ALL, ids=name)
def test_table(dtype, op):
    assert _core.reducible(dtype, op) is allowed(dtype, op)
    if op in OPS and not allowed(dtype, op):
        with pytest.raises(TypeError, match="has no meaning"):
            _core.reduce(np.zeros(3, dtype), [np.zeros(3, dtype)], op)


@pytest.mark.parametrize(
    ("dtype", "op"), [p for p in itertools.product(ALL, OPS) if allowed(*p)], ids=str
)
def test_against_numpy(dtype, op):
    rng = np.random.default_rng(3)
    for count, num in itertools.product([0, 1, 7, 64, 1000, 5001], [1, 2, 3, 5]):
        srcs = [make(dtype, count, rng) for _ in range(num)]
        out = np.empty(count, dtype)
        _core.reduce(out, srcs, op)
        assert out.tobytes() == expect(srcs, op).tobytes(), (count, num)


@pytest.mark.parametrize("dtype", ["g", "G", "O", "S3", "M8[s]", "V4", [("a", "f4")]], ids=str)
def test_foreign_dtypes(dtype):
    assert not _core.reducible(np.dtype(dtype), "sum")
    x = np.zeros(3, dtype)
    with pytest.raises(TypeError, match="has no reduction"):
        _core.reduce(x, [x], "sum")


def test_bool_is_never_a_byte_sum():
    a, b = np.array([True, False, False]), np.array([True, True, False])
    out = np.empty(3, bool)
    for op in ("sum", "max", "bor"):
        _core.reduce(out, [a, b], op)
        assert out.tolist() == [True, True, False]
    for op in ("prod", "min", "band"):
        _core.reduce(out, [a, b], op)
        assert out.tolist() == [True, False, False]
    odd = np.array([2, 0, 4], np.uint8).view(bool)  # bytes other than 0 and 1
    _core.reduce(out, [odd, odd], "sum")
    assert out.view(np.uint8).tolist() == [1, 0, 1]


@pytest.mark.parametrize("holder", range(3))
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", [*FLOATS, BF16, *FLOAT8], ids=name)
def test_nan_wins(dtype, op, holder):
    for count in (1, 9, 40):
        srcs = [np.full(count, 5 + r, dtype) for r in range(3)]
        srcs[holder][...] = np.nan
        out = np.empty(count, dtype)
        _core.reduce(out, srcs, op)
        assert np.isnan(out.astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [*FLOATS, BF16, *FLOAT8], ids=name)
def test_zeros_and_infinities(dtype):
    out = np.empty(9, dtype)
    zero, minus = np.full(9, 0.0, dtype), np.full(9, -0.0, dtype)
    for srcs in itertools.permutations([zero, minus]):
        _core.reduce(out, srcs, "min")
        assert np.signbit(out.astype(np.float32)).all()
        _core.reduce(out, srcs, "max")
        assert not np.signbit(out.astype(np.float32)).any()
    if dtype != FLOAT8[0]:  # it has no infinity
        _core.reduce(out, [np.full(9, -np.inf, dtype), np.full(9, 3, dtype)], "max")
        assert (out == np.full(9, 3, dtype)).all()


@pytest.mark.parametrize("dtype", NARROW, ids=name)
def test_narrow_floats_round_once(dtype):
    """1 + e + e with e half a step above 1: rounding after each addition would lose both."""
    step = float(ml_dtypes.finfo(dtype).eps)
    srcs = [np.full(20, x, dtype) for x in (1.0, step / 2, step / 2)]
    out = np.empty(20, dtype)
    _core.reduce(out, srcs, "sum")
    assert (out.astype(np.float64) == 1.0 + step).all()


@pytest.mark.parametrize("dtype", [*FLOATS, BF16, *COMPLEX], ids=name)
def test_factors_and_divisor(dtype):
    rng = np.random.default_rng(5)
    wide = np.float32 if dtype in NARROW else dtype
    real = np.empty(0, wide).real.dtype.type
    srcs = [make(dtype, 3000, rng) for _ in range(3)]
    factors = [0.5, 3.0, -0.1]
    scaled = [x.astype(wide) * real(f) for x, f in zip(srcs, factors, strict=True)]
    total = scaled[0] + scaled[1] + scaled[2]
    out = np.empty(3000, dtype)
    _core.reduce(out, srcs, "sum", factors=factors)
    assert out.tobytes() == total.astype(dtype).tobytes()
    _core.reduce(out, srcs, "sum", factors=factors, divisor=4)
    assert np.array_equal(out, (total / real(4)).astype(dtype))
    _core.reduce(out, srcs, "sum", None, 4.0)
    plain = srcs[0].astype(wide) + srcs[1].astype(wide) + srcs[2].astype(wide)
    assert np.array_equal(out, (plain / real(4)).astype(dtype))


def test_mean_divides_before_rounding():
    srcs = [np.full(4, 60000, np.float16) for _ in range(4)]  # their sum is beyond float16
    out = np.empty(4, np.float16)
    _core.reduce(out, srcs, "sum", divisor=4)
    assert (out == 60000).all()


@pytest.mark.parametrize("dtype", [np.dtype("f"), np.dtype("e"), np.dtype("h"), BF16], ids=name)
@pytest.mark.parametrize("alias", range(4))
def test_out_is_a_source(dtype, alias):
    rng = np.random.default_rng(7)
    srcs = [make(dtype, 9001, rng) for _ in range(4)]
    right = expect(srcs, "sum")
    _core.reduce(srcs[alias], srcs, "sum")
    assert srcs[alias].tobytes() == right.tobytes()


def test_out_twice_among_the_sources():
    x = np.arange(5000, dtype=np.float32)
    _core.reduce(x, [x, x, x], "sum")
    assert np.array_equal(x, 3 * np.arange(5000, dtype=np.float32))


@pytest.mark.parametrize(
    ("dtype", "op"), [p for p in itertools.product(ALL, ["sum", "min"]) if allowed(*p)], ids=str
)
def test_bits_do_not_depend_on_alignment(dtype, op):
    rng = np.random.default_rng(9)
    values = [make(dtype, 700, rng) for _ in range(3)]
    if dtype in FLOATS:
        values = [(x / 3).astype(dtype) for x in values]
    right = np.empty(700, dtype)
    _core.reduce(right, values, op)
    for offset in range(1, 9):
        moved = [np.concatenate([x[: offset + s], x])[offset + s :] for s, x in enumerate(values)]
        out = np.empty(700 + offset, dtype)[offset:]
        _core.reduce(out, moved, op)
        assert out.tobytes() == right.tobytes()
        part = np.empty(700 - offset, dtype)  # nor on where a caller cuts
        _core.reduce(part, [x[offset:] for x in values], op)
        assert part.tobytes() == right[offset:].tobytes()


def test_shapes_may_differ_counts_may_not():
    out = np.empty(6, np.float32)
    _core.reduce(out, [np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)], "sum")
    assert (out == 2).all()
    with pytest.raises(ValueError, match=r"srcs\[1\] has 5 elements, out has 6"):
        _core.reduce(out, [np.ones(6, np.float32), np.ones(5, np.float32)], "sum")


def test_read_only_sources_are_fine():
    x = np.ones(4, np.float32)
    x.flags.writeable = False
    out = np.empty(4, np.float32)
    _core.reduce(out, [x, x], "sum")
    assert (out == 2).all()
    with pytest.raises(ValueError, match="out is not writable"):
        _core.reduce(x, [out], "sum")


def test_refused_arrays():
    x = np.ones(8, np.float32)
    reduce = _core.reduce
    with pytest.raises(TypeError, match=r"srcs\[0\] has dtype float64, out has float32"):
        reduce(x, [np.ones(8)], "sum")
    with pytest.raises(TypeError, match="dtype >f4 has no reduction"):
        reduce(x.astype(">f4"), [x], "sum")
    with pytest.raises(TypeError, match="has dtype >f4"):
        reduce(x, [x.astype(">f4")], "sum")
    with pytest.raises(TypeError, match="not a NumPy array"):
        reduce(x, [[1.0] * 8], "sum")
    with pytest.raises(ValueError, match=r"srcs\[1\] is not C-contiguous"):
        reduce(x, [x, np.ones(16, np.float32)[::2]], "sum")
    with pytest.raises(ValueError, match="out is not writable, C-contiguous"):
        reduce(np.ones(16, np.float32)[::2], [x], "sum")
    with pytest.raises(ValueError, match="aligned"):
        reduce(x, [np.zeros(33, np.uint8)[1:].view(np.float32)], "sum")


def test_refused_arguments():
    x = np.ones(8, np.float32)
    reduce = _core.reduce
    with pytest.raises(ValueError, match="srcs is empty"):
        reduce(x, [], "sum")
    with pytest.raises(ValueError, match="op 'average' is unknown"):
        reduce(x, [x], "average")
    with pytest.raises(TypeError, match="op 'mean' has no meaning"):
        reduce(x, [x], "mean")  # a sum with a divisor
    with pytest.raises(ValueError, match="2 factors for 1 srcs"):
        reduce(x, [x], "sum", [1.0, 2.0])
    with pytest.raises(TypeError, match="with factors or divisor has no meaning"):
        reduce(x, [x], "max", None, 2.0)
    with pytest.raises(TypeError, match="with factors or divisor has no meaning"):
        reduce(np.ones(3, np.int32), [np.ones(3, np.int32)], "sum", [2.0])
    with pytest.raises(TypeError):
        reduce(x, [x], "sum", ["two"])


def test_overlap_in_part_is_refused():
    x = np.ones(100, np.float32)
    with pytest.raises(ValueError, match=r"srcs\[1\] overlaps out in part"):
        _core.reduce(x[:50], [x[50:], x[49:99]], "sum")


def test_many_sources():
    srcs = [np.full(100, i, np.int64) for i in range(200)]
    out = np.empty(100, np.int64)
    _core.reduce(out, srcs, "sum")
    assert (out == 199 * 100).all()
    floats = [x.astype(np.float64) for x in srcs]
    result = np.empty(100)
    _core.reduce(result, floats, "sum", factors=[0.5] * 200)
    assert (result == 199 * 50).all()


def test_large_work_releases_the_interpreter():
    """A thread counts on while another reduces: it could not with the lock held."""
    x = np.ones(1 << 22, np.float32)
    counts, done = [], threading.Event()

    def count():
        n = 0
        while not done.is_set():
            n += 1
        counts.append(n)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(20):
        _core.reduce(x, [x, x, x], "max")
    done.set()
    thread.join()
    assert counts[0] > 1000

"""PackPlan: round trips of any layout, casts, offsets, what is refused."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar._core import PackPlan

BF16 = np.dtype(ml_dtypes.bfloat16)
NARROW = [np.dtype("e"), BF16, *map(np.dtype, (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))]


def layouts_of(arrays):
    return [(x.shape, x.dtype) for x in arrays]


def packed(arrays, **options):
    plan = PackPlan(layouts_of(arrays), **options)
    flat = np.full(plan.nbytes, 0xEE, np.uint8)
    plan.pack(arrays, flat)
    return plan, flat


def assert_round_trip(arrays, **options):
    plan, flat = packed(arrays, **options)
    for x, offset in zip(arrays, plan.offsets, strict=True):
        assert flat[offset : offset + x.nbytes].tobytes() == x.tobytes()
    back = [np.full_like(x, 0) for x in arrays]  # keeps the strides' order
    plan.unpack(flat, back)
    for x, y in zip(arrays, back, strict=True):
        assert y.shape == x.shape
        assert y.tobytes() == x.tobytes()


def test_zero_elements_and_0d_keep_their_shapes():
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.empty((0, 8), np.float32),
        np.array(7.0, np.float32),
        np.array([1, 2, 3], np.int8),
        np.array([9.0], np.float32),
        np.empty(0, np.float32),
        np.array([2.5], np.float64),
    ]
    for align in (1, 2, 64):
        assert_round_trip(arrays, align=align)
        plan = PackPlan(layouts_of(arrays), align=align)
        for x, offset in zip(arrays, plan.offsets, strict=True):
            assert offset % max(align, x.dtype.alignment) == 0


def test_views_alias_the_flat_buffer():
    arrays = [np.zeros((2, 3), np.float32), np.zeros(3, np.int8), np.zeros((), np.float64)]
    plan, flat = packed(arrays, align=8)
    views = [
        flat[offset : offset + x.nbytes].view(x.dtype).reshape(x.shape)
        for x, offset in zip(arrays, plan.offsets, strict=True)
    ]
    views[0][...] = 5
    views[2][...] = 2.5
    plan.pack(views, flat)  # each is its own place: nothing moves
    plan.unpack(flat, arrays)
    assert (arrays[0] == 5).all()
    assert arrays[2] == 2.5


def test_offsets_are_dense_up_to_align():
    layouts = [((5,), "f4"), ((3,), "f4"), ((16,), "f4"), ((1,), "f4")]
    plan = PackPlan(layouts)
    assert plan.offsets == (0, 64, 128, 192)
    assert (plan.nbytes, plan.count) == (196, 196)
    plan = PackPlan(layouts, dtype="f8", align=16)
    assert plan.offsets == (0, 48, 80, 208)
    assert (plan.nbytes, plan.count) == (216, 27)
    plan = PackPlan(layouts, dtype="f4", align=1)
    assert plan.offsets == (0, 20, 32, 96)


def test_gaps_are_zero():
    arrays = [np.ones(3, np.float32), np.ones(5, np.float32)]
    plan, flat = packed(arrays)
    assert not flat[12:64].any()
    flat = np.full(plan.nbytes // 4, np.nan, np.float32)
    PackPlan(layouts_of(arrays), dtype="f4").pack(arrays, flat)
    assert flat.sum() == 8


def test_no_members():
    plan = PackPlan([])
    assert (plan.nbytes, plan.offsets, plan.count) == (0, (), 0)
    plan.pack([], np.empty(0, np.uint8))
    plan.unpack(np.empty(0, np.uint8), [])


STRIDED = {
    "every second": lambda x: x[::2],
    "backwards": lambda x: x[::-1, ::-3],
    "transposed": lambda x: x.T,
    "fortran": np.asfortranarray,
    "column": lambda x: x[:, 1],
    "rows of a wide array": lambda x: x[2:7, 3:9],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "three axes": lambda x: x.reshape(4, 3, -1).transpose(2, 0, 1)[::2],
}


@pytest.mark.parametrize("dtype", ["i1", "f2", "f4", "f8", "c16", "S3", "V7", "M8[s]", "f4,i1"])
@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED)
def test_strided(view, dtype):
    raw = np.random.default_rng(1).integers(0, 100, 12 * 14 * np.dtype(dtype).itemsize, np.uint8)
    x = view(raw.view(dtype).reshape(12, 14))
    _, flat = packed([x], align=1)
    assert flat.tobytes() == np.ascontiguousarray(x).tobytes()
    if x.flags.writeable:
        assert_round_trip([x, x.copy()])


def test_unpack_into_strided_views_touches_nothing_else():
    for view in (STRIDED["every second"], STRIDED["backwards"], STRIDED["column"]):
        base = np.full((12, 14), -1.0, np.float32)
        target = view(base)
        plan = PackPlan([(target.shape, "f4")])
        flat = np.arange(target.size, dtype=np.float32)
        plan.unpack(flat.view(np.uint8), [target])
        assert np.array_equal(target.ravel(), flat)
        assert (base == -1).sum() == base.size - target.size


def test_unaligned_member():
    x = np.zeros(41, np.uint8)[1:].view(np.float32)
    x[...] = np.arange(10)
    _, flat = packed([x])
    assert np.array_equal(flat.view(np.float32), np.arange(10))
    plan = PackPlan([((10,), "f4")], dtype="f8")
    wide = np.empty(10)
    plan.pack([x], wide, scale=2.0)
    assert np.array_equal(wide, 2.0 * np.arange(10))
    plan.unpack(wide, [x])
    assert np.array_equal(x, 2 * np.arange(10))


@pytest.mark.parametrize("target", [np.dtype("f4"), np.dtype("f8"), *NARROW], ids=str)
@pytest.mark.parametrize("source", [np.dtype("f4"), np.dtype("f8"), *NARROW], ids=str)
def test_casts_round_as_numpy(source, target):
    """Values of float32: NumPy casts wider ones to 8 bits by way of float32, in two roundings."""
    rng = np.random.default_rng(2)
    values = rng.standard_normal(3000) * 2.0 ** rng.integers(-12, 6, 3000)
    x = values.astype(np.float32).astype(source)
    plan = PackPlan([((3000,), source)], dtype=target)
    flat = np.empty(plan.count, target)
    plan.pack([x], flat)
    assert flat.tobytes() == x.astype(np.float64).astype(target).tobytes()
    back = np.empty(3000, source)
    plan.unpack(flat, [back])
    assert back.tobytes() == flat.astype(np.float64).astype(source).tobytes()


def test_scale():
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    plan = PackPlan([(x.shape, "f4")], dtype=BF16)
    flat = np.empty(6, BF16)
    plan.pack([x], flat, scale=0.5)
    assert flat.tolist() == [0, 1.5, 0.5, 2.0, 1.0, 2.5]
    back = np.empty_like(x)
    plan.unpack(flat, [back], 4.0)
    assert np.array_equal(back, 2 * x)
    same = PackPlan([((3,), "f4")], dtype="f4")
    third = np.empty(3, np.float32)
    same.pack([np.ones(3, np.float32)], third, 1 / 3)
    assert (third == np.float32(1 / 3)).all()


def test_integers_of_the_plan_dtype():
    x = np.arange(5)
    plan = PackPlan([((5,), x.dtype)], dtype=x.dtype)
    flat = np.empty(5, x.dtype)
    plan.pack([x], flat)
    assert np.array_equal(flat, x)
    with pytest.raises(TypeError, match="scale needs"):
        plan.pack([x], flat, scale=2.0)


def test_many_members():
    arrays = [np.full(i % 7, i, np.int32) for i in range(1000)]
    assert_round_trip(arrays)


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
dtypes = st.sampled_from(["?", "i1", "u2", "f2", "f4", "i8", "c16", "S5"]).map(np.dtype)


@st.composite
def members(draw):
    """An array with random values, axis order and steps."""
    shape, dtype = draw(shapes), draw(dtypes)
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    base_shape = [shape[axis] * abs(steps[axis]) for axis in order]
    size = int(np.prod(base_shape)) * dtype.itemsize
    seed = draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).integers(0, 2, size, np.uint8)
    base = raw.view(dtype).reshape(base_shape)
    return base.transpose(np.argsort(order))[(*(slice(None, None, s) for s in steps), ...)]


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(arrays=st.lists(members(), max_size=6), align=st.sampled_from([1, 8, 64, 4096]))
def test_any_layout_survives(arrays, align):
    assert_round_trip(arrays, align=align)


def test_refused_plans():
    with pytest.raises(TypeError, match="Python objects"):
        PackPlan([((2,), object)])
    with pytest.raises(TypeError, match="not in native byte order"):
        PackPlan([((2,), ">f4")])
    with pytest.raises(TypeError, match=r"layouts\[1\] has dtype int32, which is not cast"):
        PackPlan([((2,), "f4"), ((2,), "i4")], dtype="f4")
    with pytest.raises(TypeError, match="is not a native number"):
        PackPlan([], dtype="S3")
    with pytest.raises(ValueError, match="align is 48"):
        PackPlan([], align=48)
    with pytest.raises(ValueError, match="negative axis"):
        PackPlan([((2, -1), "f4")])
    with pytest.raises(ValueError, match="larger than memory"):
        PackPlan([((2**40, 2**40), "f4")])
    # four times 2**62 bytes: zero, modulo the size of an address
    with pytest.raises(ValueError, match="members together are larger than memory"):
        PackPlan([((2**62,), "i1")] * 4, align=1)
    with pytest.raises(ValueError, match="members together are larger than memory"):
        PackPlan([((1,), "i1")] * 3, align=2**62)
    with pytest.raises(TypeError, match=r"layouts\[0\] is not \(shape tuple, dtype\)"):
        PackPlan([(2, "f4")])
    with pytest.raises(TypeError, match=r"layouts\[0\] is not \(shape tuple, dtype\)"):
        PackPlan([([2], "f4")])
    with pytest.raises(TypeError, match="layouts"):
        PackPlan(["f4"])


def test_refused_arrays():
    plan = PackPlan([((2, 3), "f4"), ((4,), "i8")])
    a, b, flat = np.zeros((2, 3), np.float32), np.zeros(4, np.int64), np.zeros(96, np.uint8)
    plan.pack([a, b], flat)
    with pytest.raises(ValueError, match="1 arrays for a plan of 2"):
        plan.pack([a], flat)
    with pytest.raises(ValueError, match=r"arrays\[0\] has another shape"):
        plan.pack([a.T, b], flat)
    with pytest.raises(TypeError, match=r"arrays\[1\] has dtype float64, the plan int64"):
        plan.pack([a, b.astype(float)], flat)
    with pytest.raises(TypeError, match=r"arrays\[0\] has dtype >f4"):
        plan.pack([a.astype(">f4"), b], flat)
    with pytest.raises(TypeError, match="not a NumPy array"):
        plan.pack([a, [0, 0, 0, 0]], flat)
    b.flags.writeable = False
    plan.pack([a, b], flat)
    with pytest.raises(ValueError, match=r"arrays\[1\] is read-only"):
        plan.unpack(flat, [a, b])


@pytest.mark.parametrize(
    "flat",
    [
        np.zeros(95, np.uint8),
        np.zeros((2, 48), np.uint8),
        np.zeros(192, np.uint8)[::2],
        np.zeros(24, np.float32),
        bytearray(96),
    ],
    ids=["short", "2-D", "strided", "dtype", "no array"],
)
def test_refused_buffers(flat):
    plan = PackPlan([((2, 3), "f4"), ((4,), "i8")])
    arrays = [np.zeros((2, 3), np.float32), np.zeros(4, np.int64)]
    with pytest.raises(ValueError, match="flat is not a contiguous 1-D array of 96 bytes"):
        plan.pack(arrays, flat)


def test_refused_read_only_and_unaligned_buffers():
    plan = PackPlan([((2,), "f4")], dtype="f4")
    locked = np.zeros(2, np.float32)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="flat is read-only"):
        plan.pack([np.zeros(2, np.float32)], locked)
    plan.unpack(locked, [np.ones(2, np.float32)])
    with pytest.raises(ValueError, match="flat is not aligned"):
        plan.pack([np.zeros(2, np.float32)], np.zeros(9, np.uint8)[1:])


@pytest.mark.parametrize("nbytes", [2**20 - 1, 2**20, 2**20 + 77, 3 * 2**20 + 5])
@pytest.mark.parametrize("offset", [0, 1, 63])
def test_long_runs_are_whole_wherever_they_lie(nbytes, offset):
    source = np.random.default_rng(0).integers(0, 256, nbytes + 64, np.uint8)[offset:][:nbytes]
    rows = np.zeros((2, nbytes + 9), np.uint8)
    rows[:, :nbytes] = source
    plan = PackPlan([((nbytes,), np.uint8), ((2, nbytes), np.uint8)])
    flat = np.zeros(plan.nbytes + 64, np.uint8)[offset:][: plan.nbytes]
    plan.pack([source, rows[:, :nbytes]], flat)
    assert np.array_equal(flat[:nbytes], source)
    assert np.array_equal(flat[plan.offsets[1] :], np.tile(source, 2))
    back, back_rows = np.zeros(nbytes + 1, np.uint8), np.zeros_like(rows)
    plan.unpack(flat, [back[1:], back_rows[:, :nbytes]])
    assert np.array_equal(back[1:], source)
    assert np.array_equal(back_rows, rows)
    assert back[0] == 0

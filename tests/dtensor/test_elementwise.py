"""Operations element by element: NumPy's values for any layouts, with the moves counted."""

import operator

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, UnsupportedError

from ..mesh import arrays
from .support import draw, draw_mesh, each_seed, same

BINARY = (
    *(np.add, np.subtract, np.multiply, np.maximum, np.less, np.equal, np.arctan2, np.hypot),
    *(np.copysign, np.logical_and, np.true_divide),
)
UNARY = (np.negative, np.positive, np.absolute, np.exp, np.isfinite, np.sign, np.square, np.cos)
OPERATORS = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
)


def broadcastable(rng, shape):
    """Return a shape that broadcasts with the other."""
    kept = tuple(1 if rng.integers(4) == 0 else n for n in shape)
    return kept[rng.integers(len(kept) + 1) :] if rng.integers(3) == 0 else kept


def check_two(group, rng):
    mesh = draw_mesh(rng, group)
    shape = arrays.draw_shape(rng)
    dtypes = rng.choice(["float64", "float32", "int32"], 2)
    (x, a), (y, b) = (
        draw(rng, mesh, s, str(d))
        for s, d in zip((shape, broadcastable(rng, shape)), dtypes, strict=True)
    )
    if rng.integers(2):
        x, a, y, b = y, b, x, a
    with np.errstate(all="ignore"):
        ufunc = BINARY[rng.integers(len(BINARY))]
        same(ufunc(x, y), ufunc(a, b), 1e-6)
        operate = OPERATORS[rng.integers(len(OPERATORS))]
        same(operate(x, y), operate(a, b), 1e-6)
        number = [2, -1.5, np.float32(0.5), np.array(3)][rng.integers(4)]
        same(operate(x, number), operate(a, number), 1e-6)
        same(operate(number, x), operate(number, a), 1e-6)


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_two_arrays(ranks):
    ranks(each_seed(range(16), check_two))


def check_one(group, rng):
    mesh = draw_mesh(rng, group)
    x, a = draw(rng, mesh, arrays.draw_shape(rng), str(rng.choice(["float64", "int32"])))
    with np.errstate(all="ignore"):
        for ufunc in UNARY:
            same(ufunc(x), ufunc(a), 1e-6)
        for part, right in zip(divmod(x, 3), divmod(a, 3), strict=True):
            same(part, right)
        for part, right in zip(divmod(7, x + 10), divmod(7, a + 10), strict=True):
            same(part, right)
        for pair in (np.modf, np.frexp):
            for part, right in zip(pair(x), pair(a), strict=True):
                same(part, right, 1e-6)
        same(np.clip(x, -1, 1), np.clip(a, -1, 1))
        same(x.clip(max=1), a.clip(max=1))
        same(x.clip(-1, None), np.maximum(a, -1))
        same(np.round(x * 0.3, 1), np.round(a * 0.3, 1), 1e-6)
        same(np.where(x > 0, x, -1), np.where(a > 0, a, -1))
        for dtype in ("float64", "float32", "int64", "bool", "complex128"):
            same(x.astype(dtype), a.astype(dtype), 1e-6)
        same(np.zeros_like(x), np.zeros_like(a))
        same(np.full_like(x, 3, dtype="int8"), np.full_like(a, 3, dtype="int8"))


@pytest.mark.sizes(1, 2, 3, 4)
def test_one_array(ranks):
    ranks(each_seed(range(8), check_one))


def check_in_place(group, rng):
    mesh = draw_mesh(rng, group)
    shape = arrays.draw_shape(rng)
    (x, a) = draw(rng, mesh, shape, "float64", ())
    (y, b) = draw(rng, mesh, broadcastable(rng, shape)[-len(shape) :] if shape else ())
    for change in (operator.iadd, operator.imul, operator.isub):
        before = x
        x = change(x, y)
        a = change(a, b)
        assert x is before
        same(x, a, 1e-6)
    x -= 1
    assert np.multiply(x, 2, out=x) is x
    same(x, (a - 1) * 2, 1e-6)
    mask = a > 0
    there, _ = draw(rng, mesh, shape, "float64", ())
    there[...] = 7
    np.add(x, 1, out=there, where=x > 0)
    same(there, np.where((a - 1) * 2 > 0, (a - 1) * 2 + 1, 7), 1e-6)
    assert mask.shape == x.shape


@pytest.mark.sizes(1, 2, 3, 4)
def test_in_place(ranks):
    ranks(each_seed(range(12), check_in_place))


# -- sums that are still to be made --------------------------------------------------------------


@pytest.mark.sizes(1, 2, 3, 4)
def test_numbers_are_added_once_to_a_pending_sum(ranks):
    """DTN-1: a number is added once, not once per rank, and never another call's number."""

    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        d = hp.distribute(np.arange(10), mesh, hp.Shard(0))
        s = d.sum()
        assert s.placements == (hp.Partial(),)
        got = [s + 10, 10 - s, s * 2, s + np.array(10), np.maximum(s, 50)]
        assert [int(each) for each in got] == [55, -35, 90, 55, 50]
        assert [int(d.sum() * k) for k in (1, 2, 3)] == [45, 90, 135]
        assert float(d.sum() / 3) == 15.0
        assert int(-s) == -45
        other = hp.distribute(np.array(100), mesh, hp.Replicate())
        assert [int(s + other), int(other - s), int(s * other)] == [145, 55, 4500]

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_sums_wait_where_the_function_is_linear(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        x = hp.distribute(np.arange(12.0).reshape(4, 3), mesh, hp.Shard(0))
        with wire(group) as counted, hp.dtensor.comm_mode(forbid=True):
            s, t = x.sum(0), (2 * x).sum(0)
            total = -(s + t) * 0.5 - s / 4 + 1
            assert total.placements == (hp.Partial(),)
        assert counted.sent == 0
        sums = np.arange(12.0).reshape(4, 3).sum(0)
        same(total, -1.5 * sums - sums / 4 + 1)
        with hp.dtensor.comm_mode() as moved:
            squares = s * s
        assert squares.placements == (hp.Replicate(),)
        assert [verb for verb, _ in moved.redistributions] == ["multiply", "multiply"]
        same(squares, sums**2)
        refused = pytest.raises(UnsupportedError, match=r"exp: would move an array from Layout")
        with hp.dtensor.comm_mode(forbid=True), refused:
            np.exp(s)

    ranks(body)


@pytest.mark.sizes(2)
def test_small_integers_wrap_as_numpys(ranks):
    def body(group):
        mesh = hp.init_device_mesh((2,), ("a",), group=group)
        parts = np.array([100, -100], np.int8), np.array([100, 100], np.int8)
        layout = hp.mesh.Layout(mesh, hp.Partial(), (2,), "int8")
        x = hp.DTensor(parts[group.rank], layout)
        whole = parts[0] + parts[1]
        same(x + np.int8(100), whole + np.int8(100))
        same(x * 3, whole * np.int8(3))
        same(x.astype("int64"), whole.astype("int64"))
        wide = hp.distribute(np.array([1000, 1000]), mesh, hp.Replicate())
        same(x + wide, whole + np.array([1000, 1000]))

    ranks(body)


# -- moves and what is refused ---------------------------------------------------------------------


@pytest.mark.sizes(2, 4)
def test_moves_are_counted_and_can_be_forbidden(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        a = np.arange(16.0).reshape(4, 4)
        rows, columns, alike = (
            hp.distribute(a, mesh, p) for p in (hp.Shard(0), hp.Shard(1), hp.Replicate())
        )
        with hp.dtensor.comm_mode() as moved:
            same(rows + rows, a + a)
            same(rows + alike, a + a)
            same(rows + 1, a + 1)
        assert len(moved) == 0
        with hp.dtensor.comm_mode() as moved:
            same(rows + columns, a + a)
        assert len(moved) == 1
        with hp.dtensor.comm_mode(forbid=True):
            with pytest.raises(UnsupportedError, match=r"comm_mode\(forbid=True\) forbids"):
                rows + columns
            same(rows + columns.redistribute(hp.Shard(0)), a + a)
            with hp.dtensor.comm_mode() as inner, pytest.raises(UnsupportedError, match="forbids"):
                rows + columns  # an inner block does not allow what the outer one forbids
            for move in (np.sort, np.argsort, lambda x: np.take(x, x.astype(int) // 4)):
                with pytest.raises(UnsupportedError, match="forbids"):
                    move(rows[:, 0])
            same(alike + rows[::-1], a + a[::-1])  # sends nothing
        assert len(inner) == 0
        with hp.dtensor.comm_mode() as outer:
            with hp.dtensor.comm_mode() as inner:
                rows + columns
            rows + columns
        assert (len(outer), len(inner)) == (2, 1)

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_a_row_and_a_column_on_two_mesh_axes_stay(ranks):
    def body(group):
        mesh = hp.init_device_mesh((1, group.size), ("a", "b"), group=group)
        column = hp.distribute(np.arange(4.0)[:, None], mesh, {"a": hp.Shard(0)})
        row = hp.distribute(np.arange(3.0), mesh, {"b": hp.Shard(0)})
        with hp.dtensor.comm_mode(forbid=True):
            product = column * row
        assert product.placements == (hp.Shard(0), hp.Shard(1))
        same(product, np.arange(4.0)[:, None] * np.arange(3.0))

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_what_is_refused(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        a = np.arange(4.0)
        x = hp.distribute(a, mesh, hp.Shard(0))
        for wrong in (lambda: x + a, lambda: a + x, lambda: np.add(x, a), lambda: np.exp(x, a)):
            with pytest.raises(TypeError, match=r"hp.distribute|out must be a DTensor"):
                wrong()
        with hp.dtensor.implicit_replication():
            same(x + a, a + a)
            same(a - x, a - a)
            with hp.dtensor.implicit_replication():
                pass
            same(x * a, a * a)  # the inner block does not end the outer one
        with pytest.raises(TypeError, match=r"hp\.distribute"):
            x + a
        with pytest.raises(TypeError, match="unsupported operand"):
            x + "a"
        with pytest.raises(ArgumentError, match=r"shapes \(4,\), \(3,\) do not fit"):
            x + hp.distribute(np.arange(3.0), mesh, hp.Shard(0))
        other = hp.init_device_mesh((group.size,), ("other",), group=group)
        with pytest.raises(ArgumentError, match="must be on one mesh"):
            x + hp.distribute(a, other, hp.Shard(0))
        with pytest.raises(UnsupportedError, match="cannot be changed in place"):
            s = hp.DTensor(np.ones(4), hp.mesh.Layout(mesh, hp.Partial(), (4,), "float64"))
            np.exp(s, out=s)
        with pytest.raises(UnsupportedError, match="without out= leaves elements undefined"):
            np.add(x, x, where=x > 0)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.slow
@pytest.mark.sizes(2, 3, 4, 6)
@pytest.mark.parametrize("check", [check_two, check_one, check_in_place])
def test_many_more(ranks, check):
    ranks(each_seed(range(100, 200), check))

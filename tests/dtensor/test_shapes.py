"""Other shapes equal NumPy's for any layouts; what can stay where it is stays."""

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, UnsupportedError

from ..mesh import arrays
from .support import draw, draw_mesh, each_seed, same


def check_views(group, rng):
    mesh = draw_mesh(rng, group)
    x, a = draw(rng, mesh, arrays.draw_shape(rng))
    with wire(group) as counted:
        order = rng.permutation(a.ndim).tolist()
        pairs = [
            (np.transpose(x, order), np.transpose(a, order)),
            (x.T, a.T),
            (x.transpose(*order), a.transpose(*order)),
            (np.flip(x), np.flip(a)),
            (np.expand_dims(x, 0), np.expand_dims(a, 0)),
            (np.expand_dims(x, (0, -1)), np.expand_dims(a, (0, -1))),
        ]
        if a.ndim:
            i, j = (int(n) for n in rng.integers(-a.ndim, a.ndim, 2))
            pairs += [
                (np.swapaxes(x, i, j), np.swapaxes(a, i, j)),
                (np.moveaxis(x, i, j), np.moveaxis(a, i, j)),
                (np.flip(x, i), np.flip(a, i)),
                *zip(np.array_split(x, 3, i), np.array_split(a, 3, i), strict=True),
                *zip(np.split(x, [1, 3], j), np.split(a, [1, 3], j), strict=True),
            ]
    assert counted.sent == 0
    for made, right in pairs:
        same(made, right)
    ones = [n for n in range(a.ndim) if a.shape[n] == 1]
    same(np.squeeze(x), np.squeeze(a))
    if ones:
        same(x.squeeze(ones[0]), a.squeeze(ones[0]))
    same(np.broadcast_to(x, (2, *a.shape)), np.broadcast_to(a, (2, *a.shape)))
    target = tuple(3 if n == 1 else n for n in a.shape)
    same(np.broadcast_to(x, target), np.broadcast_to(a, target))


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_views(ranks):
    ranks(each_seed(range(6), check_views))


def factors(rng, size):
    """Return a shape with as many elements."""
    shape, left = [], size
    while left > 1 and len(shape) < 3:
        n = int(rng.choice([d for d in range(1, left + 1) if left % d == 0]))
        shape.append(n)
        left //= n
    shape.append(left)
    return tuple(int(n) for n in rng.permutation(shape))


def check_reshape(group, rng):
    mesh = draw_mesh(rng, group)
    shape = arrays.draw_shape(rng) if rng.integers(4) else (12, 8)
    x, a = draw(rng, mesh, shape)
    target = factors(rng, a.size) if a.size else (0, 3)
    same(x.reshape(target), a.reshape(target))
    same(np.reshape(x, target), a.reshape(target))
    same(x.ravel(), a.ravel())
    same(np.ravel(x), a.ravel())
    if a.size == 1:
        same(x.reshape(()), a.reshape(()))
    elif a.size:
        same(x.reshape(-1, 1), a.reshape(-1, 1))


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_reshape(ranks):
    ranks(each_seed(range(10), check_reshape))


@pytest.mark.sizes(4)
def test_reshape_of_a_sharded_axis(ranks):
    """DTN-11."""

    def body(group):
        mesh = hp.init_device_mesh((4,), ("a",), group=group)
        a = np.arange(96).reshape(12, 8)
        x = hp.distribute(a, mesh, hp.Shard(1)).reshape(16, 6)
        assert x.full()[0].tolist() == [0, 1, 2, 3, 4, 5]
        same(x, a.reshape(16, 6))
        b = np.arange(6 * 256).reshape(6, 256)
        same(hp.distribute(b, mesh, hp.Shard(0)).reshape(-1), b.reshape(-1))
        heads = hp.distribute(np.arange(4 * 6 * 8).reshape(4, 6, 8), mesh, hp.Shard(0))
        with wire(group) as counted, hp.dtensor.comm_mode(forbid=True):
            split = heads.reshape(4, 6, 2, 4)
            joined = split.reshape(24, 8)
        again = joined.reshape(2, 2, 48)
        assert counted.sent == 0
        assert (split.placements, joined.placements) == ((hp.Shard(0),),) * 2
        same(again, np.arange(192).reshape(2, 2, 48))

    ranks(body)


def check_joining(group, rng):
    mesh = draw_mesh(rng, group)
    shape = arrays.draw_shape(rng) or (2,)
    axis = int(rng.integers(-len(shape), len(shape)))
    pairs = []
    for dtype in rng.choice(["float64", "int32"], rng.integers(1, 4)):
        lengths = list(shape)
        lengths[axis] = int(rng.integers(0, 5))
        pairs.append(draw(rng, mesh, tuple(lengths), str(dtype)))
    xs, arrays_ = [x for x, _ in pairs], [a for _, a in pairs]
    same(np.concatenate(xs, axis), np.concatenate(arrays_, axis))
    same(np.concatenate(xs, None), np.concatenate(arrays_, None))
    x, a = pairs[0]
    same(np.stack([x, x, x], axis), np.stack([a, a, a], axis))
    for by in (1, -3, 100):
        same(np.roll(x, by, axis), np.roll(a, by, axis))
    same(np.roll(x, 2), np.roll(a, 2))
    same(np.roll(x, (1, 2), (axis, 0)), np.roll(a, (1, 2), (axis, 0)))
    same(np.pad(x, 2), np.pad(a, 2))
    same(np.pad(x, (0, 3), constant_values=7), np.pad(a, (0, 3), constant_values=7))
    same(np.diff(x, axis=axis), np.diff(a, axis=axis))
    same(np.diff(x, 2, axis), np.diff(a, 2, axis))
    if a.ndim > 1:
        for k in (-1, 0, 2):
            same(np.tril(x, k), np.tril(a, k))
            same(np.triu(x, k), np.triu(a, k))


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_joining_rolling_padding(ranks):
    ranks(each_seed(range(4), check_joining))


def check_running(group, rng):
    mesh = draw_mesh(rng, group)
    shape = arrays.draw_shape(rng) or (3,)
    dtype = str(rng.choice(["float64", "int8", "int64"]))
    x, a = draw(rng, mesh, shape, dtype)
    axis = int(rng.integers(-len(shape), len(shape)))
    same(np.cumsum(x, axis), np.cumsum(a, axis))
    same(x.cumsum(), a.cumsum())
    same(np.cumprod(x, axis), np.cumprod(a, axis))
    same(x.cumsum(axis, dtype="float32"), a.cumsum(axis, dtype="float32"))
    for ufunc in (np.add, np.maximum, np.minimum, np.multiply):
        same(ufunc.accumulate(x, axis), ufunc.accumulate(a, axis))
    if 0 not in shape:
        for ufunc in (np.add, np.maximum, np.multiply):
            same(ufunc.reduce(x, axis), np.asarray(ufunc.reduce(a, axis)))


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_running_sums(ranks):
    ranks(each_seed(range(6), check_running))


@pytest.mark.sizes(2, 4)
def test_neighbours_send_what_is_rolled(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        a = np.arange(64.0).reshape(16, 4)
        x = hp.distribute(a, mesh, hp.Shard(0))
        with wire(group) as counted:
            rolled = np.roll(x, 1, 0)
        assert counted.sent == 4 * 8
        same(rolled, np.roll(a, 1, 0))
        with wire(group) as counted:
            inner = x[2:] - x[:-2]
        assert counted.sent <= 2 * 4 * 8
        same(inner, a[2:] - a[:-2])

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_what_is_refused(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        x = hp.dtensor.zeros((4, 3), mesh, hp.Shard(0))
        for wrong in (
            lambda: x.reshape(5, 2),
            lambda: x.reshape(-1, 5),
            lambda: x.transpose(0, 0),
            lambda: np.concatenate([x, x[:, :2]]),
            lambda: np.squeeze(x, 0),
            lambda: np.split(x, 3),
            lambda: np.pad(x, -1),
            lambda: np.tril(x[0]),
            lambda: np.broadcast_to(x, (3, 4)),
            lambda: np.moveaxis(x, (0, 0), (0, 1)),
            lambda: np.roll(x, 1, 2),
            lambda: np.cumsum(x, 2),
            lambda: np.diff(x, -1),
        ):
            with pytest.raises(ValueError, match=r"."):
                wrong()
        with pytest.raises(UnsupportedError, match="mode 'wrap'"):
            np.pad(x, 1, mode="wrap")
        with pytest.raises(UnsupportedError, match="order='F'"):
            np.reshape(x, (3, 4), order="F")
        with pytest.raises(UnsupportedError, match=r"hp\.distribute"):
            np.concatenate([x, np.zeros((1, 3))])
        with pytest.raises(ArgumentError, match="all must be arrays"):
            np.concatenate([x, 1])
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.slow
@pytest.mark.sizes(2, 3, 4, 6)
@pytest.mark.parametrize("check", [check_views, check_reshape, check_joining, check_running])
def test_many_more(ranks, check):
    ranks(each_seed(range(100, 200), check))

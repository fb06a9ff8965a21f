"""Reductions over any axes of any layouts equal NumPy's; uneven and empty parts too."""

import numpy as np
import pytest
from scipy import special

import hpcpar as hp
from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, UnsupportedError

from ..mesh import arrays
from .support import draw, draw_mesh, each_seed, same

SIMPLE = (np.sum, np.prod, np.max, np.min, np.any, np.all, np.mean, np.count_nonzero)


def draw_axis(rng, ndim):
    if rng.integers(3) == 0 or ndim == 0:
        return None
    axes = rng.permutation(ndim)[: rng.integers(1, ndim + 1)] - (ndim if rng.integers(2) else 0)
    return int(axes[0]) if len(axes) == 1 else tuple(int(a) for a in axes)


def over(shape, axis):
    axes = range(len(shape)) if axis is None else np.atleast_1d(axis)
    return int(np.prod([shape[a] for a in axes]))


def check_simple(group, rng):
    mesh = draw_mesh(rng, group)
    dtype = str(rng.choice(["float64", "float32", "int32", "int8", "complex128"]))
    x, a = draw(rng, mesh, arrays.draw_shape(rng), dtype)
    axis, keepdims = draw_axis(rng, a.ndim), bool(rng.integers(2))
    for function in SIMPLE:
        empty = over(a.shape, axis) == 0
        if empty and function in (np.max, np.min, np.mean):
            continue
        if dtype == "complex128" and function in (np.max, np.min):
            continue
        right = function(a, axis=axis, keepdims=keepdims)
        same(function(x, axis=axis, keepdims=keepdims), right, 1e-6)
    if dtype != "complex128" and over(a.shape, axis):
        same(np.var(x, axis=axis, keepdims=keepdims), np.var(a, axis=axis, keepdims=keepdims), 1e-5)
        same(x.std(axis), a.std(axis), 1e-5)
        if over(a.shape, axis) > 1:
            same(x.var(axis, ddof=1), a.var(axis, ddof=1), 1e-5)
    if dtype != "complex128" and over(a.shape, axis) and (axis is None or isinstance(axis, int)):
        same(np.argmax(x, axis), np.argmax(a, axis))
        same(x.argmin(axis, keepdims=keepdims), a.argmin(axis, keepdims=keepdims))


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_any_axes_of_any_layout(ranks):
    ranks(each_seed(range(10), check_simple))


def check_norms(group, rng):
    mesh = draw_mesh(rng, group)
    x, a = draw(rng, mesh, (5, 3), "float64", ("sum",))
    for order in (None, 1, 2, 3, np.inf, -np.inf, 0):
        same(np.linalg.norm(x, order, axis=0), np.linalg.norm(a, order, axis=0), 1e-12)
        same(np.linalg.norm(x, order, 1, True), np.linalg.norm(a, order, 1, True), 1e-12)
    same(np.linalg.norm(x), np.asarray(np.linalg.norm(a)), 1e-12)
    same(np.linalg.norm(x, "fro"), np.asarray(np.linalg.norm(a, "fro")), 1e-12)
    for axis in (0, 1, (0, 1), -1):
        same(hp.dtensor.logsumexp(x, axis), special.logsumexp(a, axis), 1e-12)
        same(hp.dtensor.softmax(x, axis), special.softmax(a, axis), 1e-12)
        same(hp.dtensor.log_softmax(x, axis), special.log_softmax(a, axis), 1e-12)


@pytest.mark.sizes(1, 2, 3, 4)
def test_norms_and_softmax(ranks):
    ranks(each_seed(range(4), check_norms))


@pytest.mark.sizes(1, 2, 3)
def test_means_of_uneven_parts(ranks):
    """DTN-3: not the mean of means, and no NaN of empty parts."""

    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        x = hp.distribute(np.arange(12.0).reshape(3, 4), mesh, hp.Shard(0))
        assert float(x.mean()) == 5.5
        assert abs(float(x.var()) - 11.916666666666666) < 1e-12
        assert x.mean(0).full().tolist() == [4, 5, 6, 7]
        one = hp.distribute(np.arange(4.0)[None], mesh, hp.Shard(0))
        assert float(one.mean()) == 1.5
        assert float(one.min()) == 0
        assert float(one.max()) == 3
        assert one.mean(0).full().tolist() == [0, 1, 2, 3]

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_softmax_of_large_numbers_over_a_sharded_axis(ranks):
    """DTN-9."""

    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        x = hp.distribute(np.array([1000.0, 0, 1000, 0]), mesh, hp.Shard(0))
        assert hp.dtensor.softmax(x).full().tolist() == [0.5, 0, 0.5, 0]
        logs = hp.dtensor.log_softmax(x).full()
        assert logs[0] == logs[2] == np.log(0.5)
        uneven = hp.distribute(np.array([[1000.0, 0, 1000], [0, -np.inf, 0]]), mesh, hp.Shard(1))
        assert np.abs(hp.dtensor.softmax(uneven).full().sum(1) - 1).max() < 1e-12
        nothing = hp.distribute(np.full((4,), -np.inf), mesh, hp.Shard(0))
        assert float(hp.dtensor.logsumexp(nothing)) == -np.inf
        with wire(group) as counted:
            hp.dtensor.softmax(x)
        assert counted.sent <= 2 * 2 * 8

    ranks(body)


@pytest.mark.sizes(1, 2, 3, 4)
def test_the_first_of_equal_ones_and_nan(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        for a in ([3, 7, 1, 7, 1, 7], [1, np.nan, 5, np.nan], [-np.inf] * 4, [np.inf, 1, np.nan]):
            a = np.array(a, float)
            for placement in (hp.Shard(0), hp.Shard(0, cuts=[len(a)] + [0] * group.size)):
                x = hp.distribute(a, mesh, placement)
                assert int(x.argmax()) == a.argmax()
                assert int(x.argmin()) == a.argmin()
                assert np.array_equal(float(x.max()), a.max(), equal_nan=True)
                assert np.array_equal(float(x.min()), a.min(), equal_nan=True)

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_what_is_refused(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        x = hp.dtensor.zeros((0, 3), mesh, hp.Shard(1))
        for name in ("max", "min", "argmax", "argmin"):
            with pytest.raises(ValueError, match="nothing to"):
                getattr(x, name)(0)
        for axis in (2, (0, 0), -3):
            with pytest.raises(ArgumentError, match="is wrong for an array of 2 axes"):
                x.sum(axis)
        with pytest.raises(UnsupportedError, match="where= has no rule"):
            np.sum(x, where=x > 0)
        with pytest.raises(UnsupportedError, match="out= has no rule"):
            np.sum(x, out=x)
        with pytest.raises(UnsupportedError, match="initial= has no rule"):
            np.max(x, initial=0)
        with pytest.raises(ArgumentError, match="only vectors' and 'fro'"):
            np.linalg.norm(x, "nuc")
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.slow
@pytest.mark.sizes(2, 3, 4, 6)
@pytest.mark.parametrize("check", [check_simple, check_norms])
def test_many_more(ranks, check):
    ranks(each_seed(range(100, 200), check))

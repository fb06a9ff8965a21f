"""Sorting, places and taking by numbers equal NumPy's for any layouts."""

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, UnsupportedError

from ..mesh import arrays
from .support import draw, draw_mesh, each_seed, same


def draw_values(rng, mesh, shape, dtype):
    """Return an array of many equal values, or few, laid out in any way."""
    found = arrays.draw_partition(rng, mesh.shape, shape, ())
    span = [2, 20, 10**6][rng.integers(3)]
    a = (rng.integers(-span, span, shape) / (2 if dtype == "float64" else 1)).astype(dtype)
    if dtype == "float64" and rng.integers(2):
        a = np.where(rng.integers(0, 5, shape) == 0, np.nan, a)
    layout = hp.mesh.Layout.of(mesh, found, a.dtype)
    return hp.distribute(a, mesh, layout.by_name), a


def check_sort(group, rng):
    mesh = draw_mesh(rng, group)
    dtype = str(rng.choice(["float64", "int32", "uint8", "bool", "complex128"]))
    shape = arrays.draw_shape(rng) or (7,)
    if rng.integers(2):
        shape = (int(rng.integers(0, 300)),)
    x, a = draw_values(rng, mesh, shape, dtype)
    axis = int(rng.integers(-len(shape), len(shape)))
    same(np.sort(x, axis), np.sort(a, axis))
    same(np.sort(x, None), np.sort(a, None))
    same(np.argsort(x, axis), np.argsort(a, axis, kind="stable"))
    same(x.argsort(None), np.argsort(a, None, kind="stable"))
    same(np.unique(x), np.unique(a))


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_sort(ranks):
    ranks(each_seed(range(8), check_sort))


def check_places(group, rng):
    mesh = draw_mesh(rng, group)
    x, a = draw(rng, mesh, arrays.draw_shape(rng) or (5,), "int32", ("sum",))
    for made, right in zip(np.nonzero(x), np.nonzero(a), strict=True):
        same(made, right)
    same(np.argwhere(x), np.argwhere(a))
    same(np.flatnonzero(x), np.flatnonzero(a))


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_places(ranks):
    ranks(each_seed(range(8), check_places))


def check_take(group, rng):
    mesh = draw_mesh(rng, group)
    shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 4)))
    x, a = draw(rng, mesh, shape)
    axis = None if rng.integers(4) == 0 else int(rng.integers(-len(shape), len(shape)))
    n = a.size if axis is None else shape[axis]
    i, b = draw(
        rng, mesh, tuple(int(k) for k in rng.integers(0, 5, rng.integers(0, 3))), "int64", ()
    )
    numbers, right = np.remainder(i, 2 * n) - n, b % (2 * n) - n
    same(np.take(x, numbers, axis), np.take(a, right, axis))
    same(x.take(n - 1, axis), np.take(a, n - 1, axis))
    if axis == 0:
        same(x[numbers], a[right])


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_take(ranks):
    ranks(each_seed(range(8), check_take))


@pytest.mark.sizes(2, 4)
def test_many_equal_values_are_shared_out(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        a = np.repeat([3.0, 1.0, 2.0], [400, 100, 524])
        x = hp.distribute(a, mesh, hp.Shard(0))
        made = np.sort(x)
        same(made, np.sort(a))
        lengths = group.all_gather(len(made.to_local()))
        assert lengths.max() <= 1024 // group.size + 1
        with wire(group) as counted:
            np.sort(hp.distribute(np.arange(1024.0), mesh, hp.Shard(0)))
        assert counted.sent <= 8 * 1024

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_what_is_refused(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        x = hp.distribute(np.arange(6), mesh, hp.Shard(0))
        with pytest.raises(IndexError, match="index 6 is out of bounds"):
            np.take(x, hp.distribute(np.array([0, 0, 6]), mesh, hp.Shard(0)))
        with pytest.raises(ArgumentError, match="must be integers"):
            np.take(x, x * 1.5)
        with pytest.raises(UnsupportedError, match=r"hp\.distribute"):
            np.take(x, np.array([0, 1]))
        with pytest.raises(UnsupportedError, match="return_index= has no rule"):
            np.unique(x, return_index=True)
        with pytest.raises(UnsupportedError, match="other than 'raise'"):
            np.take(x, x, mode="clip")
        with pytest.raises(ArgumentError, match="axis 1 is out of range"):
            np.sort(x, 1)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.slow
@pytest.mark.sizes(2, 3, 4, 6)
@pytest.mark.parametrize("check", [check_sort, check_places, check_take])
def test_many_more(ranks, check):
    ranks(each_seed(range(100, 200), check))

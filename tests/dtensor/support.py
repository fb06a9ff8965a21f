"""Distributed arrays drawn at random, beside the whole arrays that they stand for."""

import numpy as np

import hpcpar as hp
from hpcpar.mesh.layout import Layout

from ..mesh import arrays

NAMES = ("a", "b", "c")


def draw_mesh(rng, group):
    grid = arrays.draw_grid(rng, group.size)
    return hp.init_device_mesh(grid, NAMES[: len(grid)], group=group)


def draw(rng, mesh, shape, dtype="float64", partial=("sum", "mean", "max", "prod", "linear")):
    """Return an array that lies in any way, and the whole of it."""
    kinds = partial if np.dtype(dtype).kind == "f" else tuple({*partial} & {"sum", "prod", "max"})
    kinds = kinds if np.dtype(dtype).kind != "c" else tuple({*kinds} & {"sum", "prod"})
    found = arrays.draw_partition(rng, mesh.shape, shape, sorted(kinds))
    parts, whole = arrays.contributions(rng, found, dtype)
    local = arrays.local_part(parts, found, mesh.coordinate)
    return hp.DTensor(local, Layout.of(mesh, found, np.dtype(dtype))), np.array(whole)


def same(x, right, rtol=0.0):
    """Compare a distributed array with NumPy's, dtype and shape included."""
    right = np.asarray(right)
    assert isinstance(x, hp.DTensor)
    assert (x.shape, x.dtype) == (right.shape, right.dtype)
    assert x.to_local().shape == x.layout.local_shape
    got = x.full()
    if rtol:
        assert np.allclose(got, right, rtol=rtol, atol=rtol, equal_nan=True)
    else:
        assert np.array_equal(got, right, equal_nan=right.dtype.kind in "fc")


def each_seed(seeds, check):
    """Return a body that runs ``check(group, rng)`` with every seed, which a failure names."""
    return arrays.each_seed(seeds, lambda group, seed: check(group, np.random.default_rng(seed)))

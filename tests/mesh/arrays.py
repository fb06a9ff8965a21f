"""Arrays laid out on meshes for tests: drawn, cut, put together again; all by NumPy alone."""

import math
from functools import reduce

import numpy as np

from hpcpar.mesh.boxes import within
from hpcpar.mesh.partition import make_partition, places
from hpcpar.mesh.placement import Partial, Replicate, Shard

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


def grids_of(size):
    """Return all grids of up to three axes with as many places."""
    found = {(size,)}
    for a in range(1, size + 1):
        if size % a == 0:
            found.add((a, size // a))
            found |= {(a, b, size // a // b) for b in range(1, size + 1) if size // a % b == 0}
    return sorted(found)


def draw_grid(rng, size):
    grids = grids_of(size)
    return grids[rng.integers(len(grids))]


def draw_shape(rng, most=3):
    ndim = rng.integers(0, most + 1)
    return tuple(int(rng.choice([0, 1, 2, 3, 5, 8, 12])) for _ in range(ndim))


def draw_cuts(rng, length, parts):
    kind = rng.integers(6)
    if kind < 3:
        return None
    if kind == 3:
        return "balanced"
    inner = sorted(int(n) for n in rng.integers(0, length + 1, parts - 1))
    cuts = (0, *inner, length)
    return cuts if kind == 4 else cuts[::-1]


def draw_partition(rng, grid, shape, partial=("sum", "mean", "max", "prod", "linear")):
    """Return any partition of this shape: splits in any order, cuts of any kind."""
    op = rng.choice(partial) if partial else None
    placements = [draw_placement(rng, len(shape), op) for _ in grid]
    order = [int(m) for m in rng.permutation(len(grid))]
    last = {placements[m].axis: m for m in order if isinstance(placements[m], Shard)}
    for axis, m in last.items():
        split = [n for n in order if placements[n] == Shard(axis)]
        parts = math.prod(grid[n] for n in split)
        placements[m] = Shard(axis, draw_cuts(rng, shape[axis], parts))
    return make_partition(grid, shape, placements, order)


def draw_placement(rng, ndim, op):
    kind = rng.integers(5)
    if kind == 0 or (kind < 4 and ndim == 0):
        return Replicate()
    if kind == 4:
        chosen = rng.choice(["sum", "mean"]) if op == "linear" else op
        return Partial(str(chosen)) if op else Replicate()
    return Shard(int(rng.integers(ndim)))


def contributions(rng, partition, dtype):
    """Return, by places along the partial axes, arrays that reduce to a whole; and the whole.

    Their numbers are such that sums, means and products are exact.
    """
    axes = [m for m, _ in partition.partial]
    sizes = [partition.grid[m] for m in axes]
    drawn = rng.integers(-2, 3, (*sizes, *partition.shape))
    scale = math.prod(
        n for (_, op), n in zip(partition.partial, sizes, strict=True) if op == "mean"
    )
    parts = (drawn * scale).astype(dtype)
    whole = parts
    for _, op in partition.partial:
        n = whole.shape[0]
        whole = reduce(UFUNCS[op], list(whole)) if n else whole
        if op == "mean":
            whole = (whole / n).astype(dtype)
    return parts, whole


def local_part(parts, partition, place):
    """Return what a place holds of the contributions."""
    at = tuple(place[m] for m, _ in partition.partial)
    whole = tuple((0, n) for n in partition.shape)
    return parts[(*at, *within(partition.box(place), whole))].copy()


def put_together(locals_, partition):
    """Return the whole array from what all places hold, which must agree where they replicate."""
    axes = [m for m, _ in partition.partial]
    sizes = [partition.grid[m] for m in axes]
    outer = tuple((0, n) for n in partition.shape)
    dtype = locals_[0].dtype
    parts = np.zeros((*sizes, *partition.shape), dtype)
    seen = np.zeros((*sizes, *partition.shape), bool)
    for place, local in zip(places(partition.grid), locals_, strict=True):
        box = partition.box(place)
        assert local.shape == partition.local_shape(place)
        assert local.dtype == dtype
        at = tuple(place[m] for m in axes)
        where = (*at, *within(box, outer))
        again = seen[where]
        assert np.array_equal(parts[where][again], local[again])
        parts[where] = local
        seen[where] = True
    assert seen.all()
    whole = parts
    for _, op in partition.partial:
        n = whole.shape[0]
        whole = reduce(UFUNCS[op], list(whole))
        if op == "mean":
            whole = (whole / n).astype(dtype)
    return whole


def each_seed(seeds, check):
    """Return a body that runs ``check(group, seed)`` with every seed, which a failure names."""

    def body(group):
        for seed in seeds:
            try:
                check(group, seed)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise

    return body

"""From any layout to any other: the values are NumPy's, the bytes those of the formula."""

import tracemalloc

import numpy as np
import pytest

from hpcpar.debug import wire
from hpcpar.errors import ArgumentError
from hpcpar.mesh import DeviceMesh, init_device_mesh
from hpcpar.mesh.boxes import within
from hpcpar.mesh.costs import Costs
from hpcpar.mesh.layout import Layout
from hpcpar.mesh.placement import Partial, Replicate, Shard
from hpcpar.mesh.redistribute import redistribute

from . import arrays

DTYPES = ("float64", "float32", "int32", "complex128")
NAMES = ("a", "b", "c")
ONLY_BYTES = Costs(latency=1e-15, per_byte=1e-9, copy=1e-18)


def check_case(group, seed):
    rng = np.random.default_rng(seed)
    grid, shape = arrays.draw_grid(rng, group.size), arrays.draw_shape(rng)
    src, dst = (arrays.draw_partition(rng, grid, shape) for _ in range(2))
    has_mean = any(op == "mean" for p in (src, dst) for _, op in p.partial)
    has_max = any(op == "max" for p in (src, dst) for _, op in p.partial)
    dtype = str(rng.choice(DTYPES[:2] if has_mean else DTYPES[:3] if has_max else DTYPES))
    parts, whole = arrays.contributions(rng, src, dtype)
    mesh = init_device_mesh(grid, NAMES[: len(grid)], group=group)
    x = arrays.local_part(parts, src, mesh.coordinate)
    before = x.copy()
    ends = (Layout.of(mesh, p, np.dtype(dtype)) for p in (src, dst))
    reduces = src.partial != dst.partial  # what is held between the steps may be more
    most = None if seed % 3 or reduces else 4096
    y = redistribute(x, *ends, max_nbytes=most)
    assert np.array_equal(x, before)
    assert src == dst or not np.may_share_memory(x, y)
    got = arrays.put_together(group.all_gather_object(y), dst)
    if has_mean:
        assert np.allclose(got, whole, rtol=1e-6)
    else:
        assert np.array_equal(got, whole)


@pytest.mark.sizes(1, 2, 3, 4, 6, 8)
def test_any_pair_of_layouts(ranks):
    ranks(arrays.each_seed(range(60), check_case))


@pytest.mark.slow
@pytest.mark.sizes(2, 3, 4, 6, 8)
def test_any_pair_of_layouts_many(ranks):
    ranks(arrays.each_seed(range(1000, 1600), check_case))


# -- between meshes, waiting later, little memory -------------------------------------------------


def check_meshes(group, seed):
    rng = np.random.default_rng(seed)
    shape = arrays.draw_shape(rng)
    layouts = []
    for _ in range(2):
        size = int(rng.integers(1, group.size + 1))
        grid = arrays.draw_grid(rng, size)
        chosen = rng.permutation(group.size)[:size].reshape(grid)
        mesh = DeviceMesh(chosen, NAMES[: len(grid)], group=group)
        made = arrays.draw_partition(rng, grid, shape, ("sum", "max", "prod"))
        layouts.append(Layout.of(mesh, made, np.dtype("float64")))
    src, dst = layouts
    parts, whole = arrays.contributions(rng, src.partition, "float64")
    place = src.mesh.coordinate
    x = None if place is None else arrays.local_part(parts, src.partition, place)
    y = None
    if place is not None or dst.mesh.coordinate is not None:
        y = redistribute(x, src, dst, max_nbytes=None if seed % 4 else 4096)
    assert (y is None) == (dst.mesh.coordinate is None)
    found = group.all_gather_object(y)
    held = [found[rank] for rank in dst.mesh.ranks.reshape(-1)]
    assert np.array_equal(arrays.put_together(held, dst.partition), whole)


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_any_pair_of_meshes(ranks):
    ranks(arrays.each_seed(range(60), check_meshes))


@pytest.mark.sizes(2, 4)
def test_several_are_begun_and_waited_for(ranks):
    def body(group):
        mesh = init_device_mesh((2, group.size // 2), ("a", "b"), group=group)
        whole = np.arange(24.0).reshape(4, 6)
        ends = [[Shard(0), Shard(1)], [Shard(1), Shard(0)], [Replicate(), Replicate()]]
        layouts = [Layout(mesh, p, whole.shape, whole.dtype) for p in ends]
        x = whole[within(layouts[0].box, ((0, 4), (0, 6)))]
        works = [redistribute(x, layouts[0], dst, async_op=True) for dst in layouts]
        for work, dst in zip(works, layouts, strict=True):
            assert np.array_equal(work.wait(), whole[within(dst.box, ((0, 4), (0, 6)))])
            assert work.done()

    ranks(body)


@pytest.mark.threads_only
@pytest.mark.sizes(2)
def test_max_nbytes_bounds_the_memory_on_the_way(ranks):
    shape, most = (512, 1024), 1 << 16

    def body(group):
        mesh = init_device_mesh((2,), ("a",), group=group)
        rows, columns = (Layout(mesh, Shard(axis), shape, "float64") for axis in range(2))
        x = np.ones(rows.local_shape)
        redistribute(x, rows, columns, max_nbytes=most)  # plans stay
        group.barrier()
        if group.rank == 0:
            tracemalloc.start()
        group.barrier()
        y = redistribute(x, rows, columns, max_nbytes=most)
        group.barrier()
        if group.rank == 0:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 2 * (y.nbytes + most) + (1 << 18)  # of both ranks
        group.barrier()

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_what_is_refused(ranks):
    def body(group):
        mesh = init_device_mesh((group.size,), ("a",), group=group)
        rows = Layout(mesh, Shard(0), (4, 4), "float32")
        x = np.ones(rows.local_shape, np.float32)
        with pytest.raises(ArgumentError, match="one shape and dtype"):
            redistribute(x, rows, rows.replace(shape=(4, 5)))
        with pytest.raises(ArgumentError, match="one shape and dtype"):
            redistribute(x, rows, rows.replace(dtype="float64"))
        with pytest.raises(ArgumentError, match="max_nbytes 3 must be an int of at least"):
            redistribute(x, rows, rows.replace(Shard(1)), max_nbytes=3)
        assert redistribute(x, rows, rows) is x
        pending = Layout(mesh, Partial(), (64, 64), "float64")
        if group.size > 2:
            with pytest.raises(ArgumentError, match="max_nbytes must be at least"):
                turned = pending.replace(Shard(0, cuts=(64,) + (0,) * group.size))
                redistribute(np.ones((64, 64)), pending, turned, max_nbytes=64)
        assert group.all_reduce(1) == group.size

    ranks(body)


# -- bytes: the table of one mesh axis, and the best of all ways over two ------------------------

TABLE = [  # from, to, bytes that all ranks send together, of n bytes in k parts
    (Shard(0), Replicate(), lambda n, k: n * (k - 1)),
    (Shard(0), Shard(1), lambda n, k: n * (k - 1) // k),
    (Replicate(), Shard(1), lambda n, k: 0),
    (Replicate(), Partial(), lambda n, k: 0),
    (Partial(), Replicate(), lambda n, k: 2 * n * (k - 1)),
    (Partial(), Shard(0), lambda n, k: n * (k - 1)),
    (Shard(1), Partial(), lambda n, k: 0),
]


def sent_by_all(group, src, dst):
    """Return what all ranks together send, and the most that one of them does."""
    x = np.ones(src.local_shape, src.dtype)
    with wire(group) as counted:
        redistribute(x, src, dst)
    sent = group.all_gather(counted.sent)
    return int(sent.sum()), int(sent.max())


@pytest.mark.sizes(1, 2, 3, 4)
@pytest.mark.parametrize(("src", "dst", "most"), TABLE, ids=lambda p: repr(p)[:12])
def test_bytes_of_one_mesh_axis(ranks, src, dst, most):
    def body(group):
        mesh = init_device_mesh((group.size,), ("a",), group=group)
        shape = (group.size * 6, group.size * 4)
        ends = (Layout(mesh, p, shape, "float32") for p in (src, dst))
        assert sent_by_all(group, *ends)[0] <= most(4 * shape[0] * shape[1], group.size)

    ranks(body)


def bytes_of(src, dst, held, k):
    """Return what a rank sends in one transition, and what it holds then."""
    if src == dst:
        return 0, held
    match (src, dst):
        case (Shard(), Replicate()):
            return held * (k - 1), held * k
        case (Shard(), Shard()):
            return held * (k - 1) / k, held
        case (Replicate(), Shard()):
            return 0, held / k
        case (Replicate(), Partial()):
            return 0, held
        case (Partial(), Replicate()):
            return 2 * held * (k - 1) / k, held
        case (Partial(), Shard()):
            return held * (k - 1) / k, held / k
    return float("inf"), held


def fewest_bytes(grid, src, dst, nbytes):
    """Return the fewest bytes of all ways that change one mesh axis at a time."""
    kinds = (Replicate(), Shard(0), Shard(1), Partial())
    held = nbytes
    for p, k in zip(src, grid, strict=True):
        held = held / k if isinstance(p, Shard) else held
    best, todo = {src: (0.0, held)}, [src]
    while todo:
        here = todo.pop()
        spent, held = best[here]
        for m, k in enumerate(grid):
            for kind in kinds:
                if m == 0 and isinstance(here[1], Shard) and here[1] in (here[0], kind):
                    continue  # the first mesh axis splits first
                there = (*here[:m], kind, *here[m + 1 :])
                more, holds = bytes_of(here[m], kind, held, k)
                if spent + more < best.get(there, (float("inf"),))[0]:
                    best[there] = spent + more, holds
                    todo.append(there)
    return best[dst][0]


@pytest.mark.sizes(4, 6)
def test_no_way_over_two_mesh_axes_is_shorter(ranks):
    kinds = (Replicate(), Shard(0), Shard(1), Partial())
    ends = [(a, b) for a in kinds for b in kinds]

    def body(group):
        grid = (2, group.size // 2)
        mesh = init_device_mesh(grid, ("a", "b"), group=group).with_costs(ONLY_BYTES, ONLY_BYTES)
        shape = (24, 48)
        for src in ends:
            for dst in ends:
                layouts = (Layout(mesh, p, shape, "float64") for p in (src, dst))
                least = fewest_bytes(grid, src, dst, 8 * shape[0] * shape[1])
                assert sent_by_all(group, *layouts)[1] <= least + 1e-9, (src, dst)

    ranks(body)

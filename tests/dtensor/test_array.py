"""Making distributed arrays, moving them, getting them back; what has no rule."""

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, MismatchError, UnsupportedError
from hpcpar.mesh.layout import Layout

from ..mesh import arrays
from .support import NAMES, draw, draw_mesh, each_seed, same


def check_making(group, rng):
    mesh = draw_mesh(rng, group)
    shape = arrays.draw_shape(rng)
    a = rng.integers(0, 9, shape).astype(str(rng.choice(["float64", "int16", "bool"])))
    found = arrays.draw_partition(rng, mesh.shape, shape, ())
    placements = Layout.of(mesh, found, a.dtype).by_name
    with wire(group) as counted:
        x = hp.distribute(a, mesh, placements)
    assert counted.sent == 0
    assert x.layout.partition == found
    same(x, a)
    assert not np.may_share_memory(x.to_local(), a)
    root = int(rng.integers(group.size))
    y = hp.distribute(a if group.rank == root else None, mesh, placements, root=root)
    same(y, a)
    assert y.layout is x.layout
    joined = hp.dtensor.from_local(x.to_local(), mesh, placements_without_cuts(x))
    if all(found.rises(axis) for axis in range(a.ndim)):
        same(joined, a)
    kept = hp.DTensor(x.to_local(), x.layout)
    same(kept, a)
    for (box, part), right in zip(x.shards(), [x.to_local()], strict=True):
        assert box == x.layout.box
        assert part is right


def placements_without_cuts(x):
    return {
        name: hp.Shard(p.axis) if isinstance(p, hp.Shard) else p
        for name, p in x.layout.by_name.items()
    }


@pytest.mark.sizes(1, 2, 3, 4)
def test_making_and_getting_back(ranks):
    ranks(each_seed(range(20), check_making))


def check_moving(group, rng):
    mesh = draw_mesh(rng, group)
    x, a = draw(rng, mesh, arrays.draw_shape(rng))
    other = arrays.draw_partition(rng, mesh.shape, a.shape, ("sum",))
    wanted = Layout.of(mesh, other, a.dtype)
    moved = x.redistribute(wanted.by_name)
    assert moved.layout is wanted
    same(moved, a)
    work = x.redistribute(wanted.by_name, async_op=True, max_nbytes=None)
    same(work.wait(), a)
    assert x.redistribute() is x
    elsewhere = hp.init_device_mesh((group.size,), ("line",), group=group)
    same(x.redistribute(hp.Replicate(), mesh=elsewhere), a)


@pytest.mark.sizes(1, 2, 3, 4)
def test_moving(ranks):
    ranks(each_seed(range(15), check_moving))


@pytest.mark.sizes(4)
def test_the_rule_of_nested_and_empty_parts(ranks):
    """DTN-5."""

    def body(group):
        square = hp.init_device_mesh((2, 2), ("a", "b"), group=group)
        a = np.arange(15).reshape(5, 3)
        x = hp.distribute(a, square, [hp.Shard(0), hp.Shard(0)])
        assert group.all_gather(len(x.to_local())).tolist() == [2, 1, 1, 1]
        same(x.redistribute([hp.Replicate()] * 2), a)
        line = hp.init_device_mesh((4,), ("a",), group=group)
        for shape in ((5, 10), (2, 3)):
            a = np.arange(np.prod(shape)).reshape(shape)
            x = hp.distribute(a, line, hp.Shard(0))
            for placement in (hp.Replicate(), hp.Shard(1), hp.Replicate()):
                x = x.redistribute(placement)
                same(x, a)

    ranks(body)


@pytest.mark.sizes(1, 2, 3, 4)
def test_numbers(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        for placement in (hp.Shard(0), hp.Shard(1, "balanced"), hp.Replicate()):
            same(hp.dtensor.zeros((3, 5), mesh, placement), np.zeros((3, 5)))
            same(hp.dtensor.ones((3, 5), mesh, placement, dtype="int8"), np.ones((3, 5), np.int8))
            same(hp.dtensor.full((3, 5), 1.5, mesh, placement), np.full((3, 5), 1.5))
            x = hp.dtensor.empty((3, 5), mesh, placement, dtype="float32")
            assert (x.shape, x.dtype, x.size, x.nbytes) == ((3, 5), np.float32, 15, 60)
            assert (x.ndim, x.itemsize, x.mesh) == (2, 4, mesh)

    ranks(body)


def check_random(group, rng):
    mesh = draw_mesh(rng, group)
    shape = arrays.draw_shape(rng)
    found = arrays.draw_partition(rng, mesh.shape, shape, ())
    placements = Layout.of(mesh, found, np.dtype("float32")).by_name
    key = hp.random.Key(3).child(int(rng.integers(100)))
    for name in ("uniform", "normal"):
        for dtype in ("float32", "float64"):
            x = getattr(hp.dtensor.random, name)(key, shape, mesh, placements, dtype=dtype)
            same(x, getattr(hp.random, name)(key, shape, dtype))


@pytest.mark.sizes(1, 2, 3, 4)
def test_random_numbers_have_the_same_bits_on_any_mesh(ranks):
    ranks(each_seed(range(15), check_random))


@pytest.mark.sizes(2, 3)
def test_a_rank_outside_the_mesh_has_a_handle(ranks):
    def body(group):
        some = hp.mesh.DeviceMesh([1], NAMES[:1], group=group)
        x = hp.distribute(np.arange(4), some, hp.Shard(0))
        everyone = hp.init_device_mesh((group.size,), ("all",), group=group)
        same(x.redistribute(hp.Shard(0), mesh=everyone), np.arange(4))
        if group.rank != 1:
            assert x.shards() == []
            with pytest.raises(UnsupportedError, match="this rank is not in"):
                np.clip(x, 0, 1)
            with pytest.raises(UnsupportedError, match="this rank is not in"):
                x[0]

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_what_has_no_rule_is_an_error_or_gathered(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        a = np.array([[4.0, 1], [1, 3]])
        x = hp.distribute(a, mesh, hp.Shard(0))
        with pytest.raises(UnsupportedError, match=r"det: no rule for Layout"):
            np.linalg.det(x)
        with pytest.raises(UnsupportedError, match=r"add\.outer: no rule"):
            np.add.outer(x, x)
        with hp.dtensor.fallback("gather"), hp.dtensor.comm_mode() as moved:
            same(np.linalg.det(x), np.linalg.det(a), 1e-12)
            values, vectors = np.linalg.eigh(x)
            same(values, np.linalg.eigh(a)[0], 1e-12)
            assert vectors.placements == (hp.Replicate(),)
            same(np.add.outer(x, x), np.add.outer(a, a))
            with hp.dtensor.fallback("error"), pytest.raises(UnsupportedError, match="no rule"):
                np.linalg.det(x)
        assert len(moved) == (4 if group.size > 1 else len(moved))
        refused = pytest.raises(ArgumentError, match="must be 'error' or 'gather'")
        with refused, hp.dtensor.fallback("local"):
            pass

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_what_is_known_without_data(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        a = np.arange(6.0).reshape(2, 3)
        x = hp.distribute(a, mesh, hp.Shard(1))
        assert (np.shape(x), np.ndim(x), np.size(x), np.size(x, 1)) == ((2, 3), 2, 6, 3)
        assert np.result_type(x, np.float32) == np.float64
        assert np.isrealobj(x)
        assert not np.iscomplexobj(x)
        assert np.array_equal(x, x + 0)
        assert not np.array_equal(x, x + 1)
        assert not np.array_equal(x, x[:, :2])
        assert np.allclose(x, x + 1e-12)
        nan = x / 0 * 0
        assert np.array_equal(nan, nan, equal_nan=True)
        assert not np.array_equal(nan, nan)
        same(np.copy(x), a)
        assert "Layout((2, 3), float64, a: Shard(1))" in repr(x)
        with pytest.raises(TypeError, match="unhashable"):
            hash(x)

    with np.errstate(all="ignore"):
        ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_what_is_refused(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        size = group.size
        x = hp.distribute(np.arange(6), mesh, hp.Shard(0))
        with pytest.raises(UnsupportedError, match=r"asarray of Layout.*Use \.full\(\)"):
            np.asarray(x)
        assert np.asarray(x.redistribute(hp.Replicate())).tolist() == list(range(6))
        with pytest.raises(ArgumentError, match="local must be an array of shape"):
            hp.DTensor(np.zeros(99), x.layout)
        with pytest.raises(ArgumentError, match="local must be an array of shape"):
            hp.DTensor([1, 2], x.layout)
        with pytest.raises(ArgumentError, match="no parts to reduce"):
            hp.distribute(np.arange(6), mesh, hp.Partial())
        with pytest.raises(UnsupportedError, match="dtype object"):
            hp.distribute(np.array([None]), mesh, hp.Shard(0))
        with pytest.raises(UnsupportedError, match="is not reduced"):
            x.sum().shards()
        for placements in ([hp.Shard(0)] * 2, [hp.Shard(1)], {"b": hp.Shard(0)}, [0]):
            with pytest.raises(ArgumentError, match="placements"):
                hp.distribute(np.arange(6), mesh, placements)
        with pytest.raises(ArgumentError, match=f"must be {size + 1} boundaries"):
            hp.distribute(np.arange(6), mesh, hp.Shard(0, cuts=(0,) * (size + 1) + (6,)))
        for cuts in ((0, 3, 2), (1, 2), "half", (0,), (0, 1.5)):
            with pytest.raises(ArgumentError, match="Shard: cuts"):
                hp.Shard(0, cuts)
        with pytest.raises(ArgumentError, match=r"Shard: axis 1\.5"):
            hp.Shard(1.5)
        with pytest.raises(ArgumentError, match="op 'median' must be one of"):
            hp.Partial("median")
        if size > 1:
            mine = np.zeros((2, 1 + group.rank))
            with pytest.raises(MismatchError, match="do not fit along axis 1"):
                hp.dtensor.from_local(mine, mesh, hp.Shard(0))
            with pytest.raises(MismatchError, match="the parts are"):
                hp.dtensor.from_local(np.zeros((2,) * (1 + group.rank % 2)), mesh, hp.Shard(0))
        assert group.all_reduce(1) == group.size

    ranks(body)

"""Indices: views without traffic that write through, masks, and what is refused."""

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, UnsupportedError

from ..mesh import arrays
from .support import draw, draw_mesh, each_seed, same


def draw_index(rng, shape):
    """Return a basic index that fits the shape."""
    index = []
    for n in shape:
        kind = rng.integers(5)
        if kind == 0 and n:
            index.append(int(rng.integers(-n, n)))
        elif kind == 1:
            index.append(slice(None))
        else:
            ends = [
                None if rng.integers(4) == 0 else int(rng.integers(-n - 2, n + 3)) for _ in "ab"
            ]
            step = int(rng.choice([1, 1, 2, 3, -1, -2]))
            index.append(slice(*ends, None if step == 1 and rng.integers(2) else step))
    kept = index[: rng.integers(len(index) + 1)]
    if rng.integers(3) == 0:
        kept.insert(int(rng.integers(len(kept) + 1)), None)
    if rng.integers(3) == 0 and len(kept) <= len(index):
        at = int(rng.integers(len(kept) + 1))
        front, back = kept[:at], index[len(index) - sum(e is not None for e in kept[at:]) :]
        kept = [*front, ..., *(back if sum(e is not None for e in kept[at:]) else ())]
    return tuple(kept) if len(kept) != 1 or rng.integers(2) else kept[0]


def check_views(group, rng):
    mesh = draw_mesh(rng, group)
    x, a = draw(rng, mesh, arrays.draw_shape(rng))
    for _ in range(3):
        index = draw_index(rng, a.shape)
        with wire(group) as counted:
            view = x[index]
        assert counted.sent == counted.received == 0
        right = a[index]
        same(view, right)
        again = draw_index(rng, right.shape)
        same(view[again], right[again])


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_views_are_numpys_without_traffic(ranks):
    ranks(each_seed(range(16), check_views))


def check_writes(group, rng):
    mesh = draw_mesh(rng, group)
    x, a = draw(rng, mesh, arrays.draw_shape(rng), "float64", ())
    for turn in range(3):
        index = draw_index(rng, a.shape)
        kind = rng.integers(3)
        shape = np.shape(a[index])
        if kind == 0:
            x[index] = turn + 0.5
            a[index] = turn + 0.5
        elif kind == 1:
            y, b = draw(rng, mesh, shape[rng.integers(len(shape) + 1) :])
            x[index] = y
            a[index] = b
        elif shape:
            view, right = x[index], a[index]
            again = draw_index(rng, shape)
            view[again] = turn
            right[again] = turn
            view += 1
            right += 1
        same(x, a)


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_writes_go_through(ranks):
    ranks(each_seed(range(16), check_writes))


def check_masks(group, rng):
    mesh = draw_mesh(rng, group)
    shape = arrays.draw_shape(rng) or (3,)
    x, a = draw(rng, mesh, shape, "float64", ("sum", "max"))
    k = int(rng.integers(1, len(shape) + 1))
    m, chosen = draw(rng, mesh, shape[:k], "float64", ())
    same(x[m > 0], a[chosen > 0])
    x = x.reduced()
    x[m > 0] = -7
    a[chosen > 0] = -7
    same(x, a)
    inner = (slice(1, -1),) * len(shape)
    x[inner][x[inner] < 0] = 1
    a[inner][a[inner] < 0] = 1
    same(x, a)


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_masks(ranks):
    ranks(each_seed(range(10), check_masks))


@pytest.mark.sizes(2)
def test_a_write_to_a_slice_shows(ranks):
    """DTN-7."""

    def body(group):
        mesh = hp.init_device_mesh((2,), ("a",), group=group)
        x = hp.dtensor.zeros((4, 2), mesh, hp.Shard(0))
        x[:2] += 7
        x[1, 0] = 5
        x[2:].fill(3)
        assert x.full().tolist() == [[7, 7], [5, 7], [3, 3], [3, 3]]
        sums = hp.DTensor(np.ones((4, 2)), hp.mesh.Layout(mesh, hp.Partial(), (4, 2), "float64"))
        x += sums
        assert x.full().tolist() == [[9, 9], [7, 9], [5, 5], [5, 5]]
        with pytest.raises(UnsupportedError, match="it is not reduced"):
            sums[0] = 1

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_an_element_is_a_number_when_it_is_asked_for(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        values = np.array([1.5, -0.0, np.nan, np.inf, -np.inf])
        x = hp.distribute(values, mesh, hp.Shard(0))
        got = [float(x[i]) for i in range(-5, 5)]
        assert np.array_equal(got, [*values, *values], equal_nan=True)
        assert np.signbit(float(x[1]))
        assert x[3].item() == np.inf
        assert bool(x[0] > 1)
        assert int(x[0]) == 1
        assert complex(hp.distribute(np.array([1j, 2]), mesh, hp.Shard(0))[0]) == 1j
        counts = hp.distribute(np.arange(5), mesh, hp.Shard(0))
        assert [10, 20, 30][counts[1]] == 20
        assert [float(each) for each in counts] == [0, 1, 2, 3, 4]
        assert len(x) == 5
        with wire(group) as counted:
            x[0].item()
        assert (counted.sent > 0) == (group.size > 1)
        with pytest.raises(ValueError, match="no single element"):
            bool(x > 1)

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_what_is_refused(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        x = hp.dtensor.zeros((4, 3), mesh, hp.Shard(0))
        for index in (4, -5, (0, 3)):
            with pytest.raises(IndexError, match="out of bounds"):
                x[index]
        with pytest.raises(IndexError, match="too many indices"):
            x[0, 0, 0]
        with pytest.raises(IndexError, match="single ellipsis"):
            x[..., ...]
        for index in ("a", 1.5, [0, 1], True):
            with pytest.raises(UnsupportedError, match="integers, slices"):
                x[index]
        with pytest.raises(IndexError, match="a mask of shape"):
            x[hp.dtensor.zeros((3,), mesh, hp.Shard(0), dtype=bool)]
        with pytest.raises(UnsupportedError, match=r"hp\.distribute"):
            x[np.zeros((4, 3), bool)]
        with pytest.raises(UnsupportedError, match=r"hp\.distribute"):
            x[0] = np.ones(3)
        with pytest.raises(ArgumentError, match=r"shape \(4,\) does not fit into \(3,\)"):
            x[0] = hp.dtensor.zeros((4,), mesh, hp.Shard(0))
        with pytest.raises(UnsupportedError, match="a mask takes one number"):
            x[x == 0] = hp.dtensor.zeros((12,), mesh, hp.Shard(0))
        with hp.dtensor.implicit_replication():
            x[0] = np.ones(3)
            x[np.arange(12).reshape(4, 3) > 10] = 5
        assert x.full().tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 5]]
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.slow
@pytest.mark.sizes(2, 3, 4, 6)
@pytest.mark.parametrize("check", [check_views, check_writes, check_masks])
def test_many_more(ranks, check):
    ranks(each_seed(range(100, 200), check))

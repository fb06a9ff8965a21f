"""What comes in goes out: trees, in place and out=, arrays of other libraries through DLPack."""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from hpcpar.comm import reduce_requests
from hpcpar.comm.record import Entry
from hpcpar.debug import wire
from hpcpar.errors import MismatchError, UnsupportedError


class Pair(NamedTuple):
    """A tree node with names."""

    left: object
    right: object


def make(rank):
    """Return a tree of four dtypes, scalars, an empty and a 0-d array."""
    return {
        "w": np.full((2, 3), rank, np.float32),
        "nested": [np.arange(4) + rank, (1.5 * rank, Pair(rank, np.float32(rank)))],
        "half": np.full(3, rank).astype(ml_dtypes.bfloat16)[::2],
        "empty": np.zeros((0, 2)),
        "zero": np.array(float(rank)),
        7: np.full(2, rank, ">i2"),
    }


def check(tree, total, count):
    """Compare with the sum over ranks: `total` of the ranks, `count` of them."""
    assert list(tree) == ["w", "nested", "half", "empty", "zero", 7]
    assert tree["w"].dtype == np.float32
    assert (tree["w"] == total).all()
    assert tree["w"].shape == (2, 3)
    ints, (number, pair) = tree["nested"]
    assert ints.tolist() == [count * i + total for i in range(4)]
    assert (type(number), number) == (float, 1.5 * total)
    assert type(pair) is Pair
    assert (type(pair.left), pair.left) == (int, total)
    assert (type(pair.right), pair.right) == (np.float32, total)
    assert tree["half"].dtype == ml_dtypes.bfloat16
    assert tree["half"].astype(float).tolist() == [total, total]
    assert tree["empty"].shape == (0, 2)
    assert tree["zero"].shape == ()
    assert tree["zero"] == total
    assert tree[7].tolist() == [total, total]


def test_trees_come_back_as_they_are(ranks):
    def body(group):
        n, me = group.size, group.rank
        check(group.all_reduce(make(me)), n * (n - 1) // 2, n)
        reduced = group.reduce(make(me), root=n - 1)
        assert reduced is None if me != n - 1 else check(reduced, n * (n - 1) // 2, n) is None
        check(group.scan(make(me)), me * (me + 1) // 2, me + 1)

    ranks(body)


def test_broadcast_builds_the_tree_on_every_rank(ranks):
    def body(group):
        root = group.size - 1
        given = [np.arange(4.0), {"a": 1.5, 3: (np.int8(2), np.ones((0, 2)), [True])}]
        for x in (given if group.rank == root else None, given):
            got = group.broadcast(x, root=root)
            assert str(got) == str(given)
            assert type(got[1][3][0]) is np.int8
        if group.rank == 0:
            with pytest.raises(UnsupportedError, match=r"broadcast: x holds a class .*namedtuple"):
                group.broadcast(Pair(1, 2))
        else:
            with pytest.raises(MismatchError, match="root 0 refused: x holds a class"):
                group.broadcast()
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.parametrize("empty", [{}, [], (), {"a": [], "b": ()}], ids=str)
def test_trees_without_leaves(ranks, empty):
    def body(group):
        for _ in range(20):  # until the ranks compare no more
            assert group.all_reduce(empty) == empty
        assert group.scan(empty) == empty
        assert group.broadcast(empty if group.rank == 0 else None) == empty
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_trees_are_packed_into_one_operation_per_dtype(ranks):
    def body(group):
        x = {"a": np.ones(3), "b": [np.ones((2, 2)), np.ones(5, np.float32)]}
        before = group.recorder.last(1)[0] if group.recorder.last(1) else None
        group.all_reduce(x)
        newest = group.recorder.last(1)[0]
        assert newest != before
        entry = Entry(*newest)
        assert entry.elements == 12
        if group.size > 1:
            assert entry.messages == 2 * 2 * (group.size - 1)  # of two dtypes

    ranks(body)


def test_out_trees_are_filled_and_returned(ranks):
    def body(group):
        n = group.size
        x = {"a": np.ones(3), "b": [np.ones((2, 2)), np.ones(2, int)]}
        base = np.zeros((2, 4))
        out = {"a": np.zeros(3), "b": [base[:, ::2], np.zeros(2, int)]}
        got = group.all_reduce(x, out=out)
        assert got["a"] is out["a"]
        assert got["b"][0] is out["b"][0]
        assert (out["a"] == n).all()
        assert base.tolist() == [[n, 0, n, 0]] * 2
        group.all_reduce(x, out=x)
        assert (x["b"][0] == n).all()
        swapped = {"a": x["a"].copy(), "b": [x["b"][0].copy(), x["b"][1].copy()]}
        group.broadcast(swapped, out=swapped)
        assert (swapped["a"] == n).all()

    ranks(body)


IN_PLACE = {
    "all_reduce": lambda g, x: g.all_reduce(x, out=x),
    "reduce": lambda g, x: g.reduce(x, root=g.size - 1, out=x),
    "scan": lambda g, x: g.scan(x, out=x),
    "exclusive scan": lambda g, x: g.scan(x, exclusive=True, out=x),
    "broadcast": lambda g, x: g.broadcast(x, out=x, root=g.size - 1),
    "all_to_all": lambda g, x: g.all_to_all(x, out=x),
    "sendrecv": lambda g, x: g.sendrecv(x, (g.rank + 1) % g.size, (g.rank - 1) % g.size, out=x),
    "permute": lambda g, x: g.permute(x, [(r, (r + 1) % g.size) for r in range(g.size)], out=x),
}


@pytest.mark.parametrize("verb", IN_PLACE)
@pytest.mark.parametrize("layout", ["plain", "strided", "big endian"])
def test_in_place_gives_the_same(ranks, verb, layout):
    def body(group):
        values = np.arange(12.0) * (group.rank + 1)
        base = np.zeros((12, 2))
        x = {"plain": values.copy(), "strided": base[:, 0], "big endian": values.astype(">f8")}[
            layout
        ]
        x[...] = values
        call = IN_PLACE[verb]
        wanted = call(group, values.copy())
        got = call(group, x)
        assert got is x or got is None
        if got is not None:
            assert x.tolist() == wanted.tolist()
        assert not base[:, 1].any()

    ranks(body)


@pytest.mark.sizes(1)
def test_a_group_of_one_works_in_place_everywhere(ranks):
    """The result is a new array although nothing moves, and out=x is allowed for every verb."""

    def body(group):
        x = np.arange(6.0)
        for verb in ("reduce_scatter", "all_gather", "gather", "scatter", "all_reduce", "scan"):
            call = getattr(group, verb)
            new = call(x)
            assert not np.shares_memory(new, x), verb
            assert call(x, out=x) is x
            assert x.tolist() == list(range(6))

    ranks(body)


@pytest.mark.parametrize(
    "verb", ["all_reduce", "reduce", "scan", "broadcast", "all_gather", "gather", "scatter"]
)
def test_results_do_not_share_memory_with_x(ranks, verb):
    def body(group):
        x = np.arange(12.0).reshape(4, 3)
        for given in (x, x[:, 1], x[::-1]):
            got = getattr(group, verb)(given)
            if got is not None:
                assert not np.shares_memory(got, x)
                assert got.flags.writeable
        assert x.tolist() == np.arange(12.0).reshape(4, 3).tolist()

    ranks(body)


class Foreign:
    """An array of another library: it can only be read through DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **how):
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    @classmethod
    def from_dlpack(cls, array):
        return cls(np.asarray(array))

    def tolist(self):
        return self._array.tolist()


def test_arrays_of_other_libraries_come_back_as_theirs(ranks):
    def body(group):
        n, me = group.size, group.rank
        x = Foreign(np.arange(4.0) + me)
        joined = [i + r for r in range(n) for i in range(4)]
        for got, wanted in (
            (group.all_reduce(x), [n * i + n * (n - 1) / 2 for i in range(4)]),
            (group.all_reduce({"x": x})["x"], [n * i + n * (n - 1) / 2 for i in range(4)]),
            (group.all_gather(x), joined),
            (group.all_gather(Foreign(np.array(1.0))), [1.0] * n),
            (group.all_to_all(x, sizes=[4] + [0] * (n - 1)), joined if me == 0 else []),
            (group.broadcast(x), [0, 1, 2, 3]),
        ):
            assert type(got) is Foreign
            assert got.tolist() == wanted
        out = Foreign(np.zeros(4))
        assert group.all_reduce(x, out=out) is out
        assert out.tolist() == [n * i + n * (n - 1) / 2 for i in range(4)]

    ranks(body)


def test_arrays_that_dlpack_cannot_read_are_refused(ranks):
    class Broken(Foreign):
        def __dlpack__(self, **how):
            raise BufferError("on another device")

    def body(group):
        with pytest.raises(UnsupportedError, match="all_reduce: x cannot be read through DLPack"):
            group.all_reduce(Broken(np.ones(2)))
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_torch_tensors_come_back_as_tensors(ranks):
    torch = pytest.importorskip("torch")

    def body(group):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = torch.ones(3, dtype=dtype)
            got = group.all_reduce(x)
            assert type(got) is torch.Tensor
            assert got.dtype == dtype
            assert got.tolist() == [group.size] * 3

    ranks(body)


def test_a_large_tree_travels_in_buckets(ranks, monkeypatch):
    """What is packed is bounded; a leaf of a bucket's size goes as it lies."""
    monkeypatch.setattr(reduce_requests, "_BUCKET_NBYTES", 100)

    def body(group):
        sizes = {"a": 5, "b": 40, "c": 5, "d": 5, "e": 1, "f": 13}
        kinds = {"a": "f8", "b": "f8", "c": "f4", "d": "f8", "e": "f8", "f": "f8"}
        tree = {n: np.full(s, group.rank + 1.0).astype(kinds[n]) for n, s in sizes.items()}
        with wire(group) as counted:
            mean = group.all_reduce(tree, "mean", weight=group.rank + 1)
        total = sum((r + 1) ** 2 for r in range(group.size)) / sum(range(1, group.size + 1))
        for name, leaf in mean.items():
            assert leaf.dtype == kinds[name]
            assert np.allclose(leaf, total, rtol=1e-6)
        assert list(mean) == list(tree)
        sent = sum(sum(row.sent for row in rows) for rows in counted.all_ranks())
        data = sum(leaf.nbytes for leaf in tree.values())
        assert sent == 2 * (group.size - 1) * data
        group.all_reduce(tree, out=tree)
        want = group.size * (group.size + 1) / 2
        assert all((leaf == want).all() for leaf in tree.values())

    ranks(body)

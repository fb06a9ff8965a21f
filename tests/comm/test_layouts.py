"""Any layout in, NumPy's result on the concatenated data out."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

STRUCT = np.dtype([("id", "i4"), ("pos", "f8", (2,)), ("name", "U2")])
LAYOUTS = {
    "plain": lambda x: x.copy(),
    "fortran": np.asfortranarray,
    "every other": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "unaligned": lambda x: unaligned(x),
    "big endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "read-only": lambda x: read_only(x),
    "subclass": lambda x: x.view(Tagged),
}


class Tagged(np.ndarray):
    """A subclass: taken as the array it is."""


def unaligned(x):
    buffer = np.zeros(x.nbytes + 1, np.uint8)
    view = buffer[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def rows(rank, count=3, dtype=np.float64):
    return (np.arange(count * 4).reshape(count, 4) + 100 * rank).astype(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_verb_takes_every_layout(ranks, layout):
    def body(group):
        me, size, make = group.rank, group.size, LAYOUTS[layout]
        everyone = [rows(r) for r in range(size)]
        x = make(rows(me))
        total = sum(everyone)
        same(group.all_reduce(x), total)
        same(group.reduce(x, root=0), total if me == 0 else None)
        same(group.scan(x), sum(everyone[: me + 1]))
        same(group.reduce_scatter(x, axis=1), parts(total, size, 1)[me])
        same(group.broadcast(x if me == 0 else None), everyone[0])
        for axis in (0, 1, -1):
            same(group.all_gather(x, axis=axis), np.concatenate(everyone, axis))
            joined = group.gather(x, axis=axis, root=size - 1)
            same(joined, np.concatenate(everyone, axis) if me == size - 1 else None)
            same(group.scatter(x, axis=axis), parts(everyone[0], size, axis)[me])
            mine = [parts(e, size, axis)[me] for e in everyone]
            same(group.all_to_all(x, axis=axis), np.concatenate(mine, axis))
        ring = [(r, (r + 1) % size) for r in range(size)]
        same(group.permute(x, ring), everyone[(me - 1) % size])
        same(group.sendrecv(x, (me + 1) % size, (me - 1) % size), everyone[(me - 1) % size])

    ranks(body)


def assert_equal(got, wanted):
    """Compare dtype, shape and every element's text: structured and complex elements too."""
    assert (got is None) == (wanted is None)
    if wanted is not None:
        assert got.dtype == wanted.dtype.newbyteorder("=")
        assert got.shape == wanted.shape
        assert str(got.tolist()) == str(wanted.astype(got.dtype).tolist())


def same(got, wanted):
    if wanted is None:
        assert got is None
        return
    assert type(got) is np.ndarray
    assert got.dtype == wanted.dtype
    assert got.flags.writeable
    np.testing.assert_array_equal(got, wanted, strict=True)


def parts(x, size, axis):
    length = x.shape[axis]
    chunk = -(-length // size)
    return np.split(x, [min(length, r * chunk) for r in range(1, size)], axis)


@pytest.mark.sizes(2)
def test_strided_views_leave_their_neighbours_alone(ranks):
    def body(group):
        r = group.rank
        base = np.arange(10, dtype=np.float32) + r
        view = base[::2]
        assert group.all_reduce(view, out=view) is view
        assert view.tolist() == [1, 5, 9, 13, 17]
        assert base[1::2].tolist() == [1 + r, 3 + r, 5 + r, 7 + r, 9 + r]
        back = (np.arange(3.0) + r)[::-1]
        group.all_reduce(back, out=back)
        assert back.tolist() == [5, 3, 1]
        table = np.arange(6, dtype=np.float32).reshape(3, 2) + 10 * r
        column = table[:, 1]
        group.broadcast(column, root=1, out=column)
        assert column.tolist() == [11, 13, 15]
        assert table[:, 0].tolist() == [10 * r, 10 * r + 2, 10 * r + 4]

    ranks(body)


@pytest.mark.sizes(2)
def test_shards_that_count_as_contiguous_on_one_rank_only(ranks):
    def body(group):
        whole = np.arange(12.0).reshape(3, 4)
        shard = np.asfortranarray(whole[0:2] if group.rank == 0 else whole[2:3])
        same(group.all_gather(shard, sizes=[2, 1]), whole)
        odd = np.lib.stride_tricks.as_strided(np.arange(4.0), (1, 2, 2), (7, 16, 8))
        assert group.all_reduce(odd).tolist() == [[[0, 2], [4, 6]]]

    ranks(body)


def test_empty_arrays_keep_the_ranks_in_step(ranks):
    def body(group):
        n, r = group.size, group.rank
        assert group.all_gather(np.ones((1, 0, 2), np.float32)).shape == (n, 0, 2)
        assert group.all_reduce(np.zeros((0, 3))).shape == (0, 3)
        assert group.reduce_scatter(np.zeros((0, 3))).shape == (0, 3)
        assert group.scan(np.zeros((0, 3)), exclusive=True).shape == (0, 3)
        assert group.broadcast(np.zeros((0, 3))).shape == (0, 3)
        assert group.scatter(np.zeros((3, 0)), axis=1).shape == (3, 0)
        assert group.all_to_all(np.zeros((3, 0)), axis=1).shape == (3, 0)
        received = group.permute(np.zeros(0), [(0, 0)])
        assert received is None if r else received.shape == (0,)
        length = [0, 3, 1, 2][r]
        joined = group.all_gather(np.full(length, r))
        assert joined.tolist() == [s for s in range(n) for _ in range([0, 3, 1, 2][s])]
        assert group.all_reduce(np.ones(2)).tolist() == [n, n]

    ranks(body)


def test_zero_dimensions_and_scalars(ranks):
    def body(group):
        n, r = group.size, group.rank
        zero = np.array(r + 1.0)
        total = group.all_reduce(zero)
        assert type(total) is np.ndarray
        assert total.shape == ()
        assert total == n * (n + 1) / 2
        group.all_reduce(zero, out=zero)
        assert zero == total
        for value in (r + 1, np.int16(r + 1), np.array(r + 1), r + 1.0):
            gathered = group.all_gather(value)
            assert type(gathered) is np.ndarray
            assert gathered.tolist() == list(range(1, n + 1))
        assert group.broadcast(np.array(7.5)).shape == ()

    ranks(body)


@pytest.mark.parametrize(
    "kind", [bool, int, float, complex, np.float32, np.int8, np.bool_, ml_dtypes.bfloat16]
)
def test_scalars_keep_their_kind(ranks, kind):
    def body(group):
        root = group.size - 1
        results = [group.all_reduce(kind(1), "max" if kind is bool else "sum"), group.scan(kind(1))]
        reduced = group.reduce(kind(1), root=root)
        sent = group.broadcast(kind(1) if group.rank == root else None, root=root)
        results += [sent] if reduced is None else [sent, reduced]
        assert [type(x) for x in results] == [kind] * len(results)
        assert sent == kind(1)

    ranks(body)


def test_big_endian_arrays(ranks):
    def body(group):
        n, r = group.size, group.rank
        x = np.array([1.5 + r], ">f8")
        total = 1.5 * n + n * (n - 1) / 2
        assert group.all_reduce(x).tolist() == [total]
        mixed = x if r % 2 == 0 else x.astype("<f8")
        assert group.all_gather(mixed).tolist() == [1.5 + s for s in range(n)]
        out = np.zeros(n, ">f8")
        assert group.all_gather(mixed, out=out) is out
        assert out.tolist() == [1.5 + s for s in range(n)]
        group.all_reduce(x, out=x)
        assert x.dtype == ">f8"
        assert x.tolist() == [total]

    ranks(body)


@pytest.mark.parametrize(
    "dtype",
    [
        STRUCT,
        STRUCT.newbyteorder(">"),
        "U5",
        "S3",
        "M8[us]",
        "m8[D]",
        "V3",
        "f2",
        "c16",
        "g",
        "?",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        np.dtype("i1,f8", align=True),
    ],
    ids=str,
)
def test_moving_verbs_take_any_dtype_without_objects(ranks, dtype):
    dtype = np.dtype(dtype)

    def block(rank):
        raw = np.random.default_rng(rank).integers(1, 100, (4, 2))
        if dtype.names:
            x = np.zeros((4, 2), dtype)
            for name in dtype.names:
                field = x[name]
                field[...] = raw.reshape(4, 2, *[1] * (field.ndim - 2)).astype(field.dtype)
            return x
        return raw.astype("S3").view(dtype) if dtype.type is np.void else raw.astype(dtype)

    def body(group):
        me, n = group.rank, group.size
        everyone, x = [block(r) for r in range(n)], block(me)
        assert_equal(group.broadcast(x if me == n - 1 else None, root=n - 1), everyone[n - 1])
        assert_equal(group.all_gather(x, axis=1), np.concatenate(everyone, 1))
        assert_equal(group.scatter(x if me == 0 else None), parts(everyone[0], n, 0)[me])
        mine = [parts(e, n, 0)[me] for e in everyone]
        assert_equal(group.all_to_all(x), np.concatenate(mine))
        assert_equal(group.permute(x, [(0, n - 1)]), everyone[0] if me == n - 1 else None)
        assert_equal(group.sendrecv(x, (me + 1) % n, (me - 1) % n), everyone[(me - 1) % n])

    ranks(body)


@st.composite
def cuts(draw):
    """Return a shape, an axis and two tables of sizes: what each rank holds and what it sends."""
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    held = draw(st.lists(st.integers(0, 4), min_size=4, max_size=4))
    sent = draw(
        st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=4, max_size=4)
    )
    return shape, axis, held, sent, draw(st.sampled_from(["f4", ">i2", "U2", "?"]))


@pytest.mark.sizes(1, 2, 3)
def test_random_cuts_along_any_axis(ranks):
    def body(group):
        n, me = group.size, group.rank

        @settings(max_examples=40, derandomize=True, database=None, deadline=None)
        @given(cuts())
        def check(cut):
            shape, axis, held, sent, dtype = group.broadcast_object(cut)
            blocks = [random_block(shape, axis, held[r], dtype, r) for r in range(n)]
            joined, x = np.concatenate(blocks, axis), blocks[me]
            sizes = tuple(held[:n])
            for given_sizes in (None, sizes):
                assert_equal(group.all_gather(x, axis=axis, sizes=given_sizes), joined)
                root = sum(held) % n
                wanted = joined if me == root else None
                assert_equal(group.gather(x, root=root, axis=axis, sizes=given_sizes), wanted)
            assert_equal(group.scatter(joined if me == 0 else None, axis=axis, sizes=sizes), x)
            assert_equal(group.scatter(joined, axis=axis), parts(joined, n, axis)[me])
            if dtype not in ("U2", "?"):
                summed = group.reduce_scatter(joined, axis=axis, sizes=sizes)
                assert_equal(summed, (x * n).astype(x.dtype))
            wholes = [random_block(shape, axis, sum(sent[r][:n]), dtype, r) for r in range(n)]
            pieces = [
                np.split(w, np.cumsum(s[:n])[:-1], axis) for w, s in zip(wholes, sent, strict=False)
            ]
            got = group.all_to_all(wholes[me], axis=axis, sizes=sent[me][:n])
            assert_equal(got, np.concatenate([p[me] for p in pieces], axis))

        check()

    ranks(body)


def random_block(shape, axis, length, dtype, rank):
    shape = list(shape)
    shape[axis] = length
    block = np.random.default_rng(rank).integers(0, 9, shape).astype(dtype)
    return block if rank % 2 else np.asfortranarray(block)

"""all_gather and gather whose x is the rank's own block of out."""

import numpy as np
import pytest

from hpcpar.errors import ArgumentError, HpcparError

SETTLED = 6  # calls after which the hot path is taken


def block_of(out, sizes, rank, axis=0):
    begin = sum(sizes[:rank])
    return np.moveaxis(np.moveaxis(out, axis, 0)[begin : begin + sizes[rank]], 0, axis)


def filled(shape, sizes, rank, salt, axis=0):
    """Return a result of which only `rank`'s block is there, and what must come out."""
    whole = np.arange(float(np.prod(shape))).reshape(shape) + salt
    out = np.full(shape, -1.0)
    block_of(out, sizes, rank, axis)[...] = block_of(whole, sizes, rank, axis)
    return out, whole


def uneven(n):
    return [(r * 2) % 5 for r in range(n)]  # also nothing


@pytest.mark.parametrize("rows", [3, 150_000])
@pytest.mark.parametrize("promise", ["equal", "told"])
def test_all_gather_many_times(ranks, rows, promise):
    def body(group):
        sizes = (rows,) * group.size if promise == "equal" else tuple(uneven(group.size))
        for salt in range(SETTLED):
            out, whole = filled((sum(sizes), 4), sizes, group.rank, salt)
            x = block_of(out, sizes, group.rank)
            told = "equal" if promise == "equal" else sizes
            assert group.all_gather(x, sizes=told, out=out) is out
            assert (out == whole).all()

    ranks(body)


def test_along_another_axis_and_into_a_strided_array(ranks):
    def body(group):
        sizes = (2,) * group.size
        out, whole = filled((3, sum(sizes)), sizes, group.rank, 0, axis=1)
        group.all_gather(block_of(out, sizes, group.rank, 1), axis=1, sizes=sizes, out=out)
        assert (out == whole).all()
        out, whole = filled((sum(sizes), 3), sizes, group.rank, 1)
        room = np.zeros((sum(sizes), 6))
        room[:, ::2] = out
        strided = room[:, ::2]
        group.all_gather(block_of(strided, sizes, group.rank), sizes="equal", out=strided)
        assert (strided == whole).all()
        assert (room[:, 1::2] == 0).all()

    ranks(body)


def test_some_ranks_in_place_and_others_not(ranks):
    def body(group):
        sizes = (5,) * group.size
        for salt in range(SETTLED):
            out, whole = filled((sum(sizes),), sizes, group.rank, salt)
            x = block_of(out, sizes, group.rank)
            given = x if (group.rank + salt // 3) % 2 else x.copy()
            group.all_gather(given, sizes="equal", out=out)
            assert (out == whole).all()

    ranks(body)


@pytest.mark.parametrize("rows", [3, 150_000])
def test_the_root_of_a_gather(ranks, rows):
    def body(group):
        root, sizes = group.size - 1, (rows,) * group.size
        for salt in range(SETTLED):
            out, whole = filled((sum(sizes), 2), sizes, group.rank, salt)
            x = block_of(out, sizes, group.rank)
            if group.rank == root:
                assert group.gather(x, root=root, sizes="equal", out=out) is out
                assert (out == whole).all()
            else:
                assert group.gather(x, root=root, sizes="equal") is None

    ranks(body)


def test_asynchronously(ranks):
    def body(group):
        sizes = tuple(r + 1 for r in range(group.size))
        out, whole = filled((sum(sizes),), sizes, group.rank, 0)
        work = group.all_gather(
            block_of(out, sizes, group.rank), sizes=sizes, out=out, async_op=True
        )
        assert work.wait() is out
        assert (out == whole).all()
        out[0] = 1  # writable again

    ranks(body)


@pytest.mark.parametrize("settled", [False, True])
def test_another_place_in_out_is_refused(ranks, settled):
    def body(group):
        sizes = (2,) * group.size
        out, whole = filled((sum(sizes) + 1,), sizes, group.rank, 0)
        if settled:
            for _ in range(SETTLED):
                group.all_gather(block_of(out, sizes, group.rank), sizes="equal", out=out[:-1])
        wrong = out[2 * group.rank + 1 :][:2]
        where = rf"let x be out\[{2 * group.rank}:{2 * group.rank + 2}\]"
        with pytest.raises(ArgumentError, match=where):
            group.all_gather(wrong, sizes="equal", out=out[:-1])
        group.barrier()
        group.all_gather(block_of(out, sizes, group.rank), sizes="equal", out=out[:-1])
        assert (out[:-1] == whole[:-1]).all()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_one_rank_that_is_wrong_stops_all(ranks):
    def body(group):
        sizes = (2,) * group.size
        out, whole = filled((sum(sizes),), sizes, group.rank, 0)
        own = block_of(out, sizes, group.rank)
        with pytest.raises(HpcparError, match="overlaps"):
            group.all_gather(out[1:3] if group.rank == 0 else own, sizes="equal", out=out)
        group.all_gather(own, sizes="equal", out=out)
        assert (out == whole).all()

    ranks(body)


def test_lengths_that_are_exchanged_come_too_late(ranks):
    def body(group):
        out, _ = filled((2 * group.size,), (2,) * group.size, group.rank, 0)
        if group.size == 1:
            assert group.all_gather(out, out=out) is out
            return
        with pytest.raises(ArgumentError, match="Promise sizes to work in place"):
            group.all_gather(block_of(out, (2,) * group.size, group.rank), out=out)
        assert group.all_reduce(1) == group.size

    ranks(body)

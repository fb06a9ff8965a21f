"""One array for all ranks of a node: node_shared, and parts that lie side by side."""

import ctypes
import gc

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.errors import ArgumentError, MismatchError, UnsupportedError

symmetric = hp.symmetric


def has_engine(group):
    return group.backend in ("node", "threads") and group.size > 1


# -- node_shared ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "int8", "complex64", "U3", "M8[s]", "bool"])
@pytest.mark.parametrize("shape", [(1000, 7), (3,), (), (0, 4)])
def test_all_ranks_read_what_one_made(ranks, dtype, shape):
    def body(group):
        calls = []

        def make():
            calls.append(1)
            return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)

        table = hp.node_shared(make, group=group)
        assert (table.shape, table.dtype) == (shape, np.dtype(dtype))
        assert (table == make()).all()
        assert not table.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            table[...] = table
        assert len(calls) == 1 + (group.rank == 0)
        group.barrier()

    ranks(body)


def test_an_array_counts_on_the_first_rank_only(ranks):
    def body(group):
        x = np.asfortranarray(np.arange(12.0).reshape(3, 4)).astype(">f8") + group.rank
        table = hp.node_shared(x if group.rank == 0 else None, group=group)
        assert table.tolist() == np.arange(12.0).reshape(3, 4).tolist()
        group.barrier()

    ranks(body)


def test_there_is_one_copy(ranks):
    """What the first rank writes, through its own memory, the others see."""

    def body(group):
        if not has_engine(group):
            return
        table = hp.node_shared(np.zeros(4), group=group)
        assert symmetric.is_symmetric(table, group=group)
        if group.rank == 0:
            ctypes.memset(table.ctypes.data, 1, table.nbytes)
        group.barrier()
        assert (table.view("uint8") == 1).all()
        group.barrier()

    ranks(body)


def test_what_the_callable_raises_reaches_all_ranks(ranks):
    def body(group):
        def fail():
            raise KeyError("no such table")

        with pytest.raises(KeyError, match="no such table"):
            hp.node_shared(fail, group=group)
        with pytest.raises(UnsupportedError, match="Python objects"):
            hp.node_shared(lambda: np.array([None]), group=group)
        assert hp.node_shared(lambda: np.ones(2), group=group).tolist() == [1, 1]
        group.barrier()

    ranks(body)


def test_it_is_read_where_it_lies(ranks):
    def body(group):
        table = hp.node_shared(lambda: np.arange(300_000.0), group=group)
        total = group.all_reduce(table)
        assert (total == table * group.size).all()
        group.barrier()

    ranks(body)


@pytest.mark.sizes(2)
def test_its_memory_is_used_again(ranks):
    def body(group):
        if not has_engine(group):
            return
        gc.collect()
        group.barrier()
        place = None
        for number in range(20):
            table = hp.node_shared(np.full(50_000, number), group=group)
            assert table[-1] == number
            place = place or table.ctypes.data
            assert table.ctypes.data == place
            del table
            gc.collect()
            group.barrier()

    ranks(body)


# -- parts side by side --------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [8, 4096, 100_000, 0])
def test_each_rank_sees_the_parts_of_all(ranks, nbytes):
    def body(group):
        if not has_engine(group) and group.size > 1:
            return
        whole = symmetric.concatenated(group, nbytes)
        assert (whole.shape, whole.dtype, whole.flags.c_contiguous) == (
            (group.size, nbytes),
            np.uint8,
            True,
        )
        assert (whole == 0).all()
        group.barrier()
        whole[group.rank] = group.rank + 1
        group.barrier()
        for rank in range(group.size):
            assert (whole[rank] == rank + 1).all()
        group.barrier()

    ranks(body)


@pytest.mark.sizes(2, 3, 4)
def test_a_part_is_symmetric(ranks):
    def body(group):
        if not has_engine(group):
            return
        count = 100_000
        whole = symmetric.concatenated(group, 8 * count).view("float64")
        x = symmetric.zeros(group.size * count, group=group)
        x[...] = np.arange(x.size) % 7 + group.rank
        mine = whole[group.rank]
        assert symmetric.is_symmetric(mine, group=group)
        group.reduce_scatter(x, out=mine)
        group.barrier()
        want = sum(np.arange(x.size) % 7 + r for r in range(group.size))
        assert np.array_equal(whole.ravel(), want)
        group.barrier()
        parts = group.all_gather(mine, sizes="equal")
        assert np.array_equal(parts, want)
        group.barrier()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_bad_parts_are_refused(ranks):
    def body(group):
        if not has_engine(group):
            with pytest.raises(UnsupportedError, match="share no memory"):
                symmetric.concatenated(group, 8)
            return
        with pytest.raises(ArgumentError, match=r"symmetric\.concatenated: shape -8"):
            symmetric.concatenated(group, -8)
        with pytest.raises(MismatchError, match="ranks disagree on shape"):
            symmetric.concatenated(group, 8 + group.rank)
        with pytest.raises(MemoryError, match="bytes are needed on this machine"):
            symmetric.concatenated(group, 1 << 50)
        assert symmetric.concatenated(group, 8).shape == (group.size, 8)
        group.barrier()

    ranks(body)

"""all_to_all with all ranks' lengths promised: nothing is exchanged before the data."""

import numpy as np
import pytest

from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, MismatchError


def table_of(size, seed=0):
    return np.random.default_rng(seed).integers(0, 4, (size, size)).tolist()


def sent_by(rank, table):
    return np.concatenate(
        [[100 * rank + 10 * dst] * n for dst, n in enumerate(table[rank])]
    ).astype(int)


def right_for(rank, table):
    return np.concatenate([[100 * src + 10 * rank] * row[rank] for src, row in enumerate(table)])


@pytest.mark.sizes(1, 2, 3, 4)
def test_parts_of_any_lengths(ranks):
    def body(group):
        for seed in range(6):
            table = table_of(group.size, seed)
            x, right = sent_by(group.rank, table), right_for(group.rank, table)
            kinds = (table, tuple(map(tuple, table)), np.array(table))
            for sizes in kinds:
                assert np.array_equal(group.all_to_all(x, sizes=sizes), right)
            out = np.empty(len(right), x.dtype)
            for _ in range(20):  # takes the hot path once it is known
                out[:] = -1
                assert group.all_to_all(x, sizes=kinds[1], out=out) is out
                assert np.array_equal(out, right)
            work = group.all_to_all(x, sizes=table, async_op=True)
            assert np.array_equal(work.wait(), right)
            columns = np.stack([x, x + 1])
            assert np.array_equal(
                group.all_to_all(columns, axis=1, sizes=table), np.stack([right, right + 1])
            )

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_bytes_are_counted_alike_on_every_way(ranks):
    def body(group):
        table = tuple(map(tuple, table_of(group.size, 3)))
        x, out = sent_by(group.rank, table), np.empty(len(right_for(group.rank, table)), int)
        others = 8 * (len(x) - table[group.rank][group.rank])
        even, into = np.ones(2 * group.size), np.empty(2 * group.size)
        for _ in range(20):
            with wire(group) as counted:
                group.all_to_all(x, sizes=table, out=out)
            assert counted.sent == others
            with wire(group) as counted:
                group.all_to_all(even, sizes="equal", out=into)
            assert counted.sent == 16 * (group.size - 1)

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_what_is_refused(ranks):
    def body(group):
        size = group.size
        x = np.zeros(size, int)
        with pytest.raises(ArgumentError, match=f"sizes of {size + 1} rows needs {size}"):
            group.all_to_all(x, sizes=[[1] * size] * (size + 1))
        with pytest.raises(ArgumentError, match=f"needs {size} entries"):
            group.all_to_all(x, sizes=[[1] * (size + 1)] * size)
        with pytest.raises(ArgumentError, match="must hold ints >= 0"):
            group.all_to_all(x, sizes=[[-1] * size] * size)
        with pytest.raises(ArgumentError, match=f"sum to {2 * size}, needs {size}"):
            group.all_to_all(x, sizes=[[2] * size] * size)
        with pytest.raises(ArgumentError, match="out"):
            group.all_to_all(x, sizes=[[1] * size] * size, out=np.zeros(size + 1, int))
        assert group.all_reduce(1) == size

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_other_tables_are_an_error_on_all(ranks):
    def body(group):
        size = group.size
        rows = [[1] * size for _ in range(size)]
        if group.rank == 1:
            rows[0] = [2, *[1] * (size - 1)]
        with pytest.raises(MismatchError, match="sizes"):
            group.all_to_all(np.zeros(size), sizes=rows)
        long = [[1] * size for _ in range(size)]
        with pytest.raises(MismatchError, match="sizes"):
            group.all_to_all(np.zeros(size), sizes=long if group.rank else "equal")
        assert group.all_reduce(1) == size

    ranks(body, check="full")

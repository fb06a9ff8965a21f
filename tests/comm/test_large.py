"""Counts that no C int holds, and bits that no layout of ranks may change."""

import numpy as np
import pytest

import hpcpar as hp

BEYOND = 2**31 + 8


@pytest.mark.slow
@pytest.mark.sizes(2)
def test_a_broadcast_of_more_than_2_gib(ranks):
    def body(group):
        x = np.zeros(BEYOND, np.uint8)
        if group.rank == 0:
            x[-3:] = [1, 2, 3]
        assert group.broadcast(x, out=x) is x
        assert x[-3:].tolist() == [1, 2, 3]
        assert not x[: 2**20].any()

    ranks(body)


@pytest.mark.slow
@pytest.mark.sizes(2)
def test_messages_and_reductions_of_more_than_2_gib(ranks):
    def body(group):
        x = np.full(BEYOND, group.rank + 1, np.uint8)
        got = group.sendrecv(x, 1 - group.rank, 1 - group.rank)
        assert got.size == BEYOND
        assert (got[0], got[-1]) == (2 - group.rank, 2 - group.rank)
        del got
        group.all_reduce(x, out=x)
        assert (x[0], x[2**31], x[-1]) == (3, 3, 3)

    ranks(body)


@pytest.mark.sizes(3, 4)
def test_deterministic_sums_are_added_in_rank_order(ranks):
    parts = [1e16, 1.0, -1e16, 1.0]  # another order of additions gives another sum

    def body(group):
        n = group.size
        own = [float(v) for v in parts[:n]]
        expected = own[0]
        for value in own[1:]:
            expected += value
        x = np.full(100, own[group.rank])
        assert (group.all_reduce(x) == expected).all()
        for _ in range(20):  # nor may the hot path go another way
            assert (group.all_reduce(x, out=np.empty(100)) == expected).all()
        assert (group.reduce_scatter(x) == expected).all()
        root = group.reduce(x, root=n - 1)
        assert root is None or (root == expected).all()

    ranks(body, deterministic=True)


def test_init_takes_the_flag():
    assert hp.init(deterministic=True).settings.deterministic
    hp.shutdown()

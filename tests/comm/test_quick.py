"""Calls seen before take the hot path where there is one; nothing may tell but the clock."""

import numpy as np
import pytest

from hpcpar.errors import ArgumentError, GroupFailed, MismatchError, UnsupportedError

SETTLED = 20  # calls after which the ranks compare no more


def check_sums(group, count=SETTLED, dtype=np.float32, op="sum"):
    for i in range(count):
        x = np.arange(5, dtype=dtype) + group.rank + i
        out = np.full_like(x, 99)
        assert group.all_reduce(x, op, out=out) is out
        total = sum(np.arange(5, dtype=dtype) + r + i for r in range(group.size))
        assert (out == (total / group.size if op == "mean" else total)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.complex64, np.float16])
def test_all_reduce_stays_right(ranks, dtype):
    ranks(lambda group: check_sums(group, dtype=dtype))


def test_mean_divides_on_every_path(ranks):
    ranks(lambda group: check_sums(group, dtype=np.float64, op="mean"))


def test_in_place_stays_right(ranks):
    def body(group):
        for _ in range(SETTLED):
            x = np.arange(4.0) + group.rank
            group.all_reduce(x, out=x)
            assert (x == group.size * np.arange(4.0) + sum(range(group.size))).all()

    ranks(body)


@pytest.mark.parametrize("sizes", ["equal", "ints"])
def test_all_gather_and_reduce_scatter_stay_right(ranks, sizes):
    def body(group):
        promised = "equal" if sizes == "equal" else (3,) * group.size
        whole, part = np.empty(3 * group.size), np.empty(3)
        for i in range(SETTLED):
            group.all_gather(np.arange(3.0) + 10 * group.rank + i, sizes=promised, out=whole)
            expected = [np.arange(3.0) + 10 * r + i for r in range(group.size)]
            assert (whole == np.concatenate(expected)).all()
            group.reduce_scatter(whole + group.rank, out=part)
            added = sum(range(group.size))
            assert (part == group.size * expected[group.rank] + added).all()

    ranks(body)


def test_other_calls_than_the_learned_one_take_the_long_way(ranks):
    def body(group):
        check_sums(group)
        strided = np.zeros(10, np.float32)[::2]
        group.all_reduce(np.ones(5, np.float32), out=strided)
        assert (strided == group.size).all()
        big = np.zeros(5, ">f4")
        group.all_reduce(np.ones(5, np.float32), out=big)
        assert (big == group.size).all()
        for bad in (np.zeros(4, np.float32), np.zeros(5), np.zeros((5, 1), np.float32)):
            with pytest.raises(ArgumentError, match="out has"):
                group.all_reduce(np.ones(5, np.float32), out=bad)
        with pytest.raises(ArgumentError, match="read-only"):
            group.all_reduce(np.ones(5, np.float32), out=np.broadcast_to(np.float32(0), (5,)))
        buffer = np.zeros(6, np.float32)
        with pytest.raises(ArgumentError, match="overlaps"):
            group.all_reduce(buffer[:5], out=buffer[1:])
        with pytest.raises(ArgumentError, match="op"):
            group.all_reduce(np.ones(5, np.float32), ["sum"], out=np.zeros(5, np.float32))
        with pytest.raises(UnsupportedError, match="band"):
            group.all_reduce(np.ones(5, np.float32), "band", out=np.zeros(5, np.float32))
        check_sums(group, 1)

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_an_error_that_nobody_saw_stops_the_hot_path(ranks):
    def body(group):
        check_sums(group)
        work = group.all_reduce(np.ones(1237 + group.rank), async_op=True)  # a shape not seen yet
        while not work.done():
            pass
        with pytest.raises(MismatchError, match="shape"):
            group.all_reduce(np.ones(5, np.float32), out=np.zeros(5, np.float32))
        check_sums(group, 1)

    ranks(body)


def test_a_closed_group_refuses_what_it_learned(ranks):
    def body(group):
        own = group.subgroup([group.rank])
        check_alone = np.zeros(5, np.float32)
        for _ in range(SETTLED):
            own.all_reduce(np.ones(5, np.float32), out=check_alone)
        if group.size > 1:
            own.close()
            with pytest.raises(GroupFailed, match="closed"):
                own.all_reduce(np.ones(5, np.float32), out=check_alone)

    ranks(body)


def test_every_call_is_recorded_on_both_paths(ranks):
    def body(group):
        check_sums(group)
        before = group.recorder.last(1)[0]
        check_sums(group, 3)
        after = group.recorder.last(1)[0]
        assert after[1] == before[1] + 3  # sequence numbers go on
        assert after[2:6] == before[2:6]  # the same verb, dtype, elements, itemsize
        assert after[8] >= after[7]  # ended
        assert after[10:] == before[10:]  # the same traffic

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_what_was_learned_is_forgotten_on_all_ranks_together(ranks, monkeypatch):
    """Also where some ranks took the hot path for a call, and others cannot."""
    monkeypatch.setattr("hpcpar.comm.runner._SIGNATURES", 8)

    def body(group):
        def call():
            out = np.zeros(5) if group.rank == 0 else np.zeros(10)[::2]
            assert (group.all_reduce(np.ones(5), out=out) == group.size).all()

        for _ in range(SETTLED):
            call()
        for length in range(6, 20):
            assert (group.all_reduce(np.ones(length)) == group.size).all()
            call()

    ranks(body)


def test_broadcast_without_checks(ranks):
    """With out= on every rank nothing but the data travels, on the long way and on the hot path."""

    def body(group):
        last = group.size - 1
        for i in range(SETTLED):
            x = np.arange(6.0).reshape(2, 3) + group.rank + i
            kept, out = x.copy(), np.zeros((2, 3))
            assert group.broadcast(x, root=last, out=out) is out
            assert (out == np.arange(6.0).reshape(2, 3) + last + i).all()
            assert (x == kept).all()
            assert group.broadcast(x, root=last, out=x) is x
            assert (x == out).all()
            alone = np.full((2, 3), group.rank + i)
            group.broadcast(alone if group.rank == last else None, root=last, out=alone)
            assert (alone == last + i).all()
            strided = np.zeros((2, 6))[:, ::2]
            group.broadcast(out, root=last, out=strided)
            assert (strided == out).all()
            tree = {"a": np.full(2, group.rank), "b": np.full(3, 1.0 * group.rank)}
            group.broadcast(tree, root=last, out=tree)
            assert (tree["a"] == last).all()
            assert (tree["b"] == last).all()
        with pytest.raises(ArgumentError, match="out has"):
            group.broadcast(np.ones(2), root=last, out=np.ones(3))
        assert group.broadcast(3.5 if group.rank == last else None, root=last) == 3.5

    ranks(body, check="off")


@pytest.mark.parametrize("check", ["off", "auto"])
def test_the_hot_path_is_the_same_without_checks(ranks, check):
    def body(group):
        check_sums(group)
        whole = np.empty(2 * group.size)
        for i in range(SETTLED):
            mine = np.full(2, 1.0 * group.rank + i)
            group.all_gather(mine, sizes="equal", out=whole)
            assert (whole == np.repeat(np.arange(group.size) + i, 2)).all()
            group.all_gather(mine, sizes=[2] * group.size, out=whole)
            assert (whole == np.repeat(np.arange(group.size) + i, 2)).all()

    ranks(body, check=check)

"""An all_reduce that is begun again and again: results, company of ordinary calls, refusals."""

import threading

import numpy as np
import pytest

from hpcpar.comm.persistent import PersistentAllReduce
from hpcpar.comm.work import Work
from hpcpar.errors import ArgumentError, CollectiveTimeout, GroupFailed, MismatchError


def still_works(group):
    assert group.all_reduce(np.array([group.rank + 1.0]))[0] == group.size * (group.size + 1) / 2


@pytest.mark.parametrize("count", [0, 3, 20000, 300000])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_it_reduces_what_lies_there_each_time(ranks, op, count):
    def body(group):
        n, x = group.size, np.zeros(count)
        kept = PersistentAllReduce(group, x, op)
        assert kept.x is x
        for start in (1.0, 10.0, 100.0):
            x[...] = np.arange(count) % 8 + start * (group.rank + 1)
            assert kept.start().wait() is x
            whole = sum(range(1, n + 1)) * start
            by_op = {"sum": whole, "mean": whole / n, "max": start * n}
            times = n if op == "sum" else 1
            assert np.array_equal(x, np.arange(count) % 8 * times + by_op[op])

    ranks(body)


def test_arrays_of_any_layout_are_reduced(ranks):
    def body(group):
        swapped = np.zeros((4, 6), ">f4")
        for x in (np.zeros((6, 4)).T, np.zeros(40000)[::2], swapped, np.zeros(())):
            kept = PersistentAllReduce(group, x, "sum")
            for turn in (1, 2):
                x[...] = turn * (group.rank + 1)
                assert kept.start().wait() is x
                assert (x == turn * sum(range(1, group.size + 1))).all()

    ranks(body)


def test_several_are_on_their_way_among_other_calls(ranks):
    def body(group):
        arrays = [np.full(30000, float(i + group.rank)) for i in range(4)]
        kept = [PersistentAllReduce(group, x, "sum") for x in arrays]
        for turn in range(3):
            for i, x in enumerate(arrays):
                x[...] = i + group.rank + turn
            works = [k.start() for k in kept[:2]]
            works.append(group.all_reduce(np.ones(9), async_op=True))
            assert group.all_reduce(2.0) == 2.0 * group.size
            works += [k.start() for k in kept[2:]]
            for work in works:
                work.wait()
            base = sum(range(group.size))
            assert [x[0] for x in arrays] == [base + group.size * (i + turn) for i in range(4)]

    ranks(body)


def test_a_rank_may_make_the_same_call_in_the_ordinary_way(ranks):
    def body(group):
        x = np.zeros(20000)
        kept = PersistentAllReduce(group, x, "mean")
        for turn in range(4):
            x[...] = group.rank + turn
            if group.rank == turn % 2:
                group.all_reduce(x, "mean", out=x, async_op=True).wait()
            else:
                kept.start().wait()
            assert (x == turn + (group.size - 1) / 2).all()

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("other", ["verb", "shape", "op", "weight"])
def test_another_call_on_some_rank_is_told_on_all(ranks, other):
    calls = {
        "verb": lambda g: g.broadcast(np.ones(20000), async_op=True),
        "shape": lambda g: g.all_reduce(np.ones(5), "mean", async_op=True),
        "op": lambda g: PersistentAllReduce(g, np.ones(20000), "sum").start(),
        "weight": lambda g: g.all_reduce(np.ones(20000), "mean", weight=2, async_op=True),
    }

    def body(group):
        x = np.full(20000, group.rank + 1.0)
        kept = PersistentAllReduce(group, x, "mean")
        kept.start().wait()
        x[...] = group.rank
        work = calls[other](group) if group.rank == 1 else kept.start()
        with pytest.raises(MismatchError, match="disagree"):
            work.wait()
        assert (x == group.rank).all()  # nothing was moved
        kept.start().wait()
        assert (x == (group.size - 1) / 2).all()
        still_works(group)

    ranks(body)


@pytest.mark.sizes(2)
def test_it_is_begun_again_only_when_it_has_ended(ranks):
    def body(group):
        x = np.ones(300000)
        kept = PersistentAllReduce(group, x, "sum")
        if group.rank == 0:
            work = kept.start()
            with pytest.raises(ArgumentError, match=r"begun again before it ended \[rank 0/2"):
                kept.start()
            group.send(0, 1)
            work.wait()
        else:
            group.recv(0)
            kept.start().wait()
        assert (x == 2).all()
        kept.start().wait()
        assert (x == 4).all()

    ranks(body)


def test_what_all_reduce_refuses_is_refused(ranks):
    def body(group):
        with pytest.raises(ArgumentError, match="op"):
            PersistentAllReduce(group, np.ones(3), "median")
        fixed = np.ones(3)
        fixed.flags.writeable = False
        with pytest.raises(ArgumentError, match="read-only"):
            PersistentAllReduce(group, fixed, "sum")
        still_works(group)

    ranks(body)


@pytest.mark.sizes(2)
def test_a_failed_group_refuses_it(ranks):
    def body(group):
        own = group.split(group.rank)
        kept = PersistentAllReduce(own, np.ones(3), "sum")
        kept.start().wait()
        own.close()
        with pytest.raises(GroupFailed, match="closed"):
            kept.start()
        still_works(group)

    ranks(body)


@pytest.mark.threads_only
@pytest.mark.sizes(2)
def test_a_rank_that_does_not_begin_it_is_named_at_the_deadline(ranks):
    over = threading.Event()

    def body(group):
        kept = PersistentAllReduce(group, np.ones(5000), "sum")
        kept.start().wait()
        if group.rank == group.size - 1:
            over.wait(30)
        else:
            with pytest.raises(CollectiveTimeout, match=rf"missing: \[{group.size - 1}\]"):
                kept.start().wait()
            over.set()
        with pytest.raises(GroupFailed, match=r"has given up|the group is failed, because of"):
            kept.start().wait()

    ranks(body, timeout=0.3)


def test_callbacks_may_be_set_by_the_thread_that_waits_or_another(ranks):
    def body(group):
        x, seen = np.ones(2000), []
        kept = PersistentAllReduce(group, x, "max")
        for _ in range(20):
            work = kept.start()
            work.on_done(lambda w: seen.append(threading.get_ident()))
            work.wait()
            assert isinstance(work, Work)
        assert len(seen) == 20

    ranks(body)

"""Asynchronous calls: Work, read-only arrays, order, errors that nobody waited for."""

import gc
import os
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm import world
from hpcpar.comm.work import Work
from hpcpar.comm.world import run_ranks
from hpcpar.errors import CollectiveTimeout, MismatchError, UnsupportedError

VERBS = {
    "all_reduce": lambda g, x, **how: g.all_reduce(x, **how),
    "all_reduce tree": lambda g, x, **how: g.all_reduce({"a": x, "b": [1.0, x[:2]]}, **how)["a"],
    "reduce": lambda g, x, **how: g.reduce(x, root=g.size - 1, **how),
    "scan": lambda g, x, **how: g.scan(x, exclusive=True, **how),
    "reduce_scatter": lambda g, x, **how: g.reduce_scatter(x, **how),
    "half": lambda g, x, **how: g.all_reduce(x.astype(np.float16), **how),
    "broadcast": lambda g, x, **how: g.broadcast(x, **how),
    "all_gather": lambda g, x, **how: g.all_gather(x[g.rank :], **how),
    "gather": lambda g, x, **how: g.gather(x, **how),
    "scatter": lambda g, x, **how: g.scatter(x, **how),
    "all_to_all": lambda g, x, **how: g.all_to_all(x, **how),
    "permute": lambda g, x, **how: g.permute(x, [(0, g.size - 1)], **how),
    "barrier": lambda g, x, **how: g.barrier(**how),
}


@pytest.mark.parametrize("verb", [v for v in VERBS if "tree" not in v])
def test_results_are_those_of_the_blocking_call(ranks, verb):
    def body(group):
        call, x = VERBS[verb], np.arange(1000.0) * (group.rank + 1)
        blocking = call(group, x)
        work = call(group, x, async_op=True)
        assert isinstance(work, hp.Work)
        result = work.wait()
        assert work.done()
        assert work.exception() is None
        assert work.wait() is result
        assert type(result) is type(blocking)
        assert np.array_equal(result, blocking) or result is None

    ranks(body)


def in_flight(group, start, check):
    """Start on every rank, the last one only when the others have looked; return the result."""
    last = group.size - 1
    if group.rank == last:
        for _ in range(last):
            group.recv(tag=7)
        return start().wait()
    work = start()
    check()
    group.send(0, last, tag=7)
    return work.wait()


def refuses_writes(*arrays):
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 9


@pytest.mark.sizes(2, 3)
def test_arrays_are_read_only_in_flight_and_writable_after(ranks):
    def body(group):
        n, x = group.size, np.ones(1000)
        total = in_flight(
            group, lambda: group.all_reduce(x, async_op=True), lambda: refuses_writes(x)
        )
        assert (total == n).all()
        x[:] = 2
        tree = {"a": np.ones(5), "b": [np.ones(5)]}
        leaves = (tree["a"], tree["b"][0])
        start = lambda: group.all_reduce(tree, async_op=True)  # noqa: E731
        got = in_flight(group, start, lambda: refuses_writes(*leaves))
        assert (got["b"][0] == n).all()
        assert all(leaf.flags.writeable for leaf in leaves)
        start = lambda: group.all_reduce(x, out=x, async_op=True)  # noqa: E731
        assert in_flight(group, start, lambda: refuses_writes(x)) is x
        assert (x == 2 * n).all()
        x[:] = 3

    ranks(body)


OUT = {
    "all_reduce": lambda g, x, out, **how: g.all_reduce(x, out=out, **how),
    "scan": lambda g, x, out, **how: g.scan(x, out=out, **how),
    "broadcast": lambda g, x, out, **how: g.broadcast(x, out=out, **how),
    "reduce_scatter": lambda g, x, out, **how: g.reduce_scatter(
        x, sizes=(6,) * g.size, out=out, **how
    ),
    "scatter": lambda g, x, out, **how: g.scatter(x, sizes=(6,) * g.size, out=out, **how),
    "all_gather": lambda g, x, out, **how: g.all_gather(x[: 6 // g.size], out=out, **how),
    "all_to_all": lambda g, x, out, **how: g.all_to_all(x, out=out, **how),
    "permute": lambda g, x, out, **how: g.permute(
        x, [(r, r) for r in range(g.size)], out=out, **how
    ),
}
LIKE_X = ("all_reduce", "scan", "broadcast", "all_to_all", "permute")


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("verb", OUT)
def test_out_is_read_only_in_flight_and_right_after(ranks, verb):
    def body(group):
        x = np.arange(6.0 * group.size) + group.rank
        blocking = np.zeros_like(x) if verb in LIKE_X else np.zeros(6)
        out = np.zeros_like(blocking)
        OUT[verb](group, x, blocking)
        start = lambda: OUT[verb](group, x, out, async_op=True)  # noqa: E731
        assert in_flight(group, start, lambda: refuses_writes(out)) is out
        assert (out == blocking).all()
        out[:] = 1

    ranks(body)


def test_read_only_arrays_stay_so(ranks):
    def body(group):
        x = np.ones(10)
        x.flags.writeable = False
        assert (group.all_reduce(x, async_op=True).wait() == group.size).all()
        assert not x.flags.writeable

    ranks(body)


def test_one_array_in_several_operations(ranks):
    """The last one to end makes the array, and the views of it, writable again."""

    def body(group):
        x = np.arange(50_000.0)
        view = x[1:]
        works = [group.all_reduce(view, async_op=True), group.all_reduce(x, async_op=True)]
        works += [group.broadcast(x, async_op=True), group.all_gather(view, async_op=True)]
        results = [work.wait() for work in works]
        assert results[1][-1] == 49_999 * group.size
        assert x.flags.writeable
        assert view.flags.writeable
        for pair in ((x, view), (view, x)):
            for work in [group.all_reduce(a, async_op=True) for a in pair]:
                work.wait()
            assert x.flags.writeable
            assert view.flags.writeable

    ranks(body)


@pytest.mark.sizes(2)
def test_data_changed_too_early_cannot_reach_the_peer(ranks):
    def body(group):
        if group.rank == 0:
            x = np.full(400_000, 1.0)
            work = group.send(x, 1, async_op=True)
            changed = True
            try:
                x[:] = 9
            except ValueError:
                changed = False
            work.wait()
            group.send(changed, 1)
        else:
            time.sleep(0.05)
            assert (group.recv(0) == 1.0).all()
            group.recv(0)
        buckets = [np.full(10_000, 1.0), np.full(10_000, 2.0)]
        pool = np.empty(10_000)
        for bucket in buckets:  # one buffer, used again as soon as it is free
            pool[:] = bucket
            assert (group.all_reduce(pool, async_op=True).wait() == 2 * bucket[0]).all()

    ranks(body)


def test_many_operations_end_in_order(ranks):
    def body(group):
        ended = []
        works = [group.all_reduce(np.full(i, i), async_op=True) for i in range(60)]
        for i, work in enumerate(works):
            work.on_done(lambda work, i=i: ended.append(i))
        assert [int(work.wait().sum()) for work in works] == [i * i * group.size for i in range(60)]
        assert ended[-1] == 59
        late = []
        works[0].on_done(late.append)
        assert late == [works[0]]

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_groups_progress_independently(ranks):
    """The ranks issue and wait in other orders on two groups; no order is needed between them."""

    def body(group):
        first, second = group, group.subgroup(range(group.size)[::-1])
        x = np.full(1000, group.rank)
        total = sum(range(group.size))
        if group.rank == 0:
            works = [g.all_reduce(x, async_op=True) for g in (first, second)]
            results = [work.wait() for work in works[::-1]]
        else:
            results = [g.all_reduce(x, async_op=True).wait() for g in (second, first)]
        assert all((r == total).all() for r in results)
        order = [first, second] if group.rank % 2 else [second, first]
        works = [g.all_reduce(x + i, async_op=True) for i in range(30) for g in order]
        for i, work in enumerate(works):
            assert (work.wait() == total + group.size * (i // 2)).all()
        second.close()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_blocking_and_asynchronous_calls_mix(ranks):
    def body(group):
        n, right, left = group.size, (group.rank + 1) % group.size, (group.rank - 1) % group.size
        came = group.recv(left, async_op=True)  # before anything is sent
        work = group.all_reduce(np.ones(100_000), async_op=True)
        assert group.all_reduce(np.ones(10)).tolist() == [n] * 10
        assert group.all_gather(group.rank).tolist() == list(range(n))
        group.send(np.arange(3000), right)
        assert came.wait().tolist() == list(range(3000))
        assert (work.wait() == n).all()

    ranks(body)


@pytest.mark.sizes(2)
def test_wait_with_a_timeout_may_be_repeated(ranks):
    def body(group):
        if group.rank == 0:
            work = group.recv(1, async_op=True)
            assert not work.done()
            assert work.exception() is None
            with pytest.raises(CollectiveTimeout, match=r"recv: wait: not done after 0.05 s"):
                work.wait(0.05)
            group.barrier()
            assert work.wait(10) == 3
        else:
            group.barrier()
            group.send(3, 0)

    ranks(body)


def test_errors_are_raised_by_wait(ranks):
    def body(group):
        bad = group.size - 1
        work = group.broadcast(np.ones(3 if group.rank == bad else 4), async_op=True, root=0)
        if group.size == 1:
            work.wait()
            return
        with pytest.raises(MismatchError, match=r"broadcast: rank \d gave .*\[rank "):
            work.wait()
        assert isinstance(work.exception(), MismatchError)
        assert group.all_reduce(1) == group.size  # claimed: nothing is left to raise
        with pytest.raises(UnsupportedError):  # what is known at once is raised at once
            group.all_reduce("text", async_op=True)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_an_error_nobody_waited_for_is_raised_by_the_next_call(ranks):
    def body(group):
        wrong = np.ones(3 if group.rank == 0 else 4)
        for _ in range(2):
            work = group.broadcast(wrong, async_op=True)
            while not work.done():
                time.sleep(1e-3)
            del work
            with pytest.raises(MismatchError):
                group.all_reduce(np.ones(2), out=np.ones(2))
            assert group.all_reduce(1) == group.size

    ranks(body)


def test_a_dropped_work_is_done_all_the_same(ranks):
    def body(group):
        x, out = np.full(100_000, 1.0), np.zeros(100_000)
        gone = weakref.ref(group.all_reduce(x, out=out, async_op=True))
        group.all_reduce(np.ones(3), async_op=True)
        gc.collect()
        group.all_reduce(np.ones(1), async_op=True).wait()
        assert (out == group.size).all()
        gc.collect()
        assert gone() is None
        assert x.flags.writeable

    ranks(body)


def test_callbacks_that_raise_do_not_stop_the_others(ranks, caplog):
    def body(group):
        work = group.all_reduce(np.ones(100_000), async_op=True)
        seen = threading.Event()
        work.on_done(lambda work: 1 / 0)
        work.on_done(lambda work: seen.set())
        work.wait()
        assert seen.wait(10)
        assert group.all_reduce(np.ones(2), async_op=True).wait()[0] == group.size

    ranks(body)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.threads_only
def test_shutdown_raises_what_nobody_waited_for():
    def body(group):
        group.broadcast(np.ones(3 + group.rank), async_op=True)
        with pytest.raises(MismatchError):
            hp.shutdown()
        hp.shutdown()

    run_ranks(2, body)


@pytest.mark.threads_only
def test_the_end_of_run_ranks_waits_and_raises():
    def dropped(group):
        if group.rank == 0:
            group.all_reduce(np.ones(2), async_op=True)
            return None
        time.sleep(0.05)
        return group.all_reduce(np.ones(2), async_op=True).wait()[0]

    assert run_ranks(2, dropped) == [None, 2.0]
    with pytest.raises(MismatchError):
        run_ranks(2, lambda g: g.broadcast(np.ones(3 + g.rank), async_op=True))


@pytest.mark.sizes(2, 3)
def test_headers_that_are_too_long_travel_apart_from_blocking_calls(ranks):
    """A tree of many arrays needs a second exchange; it belongs to the asynchronous lane."""

    def body(group):
        tree = {f"array number {i}": np.full(i + 1, group.rank + 1.0) for i in range(40)}
        total = group.size * (group.size + 1) / 2
        for turn in range(20):
            work = group.all_reduce(tree, async_op=True)
            if turn % 2 == group.rank % 2:
                time.sleep(0.002)
            assert group.all_reduce(1) == group.size
            result = work.wait()
            assert all((result[f"array number {i}"] == total).all() for i in range(40))

    ranks(body)


class Countdown:
    """A flow that ends at its third look and rings no bell."""

    def __init__(self):
        self.looks = 0
        self.work = Work("test", None)

    def advance(self):
        self.looks += 1
        if self.looks == 3:
            self.work.finish(None, None)
        return self.looks >= 3

    def is_rung(self):
        return False


@pytest.mark.threads_only
def test_a_rank_with_one_core_has_no_thread_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    progress = world._progress(True, None, 0)
    assert not progress.threaded
    flows = [Countdown(), Countdown()]
    for number, flow in enumerate(flows):
        progress.submit(number, flow)
    for flow in flows:
        progress.drive(flow.work, 5.0)
        assert flow.looks == 3
    (said,) = caplog.records
    assert "one core" in said.getMessage()
    assert "wait() and done()" in said.getMessage()
    quiet = world._progress(True, None, 1)
    quiet.submit(0, Countdown())
    assert len(caplog.records) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4})
    assert world._progress(True, None, 0).threaded
    assert not world._progress(False, None, 0).threaded


@pytest.mark.sizes(2)
@pytest.mark.threads_only
def test_calls_of_several_threads_do_not_disturb_the_communication_thread():
    def body(group):
        others = [group.subgroup([group.rank]), group.subgroup(range(group.size))]

        def call(own):
            for _ in range(400):
                assert own.all_reduce(np.ones(2), async_op=True).wait(20)[0] == own.size

        threads = [threading.Thread(target=call, args=(own,)) for own in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run_ranks(2, body)
    finally:
        sys.setswitchinterval(before)

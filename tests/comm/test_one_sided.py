"""put, get, fetch_add, signal and wait_signal between ranks that share memory."""

import gc
import threading
import time

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.errors import ArgumentError, CollectiveTimeout, RankFailed, UnsupportedError
from hpcpar.testing import run_ranks

symmetric = hp.symmetric
pytestmark = pytest.mark.sizes(2, 3, 4)


def engine_only(body):
    """Wrap a body for groups that share memory; others refuse, which has its own test."""

    def wrapped(group):
        if group.backend in ("node", "threads"):
            body(group)

    return wrapped


@pytest.mark.parametrize("dtype", ["float64", "int8", "complex64"])
def test_put_and_get_reach_the_same_place_of_another_rank(ranks, dtype):
    @engine_only
    def body(group):
        x = symmetric.zeros((4, 5), dtype, group=group)
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        symmetric.put(x[1:3], np.full((2, 5), group.rank + 1), right, group=group)
        symmetric.put(x[3], group.rank + 7, right, group=group)
        group.barrier()
        assert x[0].tolist() == [0] * 5
        assert (x[1:3] == left + 1).all()
        assert (x[3] == left + 7).all()
        assert (symmetric.get(x[1:], right, group=group)[0] == group.rank + 1).all()
        out = np.empty(5, dtype)
        assert symmetric.get(x[3], right, out=out, group=group) is out
        assert (out == group.rank + 7).all()
        assert symmetric.get(x, group.rank, group=group).tobytes() == x.tobytes()
        group.barrier()

    ranks(body)


def test_ranks_of_a_subgroup_are_meant_by_their_place_in_it(ranks):
    @engine_only
    def body(group):
        turned = group.subgroup(list(reversed(range(group.size))))
        x = symmetric.zeros(1, group=group)
        symmetric.put(x, group.rank + 1, 0, group=turned) if group.rank == 0 else None
        group.barrier()
        assert x[0] == (group.rank == group.size - 1)

    ranks(body)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_every_ticket_is_drawn_once(ranks, dtype):
    @engine_only
    def body(group):
        counter = symmetric.zeros(3, dtype, group=group)
        mine = [symmetric.fetch_add(counter[1:2], 1, 0, group=group) for _ in range(200)]
        assert mine == sorted(mine)
        drawn = group.all_gather(np.array(mine), sizes="equal")
        assert sorted(drawn.tolist()) == list(range(200 * group.size))
        if group.rank == 0:
            assert counter.tolist() == [0, 200 * group.size, 0]
        group.barrier()

    ranks(body)


def test_sums_wrap_and_may_be_negative(ranks):
    @engine_only
    def body(group):
        x = symmetric.zeros(2, "int64", group=group)
        u = symmetric.zeros((), "uint64", group=group)
        assert symmetric.fetch_add(x[1:], -5, group.rank, group=group) == 0
        assert symmetric.fetch_add(x[1:], 2, group.rank, group=group) == -5
        assert x.tolist() == [0, -3]
        assert symmetric.fetch_add(u, -1, group.rank, group=group) == 0
        assert symmetric.fetch_add(u, 1, group.rank, group=group) == 2**64 - 1
        group.barrier()

    ranks(body)


def test_what_was_put_is_there_with_the_signal(ranks):
    @engine_only
    def body(group):
        data = symmetric.zeros(5000, group=group)
        ready = symmetric.zeros(1, "int64", group=group)
        right = (group.rank + 1) % group.size
        for turn in range(1, 30):
            symmetric.put(data, turn * (group.rank + 1), right, group=group)
            symmetric.signal(ready, turn, right, group=group)
            assert symmetric.wait_signal(ready, turn, group=group) == turn
            assert (data == turn * ((group.rank - 1) % group.size + 1)).all()
            group.barrier()  # before it is overwritten

    ranks(body)


def test_signals_that_add_are_counted(ranks):
    @engine_only
    def body(group):
        come = symmetric.zeros(1, "uint64", group=group)
        for rank in range(group.size):
            symmetric.signal(come, 1, rank, add=True, group=group)
        assert symmetric.wait_signal(come, group.size, compare="eq", group=group) == group.size
        group.barrier()

    ranks(body)


@pytest.mark.parametrize(
    ("compare", "before", "value"),
    [
        ("eq", -1, -1),
        ("ne", 0, 3),
        ("ge", -3, -3),
        ("gt", -2, -3),
        ("le", -3, -3),
        ("lt", -4, -3),
    ],
)
def test_numbers_are_compared_with_their_sign(ranks, compare, before, value):
    @engine_only
    def body(group):
        x = symmetric.zeros(1, "int64", group=group)
        x[0] = before
        assert symmetric.wait_signal(x, value, compare=compare, group=group) == before
        x[0] = {"eq": 0, "ne": 3, "ge": -4, "gt": -3, "le": -2, "lt": -3}[compare]
        with pytest.raises(CollectiveTimeout):
            symmetric.wait_signal(x, value, compare=compare, timeout=0.01, group=group)
        group.barrier()

    ranks(body)


def test_who_waits_sleeps_until_it_is_woken(ranks):
    @engine_only
    def body(group):
        x = symmetric.zeros(1, "int64", group=group)
        if group.rank == 0:
            time.sleep(0.1)
            for rank in range(1, group.size):
                symmetric.signal(x, 1, rank, group=group)
        else:
            began = time.thread_time()
            symmetric.wait_signal(x, 1, group=group)
            assert time.thread_time() - began < 0.05
        group.barrier()

    ranks(body)


def test_a_signal_that_does_not_come_is_named_at_the_deadline(ranks):
    @engine_only
    def body(group):
        x = symmetric.zeros(1, "int64", group=group)
        x[0] = 4
        with pytest.raises(CollectiveTimeout, match=r"is 4, and not ge 5 after 0.05 s \[rank "):
            symmetric.wait_signal(x, 5, timeout=0.05, group=group)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.threads_only
def test_who_waits_for_ranks_that_have_all_left_is_told():
    def body(group):
        x = symmetric.zeros(1, "int64", group=group)
        if group.rank == 0:
            with pytest.raises(RankFailed, match="has left"):
                symmetric.wait_signal(x, 1, group=group)

    run_ranks(2, body)


# -- refusals ------------------------------------------------------------------------------


def test_what_is_no_place_is_refused(ranks):
    @engine_only
    def body(group):
        other = (group.rank + 1) % group.size
        x = symmetric.zeros((4, 4), "int64", group=group)
        for place, text in (
            (np.zeros(3), "has no copy"),
            (x.T, "C-contiguous"),
            (x[:, 1], "C-contiguous"),
            ([1.0], "C-contiguous"),
        ):
            with pytest.raises(ArgumentError, match=f"symmetric.put: .*{text}"):
                symmetric.put(place, 1, other, group=group)
            with pytest.raises(ArgumentError, match=f"symmetric.get: .*{text}"):
                symmetric.get(place, other, group=group)
        for rank in (-1, group.size, 1.5, True):
            with pytest.raises(ArgumentError, match=r"symmetric\.put: rank"):
                symmetric.put(x, 1, rank, group=group)
        for word in (x[0], np.zeros(1, "int32"), 3):
            with pytest.raises(ArgumentError, match="one element, int64 or uint64"):
                symmetric.fetch_add(word, 1, other, group=group)
            with pytest.raises(ArgumentError, match="one element, int64 or uint64"):
                symmetric.signal(word, 1, other, group=group)
        with pytest.raises(ArgumentError, match="aligned"):
            symmetric.signal(x.view("int8").ravel()[1:9].view("int64"), 1, other, group=group)
        with pytest.raises(ArgumentError, match="compare 'above'"):
            symmetric.wait_signal(x[:1, 0], 1, compare="above", group=group)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.sizes(3, 4)
def test_a_rank_without_a_part_in_it_is_refused(ranks):
    @engine_only
    def body(group):
        pair = group.subgroup([0, 1])
        if group.rank < 2:
            x = symmetric.zeros(4, group=pair)
            with pytest.raises(ArgumentError, match="rank 2 has no copy"):
                symmetric.put(x, 1, 2, group=group)
            pair.barrier()

    ranks(body)


@pytest.mark.sizes(2)
def test_a_copy_that_was_dropped_is_refused(ranks):
    @engine_only
    def body(group):
        x = symmetric.zeros(4, group=group)
        if group.rank == 1:
            del x
            gc.collect()
        group.barrier()
        if group.rank == 0:
            with pytest.raises(ArgumentError, match="has dropped it"):
                symmetric.get(x, 1, group=group)
        group.barrier()

    ranks(body)


def test_ranks_without_shared_memory_are_told(ranks):
    def body(group):
        if group.backend in ("node", "threads"):
            return
        x = symmetric.zeros(1, "int64", group=group)
        other = (group.rank + 1) % group.size
        for call in (
            lambda: symmetric.put(x, 1, other, group=group),
            lambda: symmetric.get(x, other, group=group),
            lambda: symmetric.fetch_add(x, 1, other, group=group),
            lambda: symmetric.signal(x, 1, other, group=group),
            lambda: symmetric.wait_signal(x, 1, group=group),
        ):
            with pytest.raises(UnsupportedError, match="share no memory"):
                call()
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_other_threads_go_on_while_one_waits(ranks):
    @engine_only
    def body(group):
        x = symmetric.zeros(1, "int64", group=group)
        done = threading.Event()
        waiter = threading.Thread(
            target=lambda: (symmetric.wait_signal(x, 1, group=group), done.set())
        )
        waiter.start()
        assert group.all_reduce(2) == 2 * group.size
        assert not done.is_set()
        group.barrier()
        symmetric.signal(x, 1, (group.rank + 1) % group.size, group=group)
        waiter.join(timeout=20)
        assert done.is_set()
        group.barrier()

    ranks(body)

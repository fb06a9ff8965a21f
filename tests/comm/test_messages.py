"""Point to point: what is sent arrives as it was, in order, whoever asks for it and how."""

import gc
import os
import time

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm.backend import Arrived, Operation
from hpcpar.comm.matching import Matching
from hpcpar.comm.record import VERBS, Entry
from hpcpar.errors import ArgumentError, CollectiveTimeout, UnsupportedError
from hpcpar.testing import run_ranks


def neighbours(group):
    return (group.rank + 1) % group.size, (group.rank - 1) % group.size


@pytest.mark.parametrize("count", [0, 1, 511, 513, 100_000], ids=str)
@pytest.mark.parametrize("dtype", ["f8", ">i4", "U4", "i1,f8"])
def test_a_ring_of_every_size(ranks, count, dtype):
    """Small messages ride in the header, large ones follow it."""

    def body(group):
        right, left = neighbours(group)
        x, wanted = [np.arange(count + r).astype(dtype) for r in (group.rank, left)]
        got = group.sendrecv(x, right, left, tag=3)
        assert got.dtype == wanted.dtype.newbyteorder("=")
        assert (got == wanted).all()
        assert got.shape == wanted.shape
        works = [group.send(x, right, async_op=True), group.recv(left, async_op=True)]
        assert (works[1].wait() == wanted).all()
        assert works[0].wait() is None

    ranks(body)


@pytest.mark.sizes(2, 3, 4)
def test_messages_of_one_source_keep_their_order(ranks):
    def body(group):
        right, left = neighbours(group)
        works = []
        for i in range(20):  # asynchronous and blocking, small and large, mixed
            x = np.full(5 if i % 3 else 5000, i)
            if i % 2 or x.size > 5:
                works.append(group.send(x, right, async_op=True))
            else:
                group.send(x, right)
        assert [int(group.recv(left)[0]) for _ in range(20)] == list(range(20))
        for work in works:
            work.wait()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_receives_get_messages_in_the_order_of_their_calls(ranks):
    def body(group):
        right, left = neighbours(group)
        for wild in (left, None):
            works = [group.recv(wild, async_op=True) for _ in range(3)]
            works.append(group.recv(left, tag=0, async_op=True))
            group.barrier()
            for i in range(5):
                group.send(np.array(i), right)
            assert int(group.recv(left)) == 4
            assert [int(work.wait()) for work in works] == [0, 1, 2, 3]

    ranks(body)


def test_tags_pick_messages(ranks):
    def body(group):
        right, left = neighbours(group)
        works = [group.send(np.array(t), right, tag=t, async_op=True) for t in (5, 2**28 - 1, 0)]
        assert int(group.recv(left, tag=0)) == 0
        assert int(group.recv(left, tag=2**28 - 1)) == 2**28 - 1
        assert int(group.recv(tag=5)) == 5
        for work in works:
            work.wait()

    ranks(body)


@pytest.mark.sizes(2, 3, 4)
def test_any_source(ranks):
    def body(group):
        if group.rank:
            group.send(np.arange(group.rank * 1000), 0, tag=group.rank)
        else:
            got = sorted(len(group.recv()) for _ in range(group.size - 1))
            assert got == [r * 1000 for r in range(1, group.size)]
        group.barrier()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_probe_tells_and_leaves(ranks):
    def body(group):
        right, left = neighbours(group)
        assert group.probe() is None
        group.barrier()
        group.send(np.zeros((2, 3), np.float32), right, tag=7)
        while (found := group.probe(left, tag=7)) is None:
            time.sleep(1e-3)
        assert found == (left, 7, np.dtype("f4"), (2, 3))
        assert group.probe(tag=8) is None
        assert group.probe() == found
        assert group.recv(found.src, tag=found.tag).shape == found.shape
        assert group.probe() is None
        group.barrier()

    ranks(body)


@pytest.mark.parametrize("count", [6, 6000])
@pytest.mark.sizes(2)
def test_out_receives_in_place(ranks, count):
    def body(group):
        peer = 1 - group.rank
        base = np.zeros((count, 2))
        outs = [np.zeros(count), base[:, 1], np.zeros(count)[::-1], np.zeros(count, ">f8")]
        for out in outs:
            x = np.arange(count) + 10.0 * group.rank
            work = group.send(x, peer, async_op=True)
            assert group.recv(peer, out=out) is out
            assert out.tolist() == (np.arange(count) + 10.0 * peer).tolist()
            work.wait()
            assert group.sendrecv(x, peer, peer, out=x) is x
            assert x.tolist() == out.tolist()
        assert not base[:, 0].any()

    ranks(body)


@pytest.mark.parametrize("count", [6, 6000])
@pytest.mark.sizes(2)
def test_a_wrong_out_loses_the_message_and_nothing_else(ranks, count):
    def body(group):
        peer = 1 - group.rank
        works = [group.send(np.full(count, i), peer, async_op=True) for i in range(4)]
        for out in (np.zeros(count + 1, int), np.zeros(count), np.zeros((count, 1), int)):
            with pytest.raises(ArgumentError, match=rf"recv from rank {peer}: out has .*\[rank "):
                group.recv(peer, out=out)
        assert (group.recv(peer) == 3).all()
        for work in works:
            work.wait()
        assert group.probe() is None

    ranks(body)


@pytest.mark.parametrize("count", [1, 3000, 200_000])
@pytest.mark.sizes(2, 3)
def test_calls_like_earlier_ones_move_their_own_arrays(ranks, count):
    """The second call of a kind may take a shorter way."""

    def body(group):
        right, left = neighbours(group)
        out, x = np.zeros(count), np.zeros(count)
        for i in range(5):
            x[:] = 100 * i + group.rank
            if group.rank == 0:
                group.send(x, right)
                assert group.recv(left, tag=0, out=out) is out
            else:
                assert group.recv(left, tag=0, out=out) is out
                group.send(x, right)
            assert (out == 100 * i + left).all()
        last = {VERBS[e.verb]: e for e in (Entry(*r) for r in group.recorder.last(2))}
        assert (last["send"].peer, last["recv"].peer) == (right, left)
        assert (last["send"].sent, last["send"].received) == (8 * count, 0)
        assert (last["recv"].sent, last["recv"].received) == (0, 8 * count)

    ranks(body)


@pytest.mark.parametrize("count", [3, 3000, 200_000])
@pytest.mark.sizes(2, 3)
def test_a_known_receive_gets_something_else(ranks, count):
    """What does not fit is refused as ever, and the next message comes."""

    def body(group):
        right, left = neighbours(group)
        out = np.zeros(count)
        for other in (np.ones(count + 1), np.ones(count, int), np.ones((1, count))):
            works = [group.send(np.full(count, 7.0), right, async_op=True) for _ in range(3)]
            for _ in works:
                group.recv(left, tag=0, out=out)
            works += [group.send(x, right, async_op=True) for x in (other, np.full(count, 8.0))]
            with pytest.raises(ArgumentError, match=rf"recv from rank {left}: out has "):
                group.recv(left, tag=0, out=out)
            assert (out == 7).all()
            assert (group.recv(left, tag=0, out=out) == 8).all()
            for work in works:
                work.wait()
        assert group.state == "ok"

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_a_long_message_that_nobody_takes_in_time_is_withdrawn(ranks):
    """Through MPI it cannot be called back: it goes to the next receive."""

    def body(group):
        right, left = neighbours(group)
        x = np.arange(2_000_000.0) + group.rank
        with pytest.raises(CollectiveTimeout, match=rf"send: .*missing: \[{right}\].*\[rank "):
            group.send(x, right, timeout=0.05)
        work = group.send(x, right, timeout=0.05, async_op=True)
        with pytest.raises(CollectiveTimeout):
            work.wait()
        group.barrier()
        for _ in range(2 if group.backend == "mpi" else 0):
            assert group.recv(left)[1] == 1 + left
        work = group.send(group.rank, right, async_op=True)
        assert group.recv(left) == left
        work.wait()
        assert group.state == "ok"

    ranks(body)


@pytest.mark.sizes(2)
def test_everybody_sends_first(ranks):
    """Long messages wait for their receivers, and go on while this rank waits for others."""

    def body(group):
        peer = 1 - group.rank
        x = np.arange(600_000.0) + group.rank
        works = [group.send(x + i, peer, tag=i, async_op=True) for i in range(3)]
        for i in (2, 0, 1):
            assert (group.recv(peer, tag=i) == np.arange(600_000.0) + peer + i).all()
        for work in works:
            work.wait()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_more_messages_than_a_ring_holds_to_who_waits_for_something_else(ranks):
    """In a collective, and in a long send of its own."""

    def body(group):
        if group.backend == "mpi":
            return  # how much MPI takes before it waits is its own affair
        right, left = neighbours(group)
        if group.rank == 0:
            group.barrier()
            work = group.send(np.ones(300_000), right, async_op=True)
            group.barrier()
            group.send(np.full(300_000, 2.0), right)
            assert [int(group.recv(left)) for _ in range(3000)] == list(range(3000))
            work.wait()
        elif group.rank == group.size - 1:
            for i in range(1500):
                group.send(i, 0)
            group.barrier()
            group.barrier()
            for i in range(1500, 3000):
                group.send(i, 0)
            if left == 0:
                assert group.recv(0)[0] == 1
                assert group.recv(0)[0] == 2
        else:
            group.barrier()
            group.barrier()
            assert group.recv(0)[0] == 1
            assert group.recv(0)[0] == 2

    ranks(body)


@pytest.mark.sizes(2)
def test_many_long_messages_are_received_last_first(ranks):
    """More than there are buffers; a short one behind them."""

    def body(group):
        count, peer = 100, 1 - group.rank
        if group.rank == 0:
            works = [group.send(np.full(4000, i), peer, tag=i, async_op=True) for i in range(count)]
            group.send(5, peer, tag=count)
            for work in works:
                work.wait()
        else:
            assert group.recv(peer, tag=count) == 5
            for i in reversed(range(count)):
                assert (group.recv(peer, tag=i) == np.full(4000, i)).all()

    ranks(body)


@pytest.mark.sizes(2)
def test_kinds_of_long_messages_mixed(ranks):
    """Transfers of symmetric arrays are used again for others, and the other way round."""

    def body(group):
        peer, random = 1 - group.rank, np.random.default_rng(5)
        shared = [hp.symmetric.empty(30_000, group=group) for _ in range(4)]
        for round in range(60):
            works = []
            for i in range(4):
                x = shared[i] if random.integers(2) else np.empty(30_000)
                x[:] = 100 * round + i + group.rank / 2
                works.append(group.send(x, peer, async_op=True))
            for i in range(4):
                assert (group.recv(peer) == 100 * round + i + peer / 2).all()
            for work in works:
                work.wait()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_a_sendrecv_that_fails_takes_no_later_message(ranks):
    def body(group):
        right, left = neighbours(group)
        out = np.zeros(3)
        for _ in range(3):
            group.sendrecv(np.ones(3), right, left, out=out)
        group.barrier()
        if group.rank == 0:
            with pytest.raises(CollectiveTimeout):
                group.sendrecv(np.ones(300_000), right, left, tag=1, timeout=0.05)
        group.barrier()
        if group.backend != "mpi":
            with pytest.raises(UnsupportedError, match="one by one"):
                group.sendrecv(np.zeros(1, [(f"f{i}", "i4") for i in range(2000)]), right, left)
        work = group.send(7 + group.rank, right, tag=2, async_op=True)
        assert group.recv(left, tag=2) == 7 + left
        work.wait()
        works = [group.send(np.ones(4), right, tag=3, async_op=True)]
        with pytest.raises(ArgumentError, match=rf"from rank {left}: out has .*"):
            group.sendrecv(np.ones(3), right, left, tag=3, out=out)
        assert (group.recv(left, tag=3) == np.ones(3)).all()
        works[0].wait()
        if group.backend == "mpi" and group.rank == 1:
            group.recv(left, tag=1)

    ranks(body)


@pytest.mark.sizes(2)
def test_probe_tells_nothing_of_what_is_withdrawn(ranks):
    def body(group):
        if group.backend == "mpi":
            return  # it cannot be called back there
        if group.rank == 0:
            with pytest.raises(CollectiveTimeout):
                group.send(np.ones(300_000), 1, timeout=0.05)
        group.barrier()
        if group.rank == 1:
            assert group.probe(0) is None
            with pytest.raises(CollectiveTimeout, match=r"recv: .*unknown"):
                group.recv(timeout=0.05)
        group.barrier()

    ranks(body)


@pytest.mark.sizes(2)
def test_a_known_receive_from_anybody_says_that_nothing_came(ranks):
    def body(group):
        out = np.zeros(3)
        if group.rank == 0:
            for _ in range(3):
                group.send(np.ones(3), 1)
        else:
            for _ in range(3):
                group.recv(out=out)
            with pytest.raises(CollectiveTimeout, match=r"at the deadline.*\[rank 1/2"):
                group.recv(out=out)
        with group.without_deadline():
            group.barrier()
        assert group.state == "ok"

    ranks(body, timeout=1.5)


@pytest.mark.sizes(2)
def test_what_comes_after_a_group_was_closed_blocks_nobody(ranks):
    def body(group):
        if group.backend == "mpi":
            return  # an unreceived message of a freed communicator is MPI's own affair
        for _ in range(70):
            pair = group.subgroup([0, 1])
            if pair is group:
                return
            if group.rank == 0:
                pair.send(np.ones(4000), 1)
            pair.close()
        group.barrier()
        if group.rank == 0:
            group.send(np.ones(4000), 1)
        else:
            assert group.recv(0).sum() == 4000

    ranks(body)


@pytest.mark.threads_only
def test_a_receive_from_anybody_ends_when_one_of_several_fails():
    def body(group):
        if group.rank == 1:
            raise ValueError("of rank 1")
        group.recv(None if group.rank == 0 else 0)

    began = time.monotonic()
    with pytest.raises(ValueError, match="of rank 1"):
        run_ranks(3, body)
    assert time.monotonic() - began < 10


@pytest.mark.threads_only
def test_a_forked_child_withdraws_nothing():
    def body(group):
        if group.rank == 0:
            work = group.send(np.full(300_000, 3.0), 1, async_op=True)
            child = os.fork()
            if child == 0:
                del work
                gc.collect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            group.barrier()
            work.wait()
        else:
            group.barrier()
            assert (group.recv(0) == 3).all()

    run_ranks(2, body)


@pytest.mark.sizes(2, 3)
def test_symmetric_arrays_are_sent_from_where_they_lie(ranks):
    def body(group):
        right, left = neighbours(group)
        x = hp.symmetric.empty(300_000, group=group)
        y = hp.symmetric.empty(300_000, group=group)
        for i in range(3):
            x[:] = np.arange(300_000) * (i + 1) + group.rank
            work = group.send(x[1:], right, async_op=True)
            group.recv(left, out=y[1:])
            work.wait()
            assert (y[1:] == np.arange(1, 300_000) * (i + 1) + left).all()
        group.barrier()

    ranks(body)


@pytest.mark.sizes(2)
def test_a_dtype_with_many_fields(ranks):
    def body(group):
        peer = 1 - group.rank
        for fields in (20, 2000):
            x = np.zeros(3, [(f"field_{i}", "i4") for i in range(fields)])
            x["field_3"] = group.rank
            if fields > 20 and group.backend != "mpi":
                with pytest.raises(UnsupportedError, match=r"bytes to describe.*one by one"):
                    group.send(x, peer)
            else:
                assert (group.sendrecv(x, peer, peer)["field_3"] == peer).all()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_messages_do_not_mix_with_collectives(ranks):
    def body(group):
        right, left = neighbours(group)
        for count in (3, 3000):
            x = np.arange(count) + group.rank
            work = group.send(x, right, async_op=True)
            got = group.all_to_all(np.arange(group.size) + 10 * group.rank)
            assert got.tolist() == [10 * r + group.rank for r in range(group.size)]
            assert (group.all_reduce(np.ones(3, np.float16)) == group.size).all()
            assert group.gather(x[:2], root=0) is None or group.rank == 0
            assert (group.recv(left) == np.arange(count) + left).all()
            work.wait()

    ranks(body)


def test_to_myself(ranks):
    def body(group):
        me = group.rank
        assert group.sendrecv(np.arange(3), me, me).tolist() == [0, 1, 2]
        work = group.send(np.arange(5000), me, async_op=True)
        assert group.recv(me).tolist() == list(range(5000))
        work.wait()
        with pytest.raises(ArgumentError, match="cannot receive while it sends"):
            group.send(np.ones(1), me)

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_a_receive_that_times_out_leaves_the_group_usable(ranks):
    def body(group):
        peer = group.size - 1 - group.rank
        with pytest.raises(CollectiveTimeout, match=rf"recv: .*missing: \[{peer}\].*\[rank "):
            group.recv(peer, timeout=0.05)
        with pytest.raises(CollectiveTimeout, match="unknown"):
            group.recv(tag=1, timeout=0.05)
        work = group.recv(peer, timeout=0.05, async_op=True)
        with pytest.raises(CollectiveTimeout):
            work.wait()
        assert group.state == "ok"
        group.barrier()
        send = group.send(np.array(4), peer, async_op=True)  # not for those that gave up
        assert int(group.recv(peer)) == 4
        send.wait()

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_permute(ranks):
    def body(group):
        n, me = group.size, group.rank
        x = np.arange(me + 1) * 10 + me  # shapes may differ
        assert group.permute(x, []) is None
        got = group.permute(x, [(0, n - 1)])
        assert (None if got is None else got.tolist()) == ([0] if me == n - 1 else None)
        right = [(r, (r + 1) % n) for r in range(n)]
        left = (me - 1) % n
        assert group.permute(x, right).tolist() == (np.arange(left + 1) * 10 + left).tolist()
        y = np.full(3, me)
        assert group.permute(y, right, out=y) is y
        assert y.tolist() == [left] * 3
        assert group.permute(1.5 * me, right) == 1.5 * left

    ranks(body)


@pytest.mark.sizes(2)
def test_objects_travel(ranks):
    def body(group):
        peer = 1 - group.rank
        thing = {"rank": group.rank, "x": [np.arange(3), "text", None]}
        assert group.all_gather_object(group.rank) == [0, 1]
        assert group.gather_object("a" * group.rank, root=1) in (None, ["", "a"])
        assert group.scatter_object([[0], [1]] if group.rank == 0 else None) == [group.rank]
        swapped = group.all_to_all_object([(group.rank, r) for r in (0, 1)])
        assert swapped[peer] == (peer, group.rank)
        assert hp.broadcast_object(thing, group=group)["rank"] == 0
        if group.rank == 0:
            group.send_object(thing, 1, tag=2)
        else:
            assert group.recv_object(0, tag=2)["x"][1] == "text"
        assert group.broadcast_object({"": 1} if group.rank else None, root=1) == {"": 1}

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_what_cannot_travel_is_named_on_every_rank(ranks):
    def body(group):
        bad = [0, object()] if group.rank == 0 else [0]
        each = [bad] * group.size
        for verb, call in {
            "broadcast_object": lambda: group.broadcast_object(bad),
            "scatter_object": lambda: group.scatter_object(each),
            "all_gather_object": lambda: group.all_gather_object(bad),
            "gather_object": lambda: group.gather_object(bad),
            "all_to_all_object": lambda: group.all_to_all_object(each),
        }.items():
            own = rf"obj\[1\] is a builtins.object.*\[rank 0/{group.size}, group "
            told = (
                rf"(root 0 refused: {own}|the object of rank 0 cannot be sent \[rank {group.rank}/)"
            )
            with pytest.raises(UnsupportedError, match=f"^{verb}: {told if group.rank else own}"):
                call()
        assert group.all_gather_object(group.rank) == list(range(group.size))

    ranks(body)


def test_a_receive_at_its_deadline_may_still_take_its_message():
    """A later receive has put it out of the line, and then its message comes."""
    matching, late, next_one = Matching(), Operation("recv"), Operation("recv", tag=1)
    late.deadline = time.monotonic() - 1
    matching.post(late)
    matching.post(next_one)
    letters = [Arrived(0, 7, "", None), Arrived(0, 1, "", None)]
    assert matching.take(late, letters) == 0
    assert matching.take(next_one, letters[1:]) == 0

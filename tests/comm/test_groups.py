"""Groups: made by their members only, cached by ranks, freed, nested, the default in a block."""

import os
import re
import threading
import time

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm import launch
from hpcpar.comm.world import run_ranks
from hpcpar.errors import ArgumentError, GroupFailed, RankFailed

ON_MPI = launch.is_launched(os.environ)


@pytest.mark.sizes(4)
def test_disjoint_groups_are_made_by_their_members_only(ranks):
    def body(group):
        mine = [0, 3] if group.rank in (0, 3) else [1, 2]
        sub = group.subgroup(mine)
        assert sub.all_reduce(10**group.rank) == (1001 if 0 in mine else 110)
        group.barrier()
        sub.close()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_members_are_in_the_order_given(ranks):
    def body(group):
        n = group.size
        back = group.subgroup(range(n)[::-1])
        assert (back.rank, back.size) == (n - 1 - group.rank, n)
        assert back.ranks == tuple(group.ranks[::-1])
        assert back.all_gather(group.rank).tolist() == list(range(n))[::-1]
        assert back.broadcast(group.rank, root=0) == n - 1
        assert back is group.subgroup(list(range(n))[::-1])
        inner = back.subgroup([0])  # global rank n - 1, whatever group it is asked from
        assert inner.ranks == (group.ranks[n - 1],)
        again = group.subgroup([n - 1])
        assert inner is again or inner.rank == -1
        for made in (inner, again, back, back):
            made.close()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_names_say_where_a_group_comes_from(ranks):
    def body(group):
        pair = group.subgroup([1, 0])
        assert pair.name == f"{group.name}[1,0]"
        if group.rank < 2:
            assert repr(pair).startswith(f"<Group '{group.name}[1,0]' rank {1 - group.rank}/2 ")
            with pytest.raises(ArgumentError, match=re.escape(f"group '{pair.name}'")):
                pair.all_reduce(np.ones(2), "no op")
        pair.close()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_who_is_outside_cannot_call(ranks):
    def body(group):
        sub = group.subgroup([0])
        if group.rank:
            assert (sub.rank, sub.size, sub.mpi_comm) == (-1, 1, None)
            for call in (
                lambda: sub.all_reduce(1),
                lambda: sub.barrier(async_op=True),
                lambda: sub.send(1, 0),
                lambda: sub.split(0),
                lambda: sub.subgroup([0]),
                lambda: sub.node,
                lambda: sub.all_gather_object(1),
            ):
                with pytest.raises(ArgumentError, match="this rank is not in the group"):
                    call()
        else:
            assert sub.all_reduce(1) == 1
        sub.close()
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.parametrize("members", [[], [0, 0], [-1], [9], [0.0], [True], "0", None, 1])
def test_member_lists_are_checked(ranks, members):
    def body(group):
        with pytest.raises(ArgumentError, match=r"subgroup: .*\[rank "):
            group.subgroup(members)
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_split_by_color_and_key(ranks):
    def body(group):
        n, me = group.size, group.rank
        half = group.split(me % 2, key=-me)
        wanted = [r for r in range(n)[::-1] if r % 2 == me % 2]
        assert half.ranks == tuple(group.ranks[r] for r in wanted)
        assert half.all_reduce(10**me) == sum(10**r for r in wanted)
        ties = group.split(7, key=0)
        assert ties.ranks == group.ranks
        some = group.split(None if me == 0 else 1)
        assert some is None if me == 0 else some.size == n - 1
        alone = group.split(me, key=2**40)
        assert alone.size == 1
        for made in (half, ties, some, alone):
            if made is not None:
                made.close()
        for color in (1.5, "a", True, 2**63):
            with pytest.raises(ArgumentError, match="split: color"):
                group.split(color)
        with pytest.raises(ArgumentError, match="split: key"):
            group.split(0, key=0.5)
        assert group.all_reduce(1) == n

    ranks(body)


@pytest.mark.parametrize("keep", [False, True], ids=["let go", "keep"])
@pytest.mark.sizes(2)
def test_three_thousand_groups(ranks, keep):
    """More than an MPI has communicators: they are freed, and equal requests share one."""

    def body(group):
        made = []
        for _ in range(3000 if keep else 2100):
            sub = group.subgroup([1, 0])
            if keep:
                made.append(sub)
            else:
                assert sub.all_reduce(1) == 2
                sub.close()
        assert all(sub is made[0] for sub in made)
        for sub in made:
            assert sub.state == "ok"
            sub.close()
        assert sub.state == "closed"
        with pytest.raises(GroupFailed, match=r"all_reduce: the group is closed.*\[rank "):
            sub.all_reduce(1)
        assert group.all_reduce(1) == 2

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_a_group_of_all_ranks_may_be_closed(ranks):
    def body(group):
        again = group.subgroup(range(group.size))
        again.close()
        assert group.state == "ok"
        if not ON_MPI:
            with pytest.raises(ArgumentError, match=r"close: the world ends with hp.shutdown\(\)"):
                group.close()
        with group.subgroup(range(group.size)) as inner:
            assert inner is hp.as_group()
        inner.close()
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_two_threads_may_be_in_one_group_at_once():
    """Each has its own default group, in whatever order they leave."""
    group, inside, second = hp.as_group(), threading.Event(), threading.Event()
    found = []

    def first():
        with group:
            inside.set()
            second.wait(10)
            found.append(hp.as_group() is group)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    with group:
        second.set()
        thread.join(10)
        assert hp.as_group() is group
    assert found == [True]


@pytest.mark.sizes(2, 3)
def test_with_makes_a_group_the_default(ranks):
    def body(group):
        sub = group.split(group.rank // 2)
        assert (hp.rank(), hp.size()) == (group.rank, group.size)
        with sub:
            assert hp.all_reduce(1) == hp.size() == sub.size
            with group:
                assert hp.all_reduce(1) == group.size
            assert hp.as_group() is sub
            assert hp.all_reduce(1, group=group) == group.size
        assert hp.size() == group.size
        sub.close()

    ranks(body)


def test_the_node_is_a_group(ranks):
    def body(group):
        assert group.node.size == group.size  # one machine
        assert group.node is group.node
        assert group.node.all_reduce(1) == group.size
        if group.size > 1:
            sub = group.split(group.rank % 2)
            assert sub.node.ranks == sub.ranks
            sub.close()

    ranks(body)


@pytest.mark.sizes(2)
def test_two_threads_on_one_group_are_refused(ranks):
    def body(group):
        pair, got = group.subgroup([1, 0]), []
        if group.rank == 0:
            thread = threading.Thread(target=lambda: got.append(group.recv(1)))
            thread.start()
            while group.recorder.oldest_open() is None:
                time.sleep(1e-3)
            with pytest.raises(ArgumentError, match=r"another thread is in a call .*\[rank 0/2"):
                group.all_reduce(1)
            pair.barrier()
            thread.join(10)
            assert got == [5]
        else:
            pair.barrier()
            group.send(5, 0)
        assert group.all_reduce(1) == 2
        pair.close()

    ranks(body)


def communication_threads():
    return sum(t.name == "hpcpar-comm" for t in threading.enumerate())


@pytest.mark.skipif(not ON_MPI, reason="needs an mpi4py communicator")
def test_groups_of_communicators_are_cached_and_freed_with_them(ranks):
    def body(group):
        from mpi4py import MPI

        before = communication_threads()
        for _ in range(30):
            comm = group.mpi_comm.Dup()
            own = hp.as_group(comm)
            assert own is hp.as_group(comm)
            assert own is hp.as_group(own)
            assert own.mpi_comm != comm
            assert own.all_reduce(1) == comm.Get_size()
            assert own.all_reduce(np.ones(2), async_op=True).wait()[0] == comm.Get_size()
            comm.Free()
            assert own.state == "closed"
        assert communication_threads() <= before + 1
        for wrong in (MPI.COMM_NULL, "world", 3):
            with pytest.raises(ArgumentError, match="as_group: comm"):
                hp.as_group(wrong)

    ranks(body)


@pytest.mark.threads_only
def test_a_world_of_one_needs_no_start():
    assert hp.as_group().size == 1
    with pytest.raises(ArgumentError, match="as_group: comm is a str"):
        hp.as_group("world")


@pytest.mark.threads_only
def test_run_ranks_raises_the_first_cause():
    def body(group):
        if group.rank == 1:
            raise KeyError("mine")
        group.barrier()

    with pytest.raises(KeyError, match="mine") as caught:
        run_ranks(3, body)
    assert "[rank 1/3]" in caught.value.__notes__

    def leave(group):
        return None if group.rank == 1 else group.barrier()

    with pytest.raises(RankFailed, match=r"rank 1 has left and is missing here \[rank 0/2"):
        run_ranks(2, leave)
    with pytest.raises(RankFailed, match="rank 1 has left"):
        run_ranks(2, lambda g: None if g.rank == 1 else g.recv())
    senders = run_ranks(3, lambda g: g.send(1, 0) if g.rank == 1 else g.rank or g.recv())
    assert senders == [1, None, 2]
    for wrong in (0, -1, 1.0, True, None):
        with pytest.raises(ArgumentError, match=f"run_ranks: num_ranks {wrong!r}"):
            run_ranks(wrong, body)


@pytest.mark.threads_only
def test_abort_reaches_the_others():
    def body(group):
        if group.rank == 0:
            group.abort(ValueError("enough"))
        with pytest.raises(GroupFailed, match="enough"):
            group.barrier()
        return group.state

    assert run_ranks(2, body)[0] == "failed"

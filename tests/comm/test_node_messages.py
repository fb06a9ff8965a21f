"""Messages between ranks of a node end when the other side dies, whoever else is waited for."""

import time

import pytest

from hpcpar.comm.backend import Operation
from hpcpar.comm.node_messages import WatchedMessages
from hpcpar.errors import RankFailed


class Carrier:
    """Moves no message; fails as MPI does where `error` is set."""

    name, rank, size, mpi_comm = "stub", 0, 4, None
    error = None

    def __init__(self, size=4):
        self.size = size
        self.came = set()

    def start(self, op):
        self.test(op)

    def test(self, op):
        if self.error is not None:
            raise self.error
        return op in self.came

    def subgroup(self, ranks):
        return Carrier(len(ranks))


def receive(src):
    return Operation("recv", root=src)


def until_failed(messages, *ops, seconds=5.0):
    """Test the operations by turns, as the communication thread does; return who failed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for op in ops:
            try:
                assert not messages.test(op)
            except RankFailed as error:
                return op, str(error)
        time.sleep(0.001)
    return None


def test_a_death_is_seen_behind_a_message_that_is_late():
    messages = WatchedMessages(Carrier(), (10, 11, 12, 13), lambda rank: rank == 12)
    late, lost, any_of = receive(1), receive(2), receive(None)
    failed, text = until_failed(messages, late, any_of, lost)
    assert failed is lost
    assert text == "rank 2 has left or died, and no message can come or go."


def test_a_receive_from_anybody_ends_when_all_others_are_dead():
    dead = {11, 12}
    messages = WatchedMessages(Carrier(), (10, 11, 12, 13), dead.__contains__)
    assert until_failed(messages, receive(None), seconds=0.2) is None
    dead.add(13)
    assert until_failed(messages, receive(None))[1].startswith("ranks [1, 2, 3] have left or died")


def test_what_has_come_is_taken_from_the_dead():
    carrier = Carrier()
    messages, op = WatchedMessages(carrier, (10, 11, 12, 13), lambda rank: True), receive(2)
    carrier.came.add(op)
    assert messages.test(op)


def test_a_rank_waits_for_itself_and_a_subgroup_for_its_own():
    messages = WatchedMessages(Carrier(), (10, 11, 12, 13), lambda rank: rank == 13)
    assert until_failed(messages, receive(0), seconds=0.2) is None
    pair = messages.subgroup([0, 3])
    assert until_failed(pair, receive(1))[1].startswith("rank 1 has left or died")


def test_an_error_of_mpi_names_the_dead_and_is_kept_where_nobody_is():
    carrier, dead = Carrier(), set()
    messages = WatchedMessages(carrier, (10, 11, 12, 13), dead.__contains__)
    carrier.error = RuntimeError("MPI_ERR_PROC_FAILED")
    with pytest.raises(RuntimeError, match="MPI_ERR_PROC_FAILED"):
        messages.start(receive(1))
    dead.add(12)
    with pytest.raises(RankFailed, match="rank 2 has left or died") as caught:
        messages.start(receive(1))
    assert caught.value.__cause__ is carrier.error
    dead.add(11)
    with pytest.raises(RankFailed, match="rank 2 has left or died"):  # the one that it needs
        messages.start(receive(2))
    with pytest.raises(RankFailed, match=r"ranks \[1, 2\] have left or died"):
        messages.start(receive(3))

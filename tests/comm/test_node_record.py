"""The flight record in a window: read by the other ranks of the node, after its owner's end too."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcpar.comm.bootstrap import Board, ThreadBootstrap
from hpcpar.comm.handover import open_windows
from hpcpar.comm.node_place import NodePlace
from hpcpar.comm.record import describe_newest, verb_code
from hpcpar.comm.tuning import Tuning
from hpcpar.comm.where import add_last, last_lines, place
from hpcpar.errors import RankFailed

ALL_REDUCE, FLOAT32 = verb_code("all_reduce"), 12
HERE = "test_node_record.py"
SECOND = 10**9


@pytest.fixture
def windows():
    board = Board(2, timeout=20)
    with ThreadPoolExecutor(2) as pool:
        boots = [ThreadBootstrap(board, rank) for rank in range(2)]
        found = list(pool.map(lambda boot: open_windows(boot, {}, length=1 << 30), boots))
    yield found
    for each in found:
        each.close()


def run_one(recorder, done=True):
    ticket = recorder.begin(0, ALL_REDUCE, FLOAT32, 4096, 4, -1)
    if done:
        recorder.end(ticket)


def test_ranks_read_each_others_records(windows):
    first = NodePlace(windows[0], 2, Tuning())
    assert first.last_of(1) is None  # it has no record yet
    second = NodePlace(windows[1], 2, Tuning())
    assert first.last_of(1) == "no operation"
    second.recorder.add_group("world", 1, 2)
    run_one(second.recorder)
    said = first.last_of(1)
    assert re.match(rf"world #0 all_reduce float32\[4096\] 16\.0 KiB at {HERE}:\d+ done ", said)
    assert said.endswith(" us (0.0 s ago)")
    run_one(second.recorder, done=False)
    said = first.last_of(1)
    assert said == second.last_of(1)
    assert re.fullmatch(rf"world #1 .* at {HERE}:\d+ not done, begun 0\.0 s ago", said)
    second.close()
    assert first.last_of(1) == said
    assert second.last_of(1) is None


def test_a_record_outlives_its_window(windows):
    one = NodePlace(windows[0], 2, Tuning())
    one.recorder.add_group("world", 0, 2)
    run_one(one.recorder)
    one.close()
    run_one(one.recorder)
    one.recorder.detach()  # again
    assert one.recorder.add_group("late", 0, 2) == 1
    assert [entry[1] for entry in one.recorder.last(8)] == [0, 1]
    assert one.recorder.totals()[0][:3] == (0, ALL_REDUCE, 2)


def test_many_groups_take_memory_as_they_come(windows):
    one = NodePlace(windows[0], 2, Tuning())

    def taken():
        return os.fstat(windows[0].fileno()).st_blocks * 512

    begin = taken()
    for i in range(3):
        one.recorder.add_group(f"g{i}", 0, 2)
    assert taken() == begin
    for i in range(100):
        one.recorder.add_group(f"h{i}", 0, 2)
        run_one(one.recorder)
    assert begin + 100_000 < taken() < begin + 120_000
    assert len(one.recorder.groups()) == 103


class Record:
    """Says what it was told to."""

    def __init__(self, entries, groups):
        self.entries, self.seen = entries, groups

    def last(self, n):
        return self.entries[-n:]

    def groups(self):
        return self.seen


def test_the_newest_operation_in_words():
    groups = [("tp", 1, 4, 18)]
    entry = (0, 17, ALL_REDUCE, FLOAT32, 4096, 4, -1, SECOND, SECOND + 42_000, 0, 0, 0, 0, "")
    told = describe_newest(Record([entry], groups), SECOND + 42_000 + 3_200_000_000)
    assert told == "tp #17 all_reduce float32[4096] 16.0 KiB done 42 us (3.2 s ago)"
    strange = (0, 3, 31, 999, 1, 1, -1, SECOND, 0, 0, 0, 0, 0, "")
    told = describe_newest(Record([entry, strange], groups), 3 * SECOND)
    assert told == "tp #3 (31) (999)[1] 0.0 KiB not done, begun 2.0 s ago"


def test_errors_tell_of_four_ranks_at_most_and_then_of_this_one():
    asked = []

    def last_of(rank):
        asked.append(rank)
        return None if rank == 3 else f"did {rank}"

    error = RankFailed("ranks are missing.")
    add_last(error, range(3, 12), last_of)
    assert asked == [3, 4, 5, 6]
    place(error, "[rank 0/12, group 'g']", "  g #1 barrier done 1 us")
    place(error, "[rank 0/12, group 'g']", "again")
    others, own = error.__notes__
    assert others == "rank 4 last: did 4\nrank 5 last: did 5\nrank 6 last: did 6"
    assert own == "last operations of this rank:\n  g #1 barrier done 1 us"
    silent = RankFailed("rank 3 is missing.")
    add_last(silent, [3], last_of)
    assert not hasattr(silent, "__notes__")
    assert last_lines([], last_of) == []

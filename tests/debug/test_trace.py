"""The trace file: pure placement of records on tracks, and the file of a real run."""

import json
from pathlib import Path

import numpy as np
import pytest

from hpcpar.comm.record import VERBS
from hpcpar.debug import RankRecord, trace, trace_events
from hpcpar.errors import ArgumentError

ALL_REDUCE = VERBS.index("all_reduce")


def entry(slot, seq, start, end, status=0):
    # slot, seq, verb, dtype (12 = float32), count, itemsize, peer, times, status, traffic, site
    return (slot, seq, ALL_REDUCE, 12, 10, 4, -1, start, end, status, 40, 40, 2, "train.py:9")


def of(events, kind):
    return [event for event in events if event["ph"] == kind]


def test_an_operation_has_its_time_its_place_and_its_facts():
    events = trace_events([RankRecord("a", 99, ["world"], [entry(0, 7, 2000, 5000)])])
    (operation,) = of(events, "X")
    assert (operation["name"], operation["cat"]) == ("all_reduce", "world")
    assert (operation["ts"], operation["dur"], operation["pid"]) == (2.0, 3.0, 0)
    assert operation["args"] == {
        "seq": 7,
        "dtype": "float32",
        "count": 10,
        "nbytes": 40,
        "sent": 40,
        "received": 40,
        "messages": 2,
        "state": "done",
        "site": "train.py:9",
    }
    names = {(e["name"], e["args"]["name"]) for e in of(events, "M")}
    assert names == {("process_name", "rank 0 on a"), ("thread_name", "world")}


def test_what_overlaps_gets_a_track_of_its_own():
    entries = [
        entry(0, 0, 10, 50),
        entry(0, 1, 20, 30),
        entry(0, 2, 35, 60),
        entry(0, 3, 50, 55),
        entry(1, 0, 20, 30),
    ]
    events = trace_events([RankRecord("a", 99, ["world", "tp"], entries)])
    tracks = [event["tid"] for event in of(events, "X")]
    assert tracks[0] == tracks[3] != tracks[1] == tracks[2]
    assert tracks[4] not in tracks[:4]
    names = [e["args"]["name"] for e in of(events, "M") if e["name"] == "thread_name"]
    assert names == ["world", "world (2)", "tp"]


def test_open_and_failed_operations_are_shown_as_such():
    entries = [entry(0, 0, 10_000, 0), entry(0, 1, 20_000, 30_000, status=1)]
    first, second = of(trace_events([RankRecord("a", 90_000, ["w"], entries)]), "X")
    assert (first["dur"], first["args"]["state"]) == (80.0, "not done")
    assert (second["dur"], second["args"]["state"]) == (10.0, "failed")


def test_clocks_of_other_machines_are_shifted_and_those_of_one_machine_are_not():
    records = [
        RankRecord("a", 1000, ["w"], [entry(0, 0, 500, 600)]),
        RankRecord("a", 1007, ["w"], [entry(0, 0, 500, 600)]),
        RankRecord("b", 71_000, ["w"], [entry(0, 0, 70_500, 70_600)]),
    ]
    assert [event["ts"] for event in of(trace_events(records), "X")] == [0.5, 0.5, 0.5]


def test_the_file_holds_the_operations_of_all_ranks(ranks, tmp_path):
    def body(group):
        folder = Path(group.broadcast_object(str(tmp_path)))  # each process has its own
        path = folder / "new" / f"trace{group.size}.json"
        for _ in range(3):
            group.all_reduce(np.ones(5))
        group.all_reduce(np.ones(7), async_op=True).wait()
        count = trace(path, group=group)
        events = json.loads(path.read_text())["traceEvents"]
        operations = of(events, "X")
        assert len(operations) == count
        for rank in range(group.size):
            mine = [e for e in operations if e["pid"] == rank and e["name"] == "all_reduce"]
            assert [e["args"]["count"] for e in mine][-4:] == [5, 5, 5, 7]
            assert all(e["dur"] >= 0 for e in mine)
        group.barrier()

    ranks(body)


def test_a_file_that_cannot_be_written_is_refused_on_all_ranks(ranks, tmp_path):
    (tmp_path / "file").touch()

    def body(group):
        with pytest.raises(ArgumentError, match=r"trace: path .*trace.json cannot be written"):
            trace(tmp_path / "file" / "trace.json", group=group)
        assert group.all_reduce(np.array([1]))[0] == group.size

    ranks(body)

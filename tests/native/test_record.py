"""Recorder and Ring as Python sees them."""

import inspect
import os

import numpy as np
import pytest

from hpcpar._core import Recorder, Ring


def begin(recorder, slot, verb=1, count=10):
    return recorder.begin(slot, verb, 11, count, 4, -1)


def test_a_record():
    recorder = Recorder()
    world, tp = recorder.add_group("world", 1, 4), recorder.add_group("tp", 0, 2)
    assert (world, tp) == (0, 1)
    ticket = recorder.begin(tp, 3, 11, 100, 4, 2)
    slot, seq, verb, dtype, count, itemsize, peer, start, end, *rest = recorder.oldest_open()
    assert (slot, seq, verb, dtype, count, itemsize, peer) == (tp, 0, 3, 11, 100, 4, 2)
    assert start > 0
    assert (end, *rest) == (0, 0, 0, 0, 0, "")
    recorder.sent(ticket, 400, 800, 2)
    recorder.sent(ticket, 4, 8, 1)
    recorder.end(ticket, -5)
    assert recorder.oldest_open() is None
    (record,) = recorder.last(8)
    assert record[:8] == (tp, 0, 3, 11, 100, 4, 2, start)
    assert record[8] >= start
    assert record[9:] == (-5, 404, 808, 3, "")
    assert recorder.totals() == [(tp, 3, 1, 404, 808, 3)]


def line_of_caller():
    return inspect.currentframe().f_back.f_lineno


def sites(recorder, count):
    return [entry[-1] for entry in recorder.last(count)]


def test_a_record_says_who_called():
    recorder = Recorder(own="/nowhere/")
    recorder.add_group("world", 0, 1)
    begin(recorder, 0)
    here = "test_record.py:"
    assert sites(recorder, 1) == [f"{here}{begin.__code__.co_firstlineno + 1}"]
    recorder.begin(0, 1, 11, 1, 4, -1), recorder.begin(0, 1, 11, 1, 4, -1)
    lines = [line_of_caller() - 1] * 2
    recorder.begin(0, 1, 11, 1, 4, -1)
    assert sites(recorder, 3) == [f"{here}{n}" for n in (*lines, lines[0] + 2)]


def test_our_own_files_are_nobodys_call_site():
    recorder = Recorder(own=os.path.dirname(__file__))
    recorder.add_group("world", 0, 1)
    begin(recorder, 0)
    assert sites(recorder, 1) == [
        "python.py:" + sites(recorder, 1)[0].partition(":")[2]
    ]  # pytest's
    nobody = Recorder(own="")  # every file begins so
    nobody.add_group("world", 0, 1)
    begin(nobody, 0)
    assert sites(nobody, 1) == [""]


def test_call_sites_of_much_code_and_of_strange_names():
    recorder = Recorder(own="/nowhere/")
    recorder.add_group("world", 0, 1)
    for number in range(300):  # more than are kept
        name = "/a/" + "n" * (number % 60) + f"{number}.py"
        scope = {"begin": begin, "recorder": recorder}
        exec(compile("\n" * number + "recorder.begin(0, 1, 11, 1, 4, -1)", name, "exec"), scope)
        (said,) = sites(recorder, 1)
        whole = f"{os.path.basename(name)}:{number + 1}"
        assert len(said.encode()) <= 39
        assert said == whole if len(whole) <= 39 else said.endswith(f":{number + 1}")
    for name in ("", "<string>", "\u00e9" * 30, "/only/folders/"):
        exec(compile("recorder.begin(0, 1, 11, 1, 4, -1)", name, "exec"), {"recorder": recorder})
        assert sites(recorder, 1)[0].endswith(":1")


def test_sequence_numbers_are_the_groups_own():
    recorder = Recorder()
    a, b = recorder.add_group("a", 0, 1), recorder.add_group("b", 0, 1)
    for slot in (a, b, a, a):
        recorder.end(begin(recorder, slot))
    assert [record[:2] for record in recorder.last(10)] == [(a, 0), (b, 0), (a, 1), (a, 2)]
    assert (recorder.seq(a), recorder.seq(b)) == (3, 1)


def test_totals_survive_the_wrap():
    recorder = Recorder(capacity=8)
    slot = recorder.add_group("world", 0, 1)
    slow = begin(recorder, slot, verb=2)
    for i in range(100):
        ticket = begin(recorder, slot, count=i)
        recorder.sent(ticket, i, 1, 1)
        recorder.end(ticket)
    assert [record[1] for record in recorder.last(1000)] == list(range(93, 101))
    assert [record[1] for record in recorder.last(2)] == [99, 100]
    assert recorder.last(0) == []
    recorder.sent(slow, 7, 7, 7)  # its record is gone
    recorder.end(slow)
    assert recorder.totals() == [(slot, 1, 100, 4950, 100, 100), (slot, 2, 1, 7, 7, 7)]
    assert all(record[10] == record[4] for record in recorder.last(8))


def test_oldest_open_is_the_earliest_start():
    recorder = Recorder(capacity=4)
    slot = recorder.add_group("world", 0, 1)
    tickets = [begin(recorder, slot, verb=v) for v in range(4)]
    assert recorder.oldest_open()[2] == 0
    recorder.end(tickets[0])
    recorder.end(tickets[2])
    assert recorder.oldest_open()[2] == 1
    begin(recorder, slot, verb=9)  # takes the first record's place
    recorder.end(tickets[1])
    assert recorder.oldest_open()[2] == 3


def test_refused_records():
    recorder = Recorder()
    with pytest.raises(ValueError, match="slot 0 is not a group"):
        begin(recorder, 0)
    slot = recorder.add_group("world", 0, 1)
    for arguments in [(-1, 0, 0), (slot, 32, 0), (slot, -1, 0), (slot, 0, 2**16)]:
        with pytest.raises(ValueError, match="begin: slot"):
            recorder.begin(*arguments, 1, 1, -1)
    with pytest.raises(TypeError, match="begin: takes 6"):
        recorder.begin(slot)
    with pytest.raises(TypeError):
        recorder.begin(slot, "all_reduce", 0, 1, 1, -1)
    for ticket in (0, -1, 1, 2**40):
        with pytest.raises(ValueError, match="was never given out"):
            recorder.end(ticket)
        with pytest.raises(ValueError, match="was never given out"):
            recorder.sent(ticket, 1, 1, 1)
    with pytest.raises(ValueError, match="seq: slot 1 is not a group"):
        recorder.seq(1)
    with pytest.raises(ValueError, match="last: n is -1"):
        recorder.last(-1)


@pytest.mark.parametrize("capacity", [0, -4, 12])
def test_refused_capacities(capacity):
    with pytest.raises(ValueError, match="needs a power of two"):
        Recorder(capacity)


def test_groups_are_limited():
    recorder = Recorder()
    for i in range(4096):
        assert recorder.add_group("g" * 100, 0, 1) == i
    with pytest.raises(RuntimeError, match="4096 groups at most"):
        recorder.add_group("one more", 0, 1)


def test_ring_carries_messages():
    ring = Ring(bytearray(256 + 256))
    assert ring.peek() is None
    for i in range(500):  # passes the end of the buffer many times
        message = bytes([i % 256]) * (i % 121)
        ring.reserve(len(message))[:] = message
        ring.commit(len(message))
        view = ring.peek()
        assert view.readonly
        assert bytes(view) == message
        ring.release(len(message))
    assert ring.peek() is None


def test_ring_is_full_then_not():
    ring = Ring(np.zeros(256 + 64, np.uint8))
    for text in (b"one", b"two", b"three", b"four"):
        ring.reserve(5)[: len(text)] = text
        ring.commit(len(text))
    assert ring.reserve(1) is None
    ring.release(3)
    assert ring.reserve(1) is not None


def test_ring_refuses():
    with pytest.raises(ValueError, match="too small"):
        Ring(bytearray(200))
    with pytest.raises(BufferError):
        Ring(bytes(1024))
    ring = Ring(bytearray(1024))
    with pytest.raises(ValueError, match="takes 248 at most"):
        ring.reserve(249)
    with pytest.raises(ValueError, match="not reserved"):
        ring.commit(0)
    ring.reserve(4)
    with pytest.raises(ValueError, match="commit the open one first"):
        ring.reserve(4)
    with pytest.raises(ValueError, match="not reserved"):
        ring.commit(5)
    ring.commit(4)
    with pytest.raises(ValueError, match="no message of 3 bytes"):
        ring.release(3)

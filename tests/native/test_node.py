"""Node, Team and NodeCall: the node engine for Python, with ranks that are threads."""

import errno
import mmap
import struct
import sys
import threading

import numpy as np
import pytest

from hpcpar._core import Node, NodeCall, Recorder, Team, node_sizes
from hpcpar.comm.window import LAYOUT_VERSION, MAGIC

LENGTH = 2 * node_sizes()["length"] // 4096 * 4096
CHUNK = 64 * 1024
TUNING = (CHUNK, CHUNK // 4, 100, 1 << 21, 1 << 62)
KEY, HEADER, FOREVER = 7, b"h" * 256, 1 << 62
BARRIER, EXCHANGE, ALL_REDUCE = 0, 1, 2
FLOAT64, SUM = 12, 0


def windows(size):
    made = []
    for rank in range(size):
        memory = mmap.mmap(-1, LENGTH, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        memory[:40] = struct.pack("<8sIi16sQ", MAGIC, LAYOUT_VERSION, rank, b"k" * 16, LENGTH)
        made.append(np.frombuffer(memory, np.uint8))
    return tuple(made)


def nodes(size):
    shared = windows(size)
    return [Node(shared, i, -1, (), 100, TUNING, False) for i in range(size)]


def teams(size, lane=0):
    made = nodes(size)
    areas = tuple(node.claim(KEY) for node in made)
    places = tuple(range(size))
    return [Team(n, places, areas, r, lane, 0, lambda: True) for r, n in enumerate(made)]


def failed(code, rank):
    return OSError(code, f"rank {rank}")


def call(team, verb=ALL_REDUCE, nbytes=24, number=1, ready=True, **how):
    agreed = (number, ready, how.get("header", HEADER), how.get("record"))
    scales = how.get("scales", (None, None))
    limit = how.get("limit", FOREVER)
    return NodeCall(team, verb, FLOAT64, SUM, -1, nbytes, ((), ()), scales, agreed, failed, limit)


def on_ranks(size, body):
    """Run ``body(team, rank)`` on threads; return what they return, or raise their first error."""
    outcomes = [None] * size

    def run(team, rank):
        try:
            outcomes[rank] = body(team, rank)
        except BaseException as error:
            outcomes[rank] = error

    threads = [
        threading.Thread(target=run, args=(team, rank)) for rank, team in enumerate(teams(size))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [3, 30_000])
def test_it_adds(size, count):
    def body(team, rank):
        x, out = np.arange(float(count)) + rank, np.empty(count)
        assert call(team, nbytes=x.nbytes)(x, out) is True
        return out

    want = size * np.arange(float(count)) + sum(range(size))
    assert all((got == want).all() for got in on_ranks(size, body))


def test_factors_and_a_divisor():
    def body(team, rank):
        x, out = np.full(3, 1.0 + rank), np.empty(3)
        call(team, scales=((2.0, 3.0), 4.0))(x, out)
        return out.tolist()

    assert on_ranks(2, body) == [[2.0] * 3] * 2


def test_begun_tested_and_waited_for():
    first, second = teams(2)
    x, out = np.ones(3), np.empty((2, 3))
    one, two = call(first), call(second)
    assert one.start(x, out[0]) is None
    assert one.missing() == [1]
    assert one.test() is None
    assert one.wait(1_000_000) is None
    assert two.start(x, out[1]) is True
    assert one.test() is True
    assert (out == 2).all()


def test_other_meanings_bring_the_headers():
    def body(team, rank):
        out = np.full(3, 9.0)
        mine = call(team, number=rank, header=bytes([65 + rank]) * 256)
        assert mine(np.ones(3), out) is False
        assert (out == 9).all()
        kept = team.take_headers()
        assert team.take_headers() is None
        assert call(team, BARRIER, 0)(None, None) is True
        return kept

    assert on_ranks(2, body) == [[b"A" * 256, b"B" * 256]] * 2


def test_the_number_of_the_operation_goes_into_the_header():
    recorder = Recorder()
    recorder.add_group("g", 0, 1)
    (team,) = teams(1)
    recorder.begin(0, 2, 13, 3, 8, -1)
    recorder.begin(0, 2, 13, 3, 8, -1)
    mine = call(team, EXCHANGE, 0, ready=False, record=(recorder, 0))
    assert mine(None, None) is False
    assert struct.unpack_from("<Q", mine.headers()[0], 32) == (1,)


def test_late_and_gone_ranks():
    first, _ = teams(2)
    with pytest.raises(TimeoutError) as late:
        call(first, limit=1_000_000)(np.ones(3), np.empty(3))
    assert late.value.errno == errno.ETIMEDOUT
    first, second = teams(2)
    waiting = call(first)
    assert waiting.start(np.ones(3), np.empty(3)) is None
    second.give_up(False)
    with pytest.raises(OSError, match="rank 1") as gone:
        waiting.wait(10**9)
    assert gone.value.errno == errno.ECANCELED


def test_areas_come_and_go():
    one, two = nodes(2)
    area = one.claim(KEY)
    assert two.find(0, KEY) == area
    assert two.find(1, KEY) is None
    assert not two.is_closed(0, area, KEY)
    one.close(area)
    assert two.is_closed(0, area, KEY)
    one.release(area)
    assert two.find(0, KEY) is None
    assert one.claim(KEY + 1) == area
    assert two.is_closed(0, area, KEY)
    assert not one.is_dead(1)  # there is no socket to tell
    assert not one.has_left(1)
    assert not one.is_gone(1)
    two.leave(False)
    assert one.has_left(1)
    assert one.is_gone(1)


def test_bad_arguments_are_refused():
    shared = windows(2)
    blank = np.zeros(LENGTH + 4096, np.uint8)
    blank = blank[-blank.ctypes.data % 4096 :][:LENGTH]
    for given in ((shared[0], blank), (shared[0], shared[1][:-4096]), ()):
        with pytest.raises(ValueError, match="no windows of this version"):
            Node(given, 0, -1, (), 0, TUNING, False)
    for chunk in (0, 64, 65 * 1024 + 1, 1 << 30):
        with pytest.raises(ValueError, match="bad chunk"):
            Node(shared, 0, -1, (), 0, (chunk, chunk, 100, 1, 1), False)
    with pytest.raises(ValueError, match="no windows"):
        Node(shared, 2, -1, (), 0, TUNING, False)
    with pytest.raises(TypeError, match="arrays of bytes"):
        Node((b"x", b"y"), 0, -1, (), 0, TUNING, False)
    node = Node(shared, 0, -1, (), 0, TUNING, False)
    with pytest.raises(ValueError, match="no rank of the node"):
        node.find(2, KEY)
    for members, areas, rank, lane in (((), (), 0, 0), ((0,), (0, 1), 0, 0), ((0,), (0,), 1, 0)):
        with pytest.raises(ValueError, match="out of range"):
            Team(node, members, areas, rank, lane, 0, lambda: True)
    with pytest.raises(ValueError, match="out of range"):
        Team(node, (0,), (0,), 0, 2, 0, lambda: True)
    (team,) = teams(1)
    with pytest.raises(ValueError, match="header"):
        call(team, header=b"short")
    with pytest.raises(TypeError, match="no Recorder"):
        call(team, record=(3, 0))
    with pytest.raises(TypeError, match="takes x and out"):
        call(team)(np.ones(3))


def test_nothing_is_leaked():
    header, error = bytes(256), lambda code, rank: None
    before = [sys.getrefcount(o) for o in (header, error)]
    for _ in range(3):
        (team,) = teams(1)
        for _ in range(3):
            agreed = (1, True, header, None)
            made = NodeCall(
                team, ALL_REDUCE, FLOAT64, SUM, -1, 24, ((), ()), (None, None), agreed, error, 9
            )
            made(np.ones(3), np.empty(3))
        del made, team, agreed
    assert [sys.getrefcount(o) for o in (header, error)] == before

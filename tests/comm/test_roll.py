"""Who failed, who left and who speaks: the guard's protocol over ranks as threads, without MPI."""

import collections
import dataclasses
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcpar.comm.channel import Channel
from hpcpar.comm.guard import Guard, Waiting, Watched, _exit_code, _is_consequence
from hpcpar.comm.roll import Departure, Failure, Kind, Pace, Roll
from hpcpar.errors import GroupFailed, MismatchError, RankFailed

PACE = Pace(period=0.02, gone=0.1, late=60.0, together=0.2, leave=0.3, yield_to=0.5)


class Aborted(BaseException):
    """The job was ended."""


class ThreadChannel(Channel):
    """A control channel between threads; `ended` collects who aborted with which code."""

    def __init__(self, rank, boxes, arrived, ended):
        self.rank, self.size, self.threads = rank, len(boxes), True
        self.boxes, self.arrived, self.ended = boxes, arrived, ended
        self.closed = False

    def send(self, dst, tag, data):
        self.boxes[dst].append((self.rank, tag, data))

    def receive(self):
        if self.ended:
            raise Aborted
        return self.boxes[self.rank].popleft() if self.boxes[self.rank] else None

    def arrive(self):
        self.arrived.add(self.rank)

    def all_arrived(self):
        return len(self.arrived) == self.size

    def alive(self):
        return True

    def on_finalize(self, call):
        self.finalize = call

    def abort(self, code):
        self.ended.append((self.rank, code))
        raise Aborted

    def close(self):
        self.closed = True


def channels(size):
    boxes = [collections.deque() for _ in range(size)]
    arrived, ended = set(), []
    return [ThreadChannel(rank, boxes, arrived, ended) for rank in range(size)]


def together(size, body):
    """Run body(roll, rank) on all ranks; return their results, "aborted" for those that ended."""
    made = channels(size)

    def on_rank(rank):
        try:
            return body(Roll(made[rank], PACE), rank)
        except Aborted:
            return "aborted"

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(on_rank, range(size)))
    return results, made[0].ended


def error(rank, kind=Kind.ERROR):
    return Failure(kind, 1, f"E{rank}", f"report of {rank}\nsecond line")


def test_ranks_that_fail_together_make_one_report(capsys):
    results, ended = together(4, lambda roll, rank: roll.fail(error(rank)))
    assert set(results) == {"aborted"}
    assert ended[0] == (0, 1)
    assert capsys.readouterr().err == (
        "[rank 0/4] report of 0\n[rank 0/4] second line\n"
        "[rank 0/4] failed too: rank 1 (E1), rank 2 (E2), rank 3 (E3)\n"
    )


def test_the_lowest_root_cause_speaks_and_consequences_are_not_named(capsys):
    kinds = [Kind.CONSEQUENCE, Kind.STUCK, Kind.ERROR, Kind.ERROR]
    _, ended = together(4, lambda roll, rank: roll.fail(error(rank, kinds[rank])))
    assert ended[0][0] == 2
    said = capsys.readouterr().err
    assert said.startswith("[rank 2/4] report of 2\n")
    assert said.endswith("failed too: rank 3 (E3)\n")


def test_consequences_alone_are_reported_too(capsys):
    _, ended = together(2, lambda roll, rank: roll.fail(error(rank, Kind.CONSEQUENCE)))
    assert ended[0][0] == 0
    assert "failed too: rank 1 (E1)" in capsys.readouterr().err


def test_a_root_cause_that_comes_later_is_waited_for(capsys):
    def body(roll, rank):
        time.sleep(0.1 * rank)
        roll.fail(error(rank, Kind.CONSEQUENCE if rank == 0 else Kind.ERROR))

    _, ended = together(2, body)
    assert ended[0][0] == 1
    assert "report of 0" not in capsys.readouterr().err


def test_a_rank_whose_launcher_is_gone_waits_for_nobody_to_speak(capsys, monkeypatch):
    channel, other = channels(2)
    roll = Roll(channel, dataclasses.replace(PACE, yield_to=1e6))
    Roll(other, PACE)._tell(error(1))
    launcher = os.getppid()
    monkeypatch.setattr("os.getppid", lambda: launcher + 1)
    with pytest.raises(Aborted):
        roll.fail(error(0, Kind.STUCK))
    assert channel.ended == [(0, 1)]
    assert capsys.readouterr().err == ""


def test_ranks_that_all_leave_end_quietly(capsys):
    def body(roll, rank):
        time.sleep(0.05 * rank)
        roll.leave(Departure(2 * (rank % 2), {}))

    results, ended = together(3, body)
    assert (results, ended, capsys.readouterr().err) == ([None] * 3, [], "")


def test_leaving_with_a_code_while_others_stay_ends_the_job(capsys):
    def body(roll, rank):
        if rank == 1:
            roll.leave(Departure(7, {}))
        time.sleep(1.0)

    results, ended = together(3, body)
    assert (results, ended) == ([None, "aborted", None], [(1, 7)])
    assert capsys.readouterr().err == (
        "[rank 1/3] left with exit code 7 while other ranks were still at work; the job ends.\n"
    )


def test_leaving_with_code_zero_waits_for_the_slow():
    left = []

    def body(roll, rank):
        time.sleep(0.8 * (rank == 2))
        left.append(rank)
        began = time.monotonic()
        roll.leave(Departure(0, {}))
        return time.monotonic() - began > 0.5

    results, ended = together(3, body)
    assert (results, ended, left[-1]) == ([True, True, False], [], 2)


def test_rank_0_tells_who_left_and_how_far_they_came():
    def body(roll, rank):
        if rank == 2:
            roll.leave(Departure(0, {"tp": 5, "dp": 1}))
            return None
        if rank == 1:
            while 2 not in roll.left():
                roll.ask("tp")
                time.sleep(0.01)
                roll.poll()
            found = roll.left()
            roll.leave(Departure(0, {}))
            return found
        roll.leave(Departure(0, {}))
        return None

    results, _ = together(3, body)
    assert results[1][2] == Departure(0, {"tp": 5})


@pytest.mark.parametrize(
    ("departure", "waiting", "stuck"),
    [
        (None, {}, False),
        (Departure(0, {"world": 3}), {"done": 3}, True),
        (Departure(0, {}), {"done": 0}, True),
        # It has done its part, as a leaf of a reduce whose root waits for somebody slower.
        (Departure(0, {"world": 4}), {"done": 3}, False),
        (Departure(0, {"world": 4}), {"done": 3, "key": "tp"}, True),
        (Departure(0, {"world": 9}), {"done": None}, True),
        (Departure(0, {}), {"ranks": (0, 2)}, False),
        # A receive from anybody: rank 2 may still send.
        (Departure(0, {}), {"done": None, "all_needed": False}, False),
        (Departure(0, {}), {"done": None, "all_needed": False, "ranks": (0, 1)}, True),
        (Departure(0, {}), {"seconds": 0.05}, False),
    ],
)
def test_the_watchdog_ends_only_what_a_leaver_blocks(departure, waiting, stuck, capsys):
    made = channels(3)
    values = {"text": "barrier #3", "seconds": 2.0, "ranks": (0, 1, 2), "limit": None}
    waiting = Waiting(**values | {"key": "world", "done": 3} | waiting)
    guard = Guard(made[0], Watched(lambda: waiting, int, dict, lambda: "  the last"), PACE)
    if departure is not None:
        Roll(made[1], PACE)._announce(departure)
    if not stuck:
        guard._inspect(waiting)
        assert made[0].ended == []
        return
    with pytest.raises(Aborted):
        guard._inspect(waiting)
    assert made[0].ended == [(0, 1)]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("[rank 0/3] RankFailed: barrier #3: rank 1 (exit code 0) has left")
    assert said[1:] == ["[rank 0/3] last operations of this rank:", "[rank 0/3]   the last"]


def test_the_watchdog_ends_an_operation_at_its_limit(capsys):
    made = channels(2)
    guard = Guard(made[0], Watched(lambda: None, int, dict, str), PACE)
    guard._inspect(Waiting("recv #1", 2.0, (1,), 3.0))
    with pytest.raises(Aborted):
        guard._inspect(Waiting("recv #1", 3.5, (1,), 3.0))
    assert "CollectiveTimeout: recv #1: not done within 3 s" in capsys.readouterr().err


def test_a_long_wait_is_logged_each_late_period(caplog):
    pace = Pace(gone=100.0, late=0.2)
    guard = Guard(channels(2)[1], Watched(lambda: None, int, dict, str), pace)
    began = time.monotonic()
    while time.monotonic() - began < 0.7:
        guard._inspect(Waiting("barrier #3", time.monotonic() - began, (0, 1), None))
        time.sleep(0.01)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["rank 1 waits in barrier #3 since 0 s"] * 2 + lines[2:]
    assert len(lines) == 3


class Alone:
    """A guard of a world of one, with an operation counter that tests set."""

    def __init__(self):
        self.begun = 0
        (self.channel,) = channels(1)
        watched = Watched(lambda: None, lambda: self.begun, dict, str)
        self.guard = Guard(self.channel, watched, PACE)


def test_uninstall_restores_every_hook():
    before = sys.excepthook, sys.exit, threading.active_count()
    alone = Alone()
    alone.guard.install()
    assert sys.excepthook != before[0]
    assert sys.exit != before[1]
    assert threading.active_count() == before[2] + 1
    alone.guard.uninstall()
    alone.guard.uninstall()
    assert (sys.excepthook, sys.exit, threading.active_count()) == before
    assert alone.channel.closed


def test_uninstall_leaves_the_hooks_of_others():
    alone = Alone()
    alone.guard.install()
    mine = sys.excepthook
    sys.excepthook = other = lambda *_: None
    try:
        alone.guard.uninstall()
        assert sys.excepthook is other
    finally:
        sys.excepthook = sys.__excepthook__
    assert mine is not other


def test_an_exception_on_its_way_out_keeps_the_hooks():
    alone = Alone()
    alone.guard.install()
    hook = sys.excepthook
    with pytest.raises(ValueError, match="boom"):
        try:
            raise ValueError("boom")
        finally:
            alone.guard.uninstall()
    assert sys.excepthook is hook
    alone.guard.uninstall()
    assert sys.excepthook is not hook


def test_the_end_of_mpi_disarms():
    before = sys.excepthook
    alone = Alone()
    alone.guard.install()
    alone.channel.finalize()
    assert sys.excepthook is before
    assert not alone.channel.closed


@pytest.mark.parametrize(("more", "code"), [(0, 3), (1, 0)])
def test_exit_codes_are_forgotten_when_the_script_goes_on(more, code, monkeypatch):
    alone = Alone()
    left = []
    monkeypatch.setattr(alone.guard._roll, "leave", lambda said, _: left.append(said) or True)
    alone.guard.install()
    with pytest.raises(SystemExit):
        sys.exit(3)
    alone.begun += more
    alone.guard._at_exit()
    assert left == [Departure(code, {})]


@pytest.mark.parametrize(
    ("status", "code"), [(None, 0), (0, 0), (3, 3), (True, 1), ("bad", 1), (-1, 255), (256, 0)]
)
def test_exit_code_is_that_of_the_process(status, code):
    assert _exit_code(status) == code


def test_what_was_raised_from_a_rank_failure_is_a_consequence():
    def raised(outer, inner, quiet=False):
        try:
            try:
                raise inner
            except Exception as cause:
                if quiet:
                    raise outer from None
                raise outer from cause
        except Exception as error:
            return error

    assert _is_consequence(RankFailed("x"))
    assert _is_consequence(raised(RuntimeError("step"), GroupFailed("x")))
    assert not _is_consequence(raised(RuntimeError("step"), GroupFailed("x"), quiet=True))
    assert not _is_consequence(MismatchError("x"))
    assert not _is_consequence(raised(RuntimeError("a"), ValueError("b")))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_an_uncaught_exception_is_reported_with_the_rank(kind, capsys):
    alone = Alone()
    alone.guard.install()
    try:
        with pytest.raises(Aborted):
            sys.excepthook(kind, kind("boom"), None)
    finally:
        alone.channel.ended.clear()
        alone.guard.uninstall()
    said = capsys.readouterr().err
    expected = "interrupted (Ctrl-C)" if kind is KeyboardInterrupt else "ValueError: boom"
    assert said == f"[rank 0/1] {expected}\n"

"""Ranks as threads on the node engine: their memory, their ends, groups, and the GIL."""

import ctypes
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm.threads import MAX_RANKS
from hpcpar.comm.window import map_private
from hpcpar.errors import CollectiveTimeout, GroupFailed, MismatchError, RankFailed
from hpcpar.testing import run_ranks

pytestmark = pytest.mark.threads_only

MIB = 1 << 20
WINDOW = len(map_private(2)[0])


def mapped_worlds():
    """Count the mappings of this process that are as long as two windows, or longer."""
    with open("/proc/self/maps", encoding="ascii") as file:
        spans = [re.match(r"(\w+)-(\w+)", line).groups() for line in file]
    return sum(int(end, 16) - int(begin, 16) >= 2 * WINDOW for begin, end in spans)


class Allocated(ctypes.Structure):
    """What malloc says of itself: struct mallinfo2 of glibc 2.33 and later."""

    _fields_ = [("counts", ctypes.c_size_t * 10)]


def allocated_bytes():
    """Count what is in use, and not what malloc keeps for later; None where it does not tell."""
    gc.collect()
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = Allocated
    counts = ask().counts
    return counts[7] + counts[4]  # uordblks and hblkhd: in arenas, and mapped one by one


def work(group):
    x, out = np.ones(40_000), np.empty(40_000)
    for _ in range(4):
        group.all_reduce(x, out=out)
    with group.subgroup([1, 0]) as pair:
        assert pair.all_reduce(x, async_op=True).wait()[0] == 2
    pair.close()
    assert group.sendrecv(group.rank, 1 - group.rank, 1 - group.rank) == 1 - group.rank


def work_and_fail(group):
    work(group)
    if group.rank == 1:
        raise KeyError("mine")
    group.barrier()


# -- memory --------------------------------------------------------------------------------


def test_worlds_leave_no_memory_behind():
    """At once, without the garbage collector."""
    run_ranks(2, work)
    before, mapped = allocated_bytes(), mapped_worlds()
    gc.disable()
    try:
        for number in range(200):
            run_ranks(2, work)
            assert mapped_worlds() == mapped
            gc.collect() if number % 10 == 0 else None  # for what is no window
    finally:
        gc.enable()
    assert before is None or allocated_bytes() - before < 4 * MIB


def test_worlds_that_fail_leave_no_memory_behind():
    gc.collect()
    mapped = mapped_worlds()
    for _ in range(20):
        with pytest.raises(KeyError):
            run_ranks(2, work_and_fail)
    gc.collect()  # tracebacks refer to themselves
    assert mapped_worlds() == mapped


def test_a_world_of_one_ends_with_its_memory():
    code = """
        import gc, os, hpcpar as hp
        maps = lambda: len(open("/proc/self/maps").readlines())
        hp.init().all_reduce(1)
        hp.shutdown()
        before = maps()
        for _ in range(200):
            assert hp.init().all_reduce(1) == 1
            hp.shutdown()
        assert maps() <= before + 2, (before, maps())
        import sys
        assert "hashlib" not in sys.modules  # there is nobody to compare with
    """
    run_python(code)


def run_python(code, *, timeout=60):
    lines = "\n".join(line[8:] for line in code.strip("\n").split("\n"))
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_limits_on_address_space_make_windows_shorter():
    run_python("""
        import resource
        from hpcpar.comm.window import map_private, skewed
        from hpcpar.testing import run_ranks
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limit = lambda room: resource.setrlimit(resource.RLIMIT_AS, (size + room, -1))
        limit((1 << 30) - 1)
        assert {len(window) for window in map_private(4)} == {skewed(1 << 26)}
        assert run_ranks(2, lambda g: g.subgroup([1, 0]).all_reduce(1)) == [2, 2]
        limit(1 << 24)
        try:
            map_private(4)
        except MemoryError as error:
            assert "windows of 4 ranks. Raise the limit" in str(error)
        else:
            raise AssertionError
    """)


def test_more_ranks_than_the_engine_has_places_are_refused():
    with pytest.raises(hp.errors.ArgumentError, match=r"num_ranks 257 must be .* in 1\.\.256"):
        run_ranks(MAX_RANKS + 1, lambda group: None)


def test_mail_that_nobody_took_goes_with_its_group():
    """Long messages have few places, which are free again then."""

    def body(group):
        for number in range(100):
            pair = group.subgroup([1, 0])
            if pair.rank == 0:
                pair.send(number, 1)
                pair.send(np.ones(4), 1)
                pair.send(np.ones(40_000), 1)
            else:
                assert pair.recv() == number  # not what the group before it left
            group.barrier()
            pair.close()
            group.barrier()

    run_ranks(2, body)


# -- groups --------------------------------------------------------------------------------


def test_three_hundred_groups():
    everyone = range(5)
    members = [m for n in (2, 3, 4, 5) for m in itertools.permutations(everyone, n)]

    def body(group):
        made = [group.subgroup(m) for m in members if group.rank in m]
        for sub in made:
            assert sub.all_reduce(1) == sub.size
        return len(made)

    assert sum(run_ranks(5, body)) > 300 * 3


def test_eight_ranks_get_the_same_bits():
    """More than cores: nobody waits with the core, or the GIL, that another needs."""

    def body(group):
        random = np.random.default_rng(group.rank)
        told = []
        for count in (7, 100_003):
            x, out = random.standard_normal(count).astype(np.float32), np.empty(count, np.float32)
            for _ in range(4):
                group.all_reduce(x, "mean", out=out)
                told.append(out.tobytes())
            told.append(group.all_gather(x).tobytes())
        return told

    results = run_ranks(8, body)
    assert all(told == results[0] for told in results)


def crossed(group):
    pair = group.subgroup([1, 0])
    group.barrier()
    began = time.monotonic()
    calls = [pair, group] if group.rank == 0 else [group, pair]
    with pytest.raises((MismatchError, GroupFailed, CollectiveTimeout)) as caught:
        for each in calls:
            each.all_reduce(np.ones(3))
    seconds = time.monotonic() - began
    time.sleep(0.5)
    return seconds, caught.value


def test_crossed_groups_are_found():
    outcomes = run_ranks(2, crossed)
    found = [error for _, error in outcomes if isinstance(error, MismatchError)]
    assert found  # by both, unless one of them got no core for a while
    assert all(isinstance(error, MismatchError | GroupFailed) for _, error in outcomes)
    for error in found:
        assert "groups are called in different orders" in str(error)
        assert all(f"rank {rank} waits in #" in str(error) for rank in (0, 1))
    assert max(seconds for seconds, _ in outcomes) < 5  # some 0.15


def test_threads_of_the_user_leave_crossed_groups_to_the_deadline():
    """They might make the call that is missing."""
    end = threading.Event()
    helper = threading.Thread(target=end.wait)
    helper.start()
    try:
        outcomes = run_ranks(2, crossed, timeout=2.0)
    finally:
        end.set()
        helper.join()
    assert any(isinstance(error, CollectiveTimeout) for _, error in outcomes)
    assert not any(isinstance(error, MismatchError) for _, error in outcomes)


def test_a_thread_of_the_user_may_make_the_missing_call():
    def body(group):
        pair = group.subgroup([1, 0])
        if group.rank == 1:
            time.sleep(0.3)
            return pair.all_reduce(1) + group.all_reduce(1)
        helper = threading.Thread(target=lambda: time.sleep(0.3) or pair.all_reduce(1))
        helper.start()
        found = group.all_reduce(1)
        helper.join()
        return found

    assert run_ranks(2, body) == [2, 4]


def test_a_late_rank_is_no_false_alarm():
    def body(group):
        pair = group.subgroup([1, 0])
        for number in range(3):
            if group.rank == number % 2:
                time.sleep(0.25)
            assert group.all_reduce(1) == pair.all_reduce(1) == 2

    run_ranks(2, body)


@pytest.mark.parametrize("how", ["leaves", "fails", "is late"])
def test_who_does_not_come_to_a_new_group(how):
    def body(group):
        if group.rank == 1:
            if how == "fails":
                raise KeyError("mine")
            time.sleep(1.0 if how == "is late" else 0)
            return None
        with pytest.raises((RankFailed, GroupFailed, CollectiveTimeout)) as caught:
            group.subgroup([1, 0])
        return caught.value

    if how == "fails":
        with pytest.raises(KeyError):
            run_ranks(2, body)
        return
    error = run_ranks(2, body, timeout=0.3 if how == "is late" else 30.0)[0]
    if how == "leaves":
        assert re.match(
            r"rank 0 has left and is missing here \[rank 0/2, group 'world'", str(error)
        )
    else:
        assert str(error).startswith("subgroup: missing: [0] [rank 0/2, group 'world'")


# -- ends ----------------------------------------------------------------------------------


def test_who_has_left_has_not_given_up():
    """It closes its groups as well, but that is not why it is missing."""

    def body(group):
        if group.rank < 2:
            with pytest.raises(RankFailed, match="rank 2 has left and is missing here"):
                group.all_reduce(1)

    for _ in range(50):
        run_ranks(3, body)


@pytest.mark.parametrize("call", ["large", "small", "asynchronous", "recv"])
def test_a_failure_reaches_who_waits(call):
    errors = []

    def body(group):
        if group.rank == 1:
            time.sleep(0.1)
            raise ValueError("enough")
        x = np.ones(8 * MIB if call == "large" else 3)
        try:
            if call == "recv":
                group.recv(1)
            work = group.all_reduce(x, async_op=call == "asynchronous")
            work.wait() if call == "asynchronous" else None
        except GroupFailed as error:
            errors.append((time.monotonic(), error))
            raise

    began = time.monotonic()
    with pytest.raises(ValueError, match="enough"):
        run_ranks(3, body)
    assert len(errors) == 2
    for seen, error in errors:
        assert str(error).startswith("rank 1 failed: ValueError: enough [rank ")
        assert isinstance(error.__cause__, ValueError)
        assert seen - began < 5


def test_a_rank_that_fails_while_it_moves():
    """Its communication thread stops in the middle, or is just done."""
    outcomes = []

    def body(group):
        x = np.full(8 * MIB, group.rank + 1.0)
        work = group.all_reduce(x, async_op=True)
        if group.rank == 1:
            raise ValueError("enough")
        try:
            outcomes.append(bool((work.wait() == 3).all()))
        except GroupFailed as error:
            outcomes.append("rank 1 failed: ValueError: enough" in str(error))
            raise

    with pytest.raises(ValueError, match="enough"):
        run_ranks(2, body)
    assert outcomes == [True]


@pytest.mark.parametrize("end", ["send", "leave", "fail"])
def test_recv_wakes_at_once(end):
    took = []

    def body(group):
        if group.rank == 1:
            time.sleep(0.02)
            took.append(time.monotonic())
            if end == "fail":
                raise KeyError("mine")
            return group.send(1, 0) if end == "send" else None
        with pytest.raises((RankFailed, GroupFailed)):
            group.recv(1)
            raise GroupFailed("sent")
        took.append(time.monotonic() - took.pop())
        return None

    for _ in range(8):
        try:
            run_ranks(2, body)
        except KeyError:
            assert end == "fail"
    assert len(took) == 8
    assert min(took) < 0.02  # and not at the next look at signals


def test_a_signal_in_the_main_thread_ends_all_waits():
    def interrupt(*_):
        raise KeyboardInterrupt

    def body(group):
        group.barrier()
        if group.rank < 2:
            group.recv(2)
        group.barrier()
        time.sleep(1)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    # Rank 2 of 3 waits in a collective for two that wait for its message.
    try:
        with pytest.raises(KeyboardInterrupt):
            run_ranks(3, body)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    end = time.monotonic() + 5
    while any(t.name.startswith("hpcpar-rank") for t in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_no_rank():
    def body(group):
        x, out = np.ones(100_000), np.empty(100_000)
        group.all_reduce(x, out=out)
        status = 0
        if group.rank == 0:
            child = os.fork()
            if child == 0:
                try:
                    group.all_reduce(x, out=out)
                except GroupFailed as error:
                    os._exit(0 if "forked from a rank" in str(error) else 2)
                os._exit(1)
        for _ in range(20):
            group.all_reduce(x, out=out)
        if group.rank == 0:
            status = os.waitpid(child, 0)[1]
        return status, float(out[0])

    assert run_ranks(2, body) == [(0, 2.0), (0, 2.0)]


# -- the GIL -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
@pytest.mark.parametrize("size", [1, 2])
def test_other_threads_run_while_much_is_moved(size, how):
    ticks, end = [0], threading.Event()

    def tick():
        while not end.wait(0.0005):
            ticks[0] += 1

    def body(group):
        x, out = np.ones(8 * MIB), np.empty(8 * MIB)
        before, calls = ticks[0], 6
        for _ in range(calls):
            if how == "blocking":
                group.all_reduce(x, out=out)
            else:
                group.all_reduce(x, out=out, async_op=True).wait()
        assert out[-1] == size
        return (ticks[0] - before) / calls

    helper = threading.Thread(target=tick)
    helper.start()
    try:
        rates = run_ranks(size, body)
    finally:
        end.set()
        helper.join()
    assert min(rates) > 5  # of some 80; 1 or 2 if the GIL is held

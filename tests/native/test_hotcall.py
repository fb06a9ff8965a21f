"""HotCall: one call that looks a plan up, records, and calls back; it must not leak or mix up."""

import os
import sys

import numpy as np
import pytest

from hpcpar._core import HotCall, Recorder

SUM = 2  # any verb


@pytest.fixture
def recorder():
    made = Recorder()
    made.add_group("g", 0, 2)
    return made


@pytest.fixture
def hot(recorder):
    return HotCall(recorder, 0)


def add(hot, like, call, key="sum", after=None, out=None, in_place="in place"):
    calls, recorded = (call, "handle", in_place, after), (SUM, 12, 1, 2, 3)
    hot.add(key, like, like if out is None else out, calls, recorded)


def nothing(*args):
    return None


def test_a_known_call_is_made_and_recorded(hot, recorder):
    x, y, seen = np.ones(4, np.float32), np.zeros(4, np.float32), []
    add(hot, x, lambda *args: seen.append(args))
    assert hot.run(x, "sum", y)
    assert hot.run(x, "".join(["s", "um"]), x)  # not interned; in place
    assert seen[0][0] is x
    assert seen[0][1] is y
    assert seen[1][0] == "in place"
    assert [args[2] for args in seen] == ["handle", "handle"]
    first, second = recorder.last(2)
    assert first[:7] == (0, 0, SUM, 12, 4, 4, -1)
    assert second[1] == 1
    assert second[9:] == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("x", "op", "y"),
    [
        (np.ones(4, np.float32), "max", np.ones(4, np.float32)),
        (np.ones(4, np.float32), ["sum"], np.ones(4, np.float32)),
        (np.ones(5, np.float32), "sum", np.ones(5, np.float32)),
        (np.ones((2, 2), np.float32), "sum", np.ones((2, 2), np.float32)),
        (np.ones(4), "sum", np.ones(4)),
        (np.ones(4, ">f4"), "sum", np.ones(4, ">f4")),
        (np.ones(8, np.float32)[::2], "sum", np.ones(4, np.float32)),
        (np.ones(4, np.float32), "sum", np.broadcast_to(np.float32(1), 4)),
        (np.ones(4, np.float32), "sum", np.ones(4, np.float64)),
        ([1.0] * 4, "sum", np.ones(4, np.float32)),
        (np.ones(4, np.float32), "sum", None),
    ],
)
def test_every_other_call_takes_the_long_way(hot, recorder, x, op, y):
    add(hot, np.ones(4, np.float32), nothing)
    assert hot.run(x, op, y) is False
    assert recorder.last(1) == []


def test_what_follows_gets_the_result(hot):
    x, y = np.ones(3), np.zeros(3)
    add(hot, x, lambda first, out, handle: np.copyto(out, first), after=lambda out: out.fill(7))
    assert hot.run(x, "sum", y)
    assert (y == 7).all()


@pytest.mark.parametrize("where", ["call", "after"])
def test_an_error_is_recorded_and_raised(hot, recorder, where):
    def fails(*args):
        raise ZeroDivisionError

    x = np.ones(3)
    add(hot, x, fails if where == "call" else nothing, after=fails if where == "after" else None)
    with pytest.raises(ZeroDivisionError):
        hot.run(x, "sum", np.zeros(3))
    assert recorder.last(1)[0][9] == 1
    assert hot.acquire()  # nobody holds it


def test_one_call_at_a_time(hot):
    x, y, inner = np.ones(3), np.zeros(3), []
    add(hot, x, lambda *args: inner.append((hot.run(x, "sum", y), hot.acquire())))
    assert hot.run(x, "sum", y)
    assert inner == [(False, False)]
    assert hot.acquire()
    assert not hot.acquire()
    assert hot.run(x, "sum", y) is False
    hot.release()
    assert hot.run(x, "sum", y)


def test_the_table_may_change_during_a_call(hot):
    x, y = np.ones(3), np.zeros(3)
    add(hot, x, lambda *args: hot.forget(), after=lambda out: out.fill(2))
    assert hot.run(x, "sum", y)
    assert (y == 2).all()
    assert hot.run(x, "sum", y) is False


def test_keys_hold_the_verb_and_out_has_a_shape_of_its_own(hot):
    x, y = np.ones(2), np.zeros(4)
    add(hot, x, lambda first, out, handle: out.fill(5), key=("all_gather", 0, "equal"), out=y)
    assert hot.run(x, ("all_gather", 0, "equal"), y)
    assert (y == 5).all()
    assert hot.run(x, ("all_gather", 0, (2, 2)), y) is False
    assert hot.run(x, ("all_gather", 0, [2, 2]), y) is False
    assert hot.run(x, ("all_gather", 0, "equal"), np.zeros(6)) is False
    assert hot.run(x, ("all_gather", 0, "equal"), np.zeros((2, 2))) is False


def test_calls_that_cannot_be_in_place_go_the_long_way(hot):
    x = np.ones(3)
    add(hot, x, nothing, in_place=None)
    assert hot.run(x, "sum", np.zeros(3))
    assert hot.run(x, "sum", x) is False


def test_noise_and_forks_stop_it(hot):
    x, y = np.ones(3), np.zeros(3)
    add(hot, x, nothing)
    hot.set_noisy(True)
    assert hot.run(x, "sum", y) is False
    hot.set_noisy(False)
    assert hot.run(x, "sum", y)
    child = os.fork()
    if child == 0:
        os._exit(0 if hot.run(x, "sum", y) is False else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_many_kinds_of_calls_are_kept_apart(hot):
    kinds = [np.ones(shape, dtype) for shape in ((3,), (1, 3), (3, 1), ()) for dtype in "fdiq"]
    for array in kinds:
        calls = []
        add(hot, array, lambda *args, calls=calls: calls.append(args))
        assert hot.run(array, "sum", array.copy())
        assert calls[0][0] is array
    deep = np.ones((1,) * 9)
    add(hot, deep, nothing)
    assert hot.run(deep, "sum", deep.copy()) is False


def test_nothing_is_leaked(recorder):
    x, call, handle = np.ones(3), lambda *args: None, object()
    before = [sys.getrefcount(o) for o in (x, call, handle, recorder)]
    for _ in range(3):
        hot = HotCall(recorder, 0)
        for _ in range(5):
            hot.add("sum", x, x, (call, handle, None, None), (SUM, 12, 1, 2, 3))
            hot.run(x, "sum", np.zeros(3))
        hot.forget()
        hot.add("sum", x, x, (call, handle, None, None), (SUM, 12, 1, 2, 3))
        del hot
    assert [sys.getrefcount(o) for o in (x, call, handle, recorder)] == before


def test_bad_arguments_are_refused(hot, recorder):
    with pytest.raises(TypeError, match="no Recorder"):
        HotCall(3, 0)
    with pytest.raises(TypeError, match="3 arguments"):
        hot.run(np.ones(3))
    with pytest.raises(TypeError):
        hot.add("sum", np.ones(3), np.ones(3), (nothing, None), (SUM, 12, 1, 2, 3))
    with pytest.raises(TypeError, match="unhashable"):
        add(hot, np.ones(3), nothing, key=["sum"])

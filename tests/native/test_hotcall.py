"""HotCall: one call that looks a plan up, records, and calls back; it must not leak or mix up."""

import os
import sys

import numpy as np
import pytest

from hpcpar._core import HotCall, Recorder

SUM = 2  # any verb
COUNTED = (SUM, 12, 1, 2, 3, -1)  # verb, dtype, bytes sent and received, messages
HANDLE, IN_PLACE = object(), object()


@pytest.fixture
def recorder():
    made = Recorder()
    made.add_group("g", 0, 2)
    return made


@pytest.fixture
def hot(recorder):
    return HotCall(recorder, 0)


def add(hot, like, call, key="sum", after=None, out=None, in_place=True):
    apart = (call, "x", "out", HANDLE)
    there = (call, IN_PLACE, "out", HANDLE) if in_place else None
    hot.add(key, like, like if out is None else out, 0, (apart, there, after), COUNTED)


def nothing(*args):
    return None


@pytest.mark.parametrize(("begin", "made"), [(2, "in"), (0, None), (1, None), (4, None)])
def test_in_place_x_lies_where_the_plan_says(hot, begin, made):
    out, seen = np.zeros(6, np.float32), []
    ways = (lambda: seen.append("apart"),), (lambda: seen.append("in"),), None
    hot.add("k", out[2:4], out, 8, ways, COUNTED)
    assert hot.run(out[begin : begin + 2], "k", out) is (made is not None)
    assert hot.run(np.zeros(2, np.float32), "k", out)
    assert seen == [*([made] if made else []), "apart"]


def test_a_known_call_is_made_and_recorded(hot, recorder):
    x, y, seen = np.ones(4, np.float32), np.zeros(4, np.float32), []
    add(hot, x, lambda *args: seen.append(args))
    assert hot.run(x, "sum", y)
    assert hot.run(x, "".join(["s", "um"]), x)  # not interned; in place
    assert seen[0][0] is x
    assert seen[0][1] is y
    assert seen[1][0] is IN_PLACE
    assert [args[2] for args in seen] == [HANDLE, HANDLE]
    first, second = recorder.last(2)
    assert first[:7] == (0, 0, SUM, 12, 4, 4, -1)
    assert second[1] == 1
    assert second[9:] == (0, 1, 2, 3, "")


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
    add(hot, x, nothing, in_place=False)
    assert hot.run(x, "sum", np.zeros(3))
    assert hot.run(x, "sum", x) is False


def test_arguments_stand_where_the_plan_has_them(hot):
    x, y, seen = np.ones(3), np.zeros(3), []

    def call(*args):
        seen.append(args)

    apart = (call, ("out", HANDLE), 5, ("x", HANDLE), None, (1, 2), "x")
    hot.add("sum", x, y, 0, (apart, (call,), None), COUNTED)
    assert hot.run(x, "sum", y)
    assert hot.run(x, "sum", x)
    assert seen[0] == ((y, HANDLE), 5, (x, HANDLE), None, (1, 2), x)
    assert seen[0][0][0] is y
    assert seen[0][5] is x
    assert seen[1] == ()


@pytest.mark.parametrize("missing", ["x", "out"])
def test_a_rank_may_have_one_array_only(hot, missing):
    array, seen = np.ones(3, np.float32), []
    x, out = (None, array) if missing == "x" else (array, None)
    way = (lambda *args: seen.append(args), "x", "out")
    hot.add("k", x, out, 0, (way, None, None), COUNTED)
    assert hot.run(x, "k", out)
    assert seen == [(x, out)]
    assert hot.run(array, "k", array.copy()) is False
    assert hot.run(None, "k", None) is False
    assert hot.run(out, "k", x) is False
    other = np.ones(3)
    assert hot.run(None if x is None else other, "k", None if out is None else other) is False
    hot.add("k", None, None, 0, (way, None, None), COUNTED)  # nothing to know a call by
    if missing == "x":
        array.flags.writeable = False
        assert hot.run(None, "k", array) is False


def test_ways_are_learned_one_by_one(hot):
    x, y, seen = np.ones(3), np.zeros(3), []
    ways = [(lambda *args, i=i: seen.append(i), "x") for i in range(3)]
    hot.add("sum", x, y, 0, (ways[0], None, None), COUNTED)
    assert hot.run(x, "sum", x) is False
    hot.add("sum", x, x, 0, (None, ways[1], None), COUNTED)
    assert hot.run(x, "sum", x)
    assert hot.run(x, "sum", y)
    hot.add("sum", x, y, 0, (ways[2], None, None), COUNTED)
    assert hot.run(x, "sum", y)
    assert hot.run(x, "sum", x)
    assert seen == [1, 0, 2, 1]


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


def test_calls_by_turns_do_not_drive_each_other_out(recorder):
    x = np.ones(3)
    for number in range(200):
        hot, keys = HotCall(recorder, 0), [("send", number, 0), ("recv", number, 0), "sum"]
        for key in keys:
            add(hot, x, nothing, key=key)
        assert all(hot.run(x, key, x.copy()) for key in keys * 2)


def test_nothing_is_leaked(recorder):
    x, call, handle = np.ones(3), lambda *args: None, object()
    before = [sys.getrefcount(o) for o in (x, call, handle, recorder)]
    for _ in range(3):
        hot = HotCall(recorder, 0)
        for _ in range(5):
            hot.add("sum", x, x, 0, ((call, ("x", handle), "out", handle), None, None), COUNTED)
            hot.run(x, "sum", np.zeros(3))
        hot.forget()
        hot.add("sum", x, x, 0, (None, (call, handle, "out"), None), COUNTED)
        del hot
    assert [sys.getrefcount(o) for o in (x, call, handle, recorder)] == before


def test_bad_arguments_are_refused(hot, recorder):
    with pytest.raises(TypeError, match="no Recorder"):
        HotCall(3, 0)
    with pytest.raises(TypeError, match="3 arguments"):
        hot.run(np.ones(3))
    with pytest.raises(TypeError):
        hot.add("sum", np.ones(3), np.ones(3), 0, (nothing, None), COUNTED)
    for way in ((), nothing, (nothing, 1, 2, 3, 4, 5, 6, 7)):
        with pytest.raises(TypeError, match="a way is"):
            hot.add("sum", np.ones(3), np.ones(3), 0, (way, None, None), COUNTED)
    with pytest.raises(TypeError, match="unhashable"):
        add(hot, np.ones(3), nothing, key=["sum"])

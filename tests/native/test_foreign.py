"""ForeignCall: arguments reach a C function as they should, results become exceptions."""

import ctypes
import sys

import numpy as np
import pytest

from hpcpar._core import ForeignCall

LIBC = ctypes.CDLL(None)


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def test_arrays_and_offsets_become_addresses():
    copy = ForeignCall(address(LIBC.memcpy), ("out", ("x", 8), 16), None)
    x, out = np.arange(4.0), np.zeros(2)
    assert copy(x, out) is None
    assert (out == [1.0, 2.0]).all()


def test_eight_arguments_arrive_in_order():
    seen = []
    kinds = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_longlong] * 6]
    keep = ctypes.CFUNCTYPE(*kinds)(lambda *args: seen.append(args) or 0)
    x, out = np.ones(1), np.ones(1)
    call = ForeignCall(address(keep), ("x", "out", 3, -4, 5, 2**40, 7, 8), ValueError)
    call(x, out)
    assert seen == [(x.ctypes.data, out.ctypes.data, 3, -4, 5, 2**40, 7, 8)]
    call(None, out)
    assert seen[1][0] is None


def test_a_result_that_is_not_0_is_an_error():
    fails = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)
    x = np.ones(1)
    with pytest.raises(KeyError, match="7"):
        ForeignCall(address(fails), (), KeyError)(x, x)
    assert ForeignCall(address(fails), (), None)(x, x) is None
    with pytest.raises(TypeError):
        ForeignCall(address(fails), (), 3)(x, x)


def test_bad_arguments_are_refused():
    strlen = address(LIBC.strlen)
    for args in ((0, (), None), (strlen, (0,) * 9, None)):
        with pytest.raises(ValueError, match="no address, or over 8"):
            ForeignCall(*args)
    for args in ((strlen, [1], None), (strlen, (None,), None), (strlen, (1.5,), None)):
        with pytest.raises(TypeError):
            ForeignCall(*args)
    with pytest.raises(TypeError, match="takes x and out"):
        ForeignCall(strlen, ("x",), None)(np.ones(1))


def test_nothing_is_leaked():
    error = object()
    before = sys.getrefcount(error)
    for _ in range(5):
        ForeignCall(address(LIBC.strlen), ("x", 1), error)
    assert sys.getrefcount(error) == before

"""_core.plain_pair: what counts as plain, alike and disjoint."""

import ml_dtypes
import numpy as np
import pytest

from hpcpar._core import plain_pair


class Derived(np.ndarray):
    pass


def test_apart_one_memory_and_overlapping():
    x = np.zeros(8, np.float32)
    assert plain_pair(x, np.zeros(8, np.float32)) == 1
    assert plain_pair(x, x) == 2
    assert plain_pair(x, x.view()) == 2
    assert plain_pair(x[:6], x[2:]) == 0
    assert plain_pair(x[:4], x[4:]) == 1


def test_shapes_may_differ_when_asked():
    x, out = np.zeros(4), np.zeros((2, 4))
    assert plain_pair(x, out) == 0
    assert plain_pair(x, out, True) == 0
    assert plain_pair(x, out, False) == 1


def test_a_place_in_the_output():
    out = np.zeros(8, np.float32)
    assert plain_pair(out[2:4], out, False, 8) == 2
    assert plain_pair(out[2:4], out, False) == 0
    assert plain_pair(out[:2], out, False, 8) == 0
    assert plain_pair(np.zeros(2, np.float32), out, False, 8) == 1


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(4, np.float64),
        np.zeros(4, ">f4"),
        np.zeros(8, np.float32)[::2],
        np.zeros(17, np.uint8)[1:].view(np.float32),
        np.zeros(4, np.float32).view(Derived),
        [0.0] * 4,
        None,
    ],
    ids=["dtype", "byte order", "strided", "unaligned", "subclass", "list", "None"],
)
def test_other_operands_are_not_plain(other):
    x = np.zeros(4, np.float32)
    assert plain_pair(x, other) == 0
    assert plain_pair(other, x) == 0


@pytest.mark.parametrize(
    ("dtype", "other"), [("S3", "S5"), ("M8[s]", "M8[ms]"), ("f4,i4", "i4,f4"), ("O", "O")]
)
def test_dtypes_with_many_layouts_are_not_plain(dtype, other):
    assert plain_pair(np.zeros(4, dtype), np.zeros(4, other)) == 0


def test_registered_dtypes_and_read_only_outputs_are_not_plain():
    x = np.zeros(4, ml_dtypes.bfloat16)
    assert plain_pair(x, x.copy()) == 0
    x, out = np.zeros(4), np.zeros(4)
    x.flags.writeable = False
    assert plain_pair(x, out) == 1
    assert plain_pair(out, x) == 0


def test_number_of_arguments():
    with pytest.raises(TypeError, match="plain_pair"):
        plain_pair(np.zeros(1))

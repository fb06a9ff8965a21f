import math

import numpy as np
import pytest

from hpcpar.errors import ArgumentError
from hpcpar.optim import clip_grad_norm, grad_norm


def golden():
    return {"a": np.array([[3.0, -4.0]]), "b": np.array([12.0]), "none": np.zeros((0, 2))}


@pytest.mark.parametrize(("norm_type", "norm"), [(2, 13.0), (1, 19.0), (math.inf, 12.0)])
def test_goldens(norm_type, norm):
    grads = golden()
    assert grad_norm(grads, norm_type=norm_type) == norm
    assert clip_grad_norm(grads, norm / 2, norm_type=norm_type) == norm
    np.testing.assert_allclose(grads["a"], [[1.5, -2.0]], rtol=1e-6)
    np.testing.assert_allclose(grads["b"], [6.0], rtol=1e-6)
    assert grad_norm(grads, norm_type=norm_type) == pytest.approx(norm / 2, rel=1e-6)


def test_small_gradients_are_left_alone():
    for largest in (13.5, math.inf):
        grads = golden()
        assert clip_grad_norm(grads, largest) == 13
        assert grads["a"].tolist() == [[3, -4]]


@pytest.mark.parametrize(("norm_type", "op"), [(2, "sum"), (1, "sum"), (math.inf, "max")])
def test_parts_on_two_ranks_give_the_whole(norm_type, op):
    whole, asked = golden(), []
    parts = [{"a": golden()["a"]}, {"b": golden()["b"]}]

    def alone(value, given):
        asked.append((value.copy(), given))
        return value

    for part in parts:
        grad_norm(part, alone, norm_type=norm_type)
    values, ops = zip(*asked, strict=True)
    assert set(ops) == {op}
    assert {(value.shape, value.dtype.name) for value in values} == {((), "float64")}
    total = sum(values) if op == "sum" else max(values)
    norm = clip_grad_norm(whole, 1.0, norm_type=norm_type)
    for part in parts:
        assert clip_grad_norm(part, 1.0, lambda v, o: total, norm_type=norm_type) == norm
    np.testing.assert_array_equal(parts[0]["a"], whole["a"])
    np.testing.assert_array_equal(parts[1]["b"], whole["b"])


def test_a_rank_without_gradients_takes_part():
    calls = []
    norm = clip_grad_norm({}, 1.0, lambda value, op: calls.append(op) or value + 25.0)
    assert (norm, calls) == (5.0, ["sum"])
    assert grad_norm({}, norm_type=math.inf) == 0


def test_sums_run_in_float64():
    many = np.full(100_003, 1e-4, np.float32)
    assert grad_norm({"w": many}) == pytest.approx(1e-4 * math.sqrt(100_003), rel=1e-7)
    assert grad_norm({"w": np.full((2, 2), 3e38, np.float32)[:, 0]}) == pytest.approx(
        3e38 * math.sqrt(2), rel=1e-6
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_low_precision_is_scaled_in_place(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    grads = {"w": np.array([3, 4], kind)}
    kept = grads["w"]
    assert clip_grad_norm(grads, 2.5) == 5
    assert grads["w"] is kept
    assert kept.dtype == kind
    np.testing.assert_allclose(kept.astype(float), [1.5, 2], rtol=8e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("norm_type", [1, 2, math.inf])
def test_no_scaling_by_a_norm_that_is_not_finite(bad, norm_type):
    grads = {"a": np.array([1.0, bad]), "b": np.array([2.0])}
    assert not math.isfinite(clip_grad_norm(grads, 1.0, norm_type=norm_type))
    assert grads["b"] == 2


def test_what_is_refused():
    for largest in (0, -1, math.nan):
        with pytest.raises(ArgumentError, match="needs a number above 0"):
            clip_grad_norm(golden(), largest)
    with pytest.raises(ArgumentError, match="norm_type is 3, needs 2, 1 or inf"):
        clip_grad_norm(golden(), 1.0, norm_type=3)

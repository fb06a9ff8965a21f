import numpy as np
import pytest

from hpcpar.errors import ArgumentError, UnsupportedError
from hpcpar.nn import cast, cross_entropy, cross_entropy_backward


def reference(logits, targets):
    """Mean loss and its gradient, in longdouble, token by token."""
    grad = np.zeros(logits.shape, np.longdouble)
    losses = []
    for index in np.ndindex(targets.shape):
        if targets[index] < 0:
            continue
        row = logits[index].astype(np.longdouble)
        odds = np.exp(row - row.max())
        losses.append(np.log(odds.sum()) + row.max() - row[targets[index]])
        grad[index] = odds / odds.sum()
        grad[index][targets[index]] -= 1
    return np.mean(losses), grad / len(losses)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_against_the_definition(scale, rand):
    logits = scale * rand(2, 4, 5)
    targets = np.array([[0, 4, -100, 2], [3, -100, 1, 1]])
    loss, saved = cross_entropy(logits, targets)
    wanted, wanted_grad = reference(logits, targets)
    np.testing.assert_allclose(float(loss), float(wanted), rtol=1e-13)
    grad = cross_entropy_backward(saved, 3.0)
    np.testing.assert_allclose(grad, (3 * wanted_grad).astype(float), rtol=1e-9, atol=1e-16)
    assert (loss.shape, loss.dtype, saved.num_valid) == ((), np.float64, 6)
    assert not grad[targets < 0].any()


def test_equal_logits_cost_the_logarithm_of_their_number():
    loss, _ = cross_entropy(np.full((3, 4), -7.5), np.array([0, 1, 3]))
    assert float(loss) == pytest.approx(np.log(4), rel=1e-15)


def test_a_vast_vocabulary_is_cut_into_the_same_result(rand):
    logits, targets = rand(5, 70_000), np.array([1, 69_999, 0, 5, 8])
    loss, saved = cross_entropy(logits, targets)
    wanted, wanted_grad = reference(logits, targets)
    np.testing.assert_allclose(float(loss), float(wanted), rtol=1e-13)
    np.testing.assert_allclose(cross_entropy_backward(saved), wanted_grad.astype(float), atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 3, 5)])
def test_no_valid_token(shape, rand):
    logits = np.full(shape, np.inf)  # whatever padding holds
    with np.errstate(invalid="ignore"):
        loss, saved = cross_entropy(logits, np.full(shape[:-1], -1), ignore_index=-1)
        grad = cross_entropy_backward(saved)
    assert float(loss) == 0
    assert grad.shape == shape
    assert not grad.any()


def test_parts_with_a_common_divisor_add_up(rand):
    logits = rand(2, 3, 4)
    targets = np.array([[1, -100, -100], [0, 3, 2]])
    whole, saved = cross_entropy(logits, targets)
    parts = [cross_entropy(logits[i], targets[i], divisor=4) for i in range(2)]
    np.testing.assert_allclose(sum(float(loss) for loss, _ in parts), float(whole), rtol=1e-14)
    grads = np.stack([cross_entropy_backward(kept) for _, kept in parts])
    np.testing.assert_array_equal(grads, cross_entropy_backward(saved))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_low_precision_is_computed_in_float32(dtype, rand):
    logits, targets = cast({"x": 8 * rand(64, 9)}, dtype)["x"], np.arange(64) % 9
    loss, saved = cross_entropy(logits, targets)
    wanted, wanted_grad = reference(logits.astype(float), targets)
    assert loss.dtype == np.float32
    np.testing.assert_allclose(float(loss), float(wanted), rtol=1e-6)
    grad = cross_entropy_backward(saved)
    assert grad.dtype == logits.dtype
    rtol, atol = {"float16": (1e-3, 1e-7), "bfloat16": (8e-3, 1e-7), "float32": (1e-5, 1e-7)}[dtype]
    np.testing.assert_allclose(grad.astype(float), wanted_grad.astype(float), rtol=rtol, atol=atol)


def test_backward_can_be_repeated(rand):
    _, saved = cross_entropy(rand(2, 4), np.array([1, 2]))
    np.testing.assert_array_equal(cross_entropy_backward(saved), cross_entropy_backward(saved))


def test_what_is_refused(rand):
    logits = rand(2, 3, 4)
    with pytest.raises(ArgumentError, match=r"targets has shape \(3,\), needs \(2, 3\)"):
        cross_entropy(logits, np.zeros(3, int))
    with pytest.raises(ArgumentError, match="targets holds 4, needs ids from 0 to 3"):
        cross_entropy(logits, np.full((2, 3), 4))
    with pytest.raises(ArgumentError, match="targets holds -1"):
        cross_entropy(logits, np.full((2, 3), -1))
    with pytest.raises(UnsupportedError, match="targets has dtype float64, needs integers"):
        cross_entropy(logits, np.zeros((2, 3)))
    with pytest.raises(UnsupportedError, match="logits has dtype int64, needs a float"):
        cross_entropy(np.zeros((2, 4), int), np.zeros(2, int))
    with pytest.raises(ArgumentError, match=r"logits has shape \(2, 0\)"):
        cross_entropy(np.zeros((2, 0)), np.zeros(2, int))
    with pytest.raises(ArgumentError, match="divisor is -1, needs a count"):
        cross_entropy(logits, np.zeros((2, 3), int), divisor=-1)

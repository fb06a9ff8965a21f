"""What the tests of layers share: random parameters and a comparison with finite differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcpar.nn import Ctx, Layer, collect
from hpcpar.random import Key

STEP = 1e-5  # central differences of functions of order 1: error about STEP**2 + eps/STEP


def draw(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def random_params(layer: Layer, seed: int = 1) -> dict[str, np.ndarray]:
    """Parameters in float64 without zeros and ones: those would hide a missing term."""
    params = layer.init(Key(seed))
    return {n: p + draw(*p.shape, seed=seed + i) / 2 for i, (n, p) in enumerate(params.items())}


def numeric_gradient(function: Callable[[], float], array: np.ndarray) -> np.ndarray:
    grad = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + STEP
        high = function()
        array[index] = kept - STEP
        low = function()
        array[index] = kept
        grad[index] = (high - low) / (2 * STEP)
    return grad


@pytest.fixture
def gradcheck() -> Callable[..., dict[str, np.ndarray]]:
    """Return check(layer, x, ctx): all gradients against finite differences; returns them."""

    def check(layer: Layer, x: np.ndarray, ctx: Ctx = Ctx()) -> dict[str, np.ndarray]:  # noqa: B008
        params, grads = random_params(layer), {}
        y, saved = layer.forward(params, x, ctx)
        dy = draw(*y.shape, seed=7)
        dx = layer.backward(params, saved, dy, collect(grads))
        assert y.dtype == np.float64
        assert grads.keys() == params.keys()

        def loss() -> float:
            return float((layer.forward(params, x, ctx)[0] * dy).sum())

        wanted = {name: numeric_gradient(loss, param) for name, param in params.items()}
        if x.dtype.kind == "f":
            wanted["x"] = numeric_gradient(loss, x)
            grads["x"] = dx
        else:
            assert dx is None
        for name, grad in grads.items():
            assert grad.shape == wanted[name].shape
            np.testing.assert_allclose(grad, wanted[name], rtol=1e-6, atol=1e-8, err_msg=name)
        return grads

    return check


@pytest.fixture
def make_params() -> Callable[..., dict[str, np.ndarray]]:
    return random_params


@pytest.fixture
def rand() -> Callable[..., np.ndarray]:
    return draw

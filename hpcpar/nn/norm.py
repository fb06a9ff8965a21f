"""Normalisation over the last axis.

Shape suffixes: N = tokens (all leading axes), C = hidden width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arrays import Array, namespace
from ..random import Key
from .layer import Ctx, Fill, Layer, OnGrad, Params, Saved
from .numeric import check_input, grad_fill, narrow, take, wide

__all__ = ["LayerNorm", "RMSNorm"]


class LayerNorm(Layer):
    """``(x - mean) / sqrt(var + eps) * weight + bias``.

    Parameters
    ----------
    width
        C. Parameters: ``weight`` (C,), ones, and ``bias`` (C,), zeros.
    eps
        Added to the variance.

    Notes
    -----
    Saved: the normalised input (..., C) and 1/sqrt(var + eps) (N, 1), in the dtype computed in.

    References
    ----------
    Ba, Kiros, Hinton, "Layer Normalization", 2016, equation 4.
    """

    def __init__(self, width: int, *, eps: float = 1e-5) -> None:
        self.width = width
        self.eps = eps

    def init(self, key: Key) -> dict[str, Array]:
        """Return ``weight`` and ``bias``. Local."""
        return {
            "weight": np.ones(self.width, np.float32),
            "bias": np.zeros(self.width, np.float32),
        }

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (..., C) -> (..., C). Local."""
        weight_C = take(params, "weight", (self.width,), self, ctx)
        bias_C = take(params, "bias", (self.width,), self, ctx)
        check_input(x, self.width, weight_C, self, ctx)
        x_NC = wide(x).reshape(-1, self.width)
        hat_NC = x_NC - x_NC.mean(axis=1, keepdims=True)
        scale_N1 = _rsqrt_mean_square(hat_NC, self.eps)
        hat_NC *= scale_N1
        y_NC = hat_NC * wide(weight_C)
        y_NC += bias_C
        return narrow(y_NC, x.dtype).reshape(x.shape), (hat_NC, scale_N1)

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        """Map (..., C) -> (..., C); reports ``weight``, then ``bias``. Local."""
        hat_NC, scale_N1 = saved
        dy_NC, weight_C = wide(dy).reshape(-1, self.width), params["weight"]
        on_grad("weight", _gain_fill(dy_NC, hat_NC, weight_C.dtype))
        on_grad("bias", _shift_fill(dy_NC, weight_C.dtype))
        dhat_NC = dy_NC * wide(weight_C)
        dhat_NC -= dhat_NC.mean(axis=1, keepdims=True)
        dx_NC = _remove_component(dhat_NC, hat_NC)
        dx_NC *= scale_N1
        return narrow(dx_NC, dy.dtype).reshape(dy.shape)


class RMSNorm(Layer):
    """``x / sqrt(mean(x**2) + eps) * weight``.

    Parameters
    ----------
    width
        C. Parameter: ``weight`` (C,), ones.
    eps
        Added to the mean square.

    Notes
    -----
    Saved: the normalised input (..., C) and 1/sqrt(mean square + eps) (N, 1), in the dtype
    computed in.

    References
    ----------
    Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4.
    """

    def __init__(self, width: int, *, eps: float = 1e-5) -> None:
        self.width = width
        self.eps = eps

    def init(self, key: Key) -> dict[str, Array]:
        """Return ``weight``. Local."""
        return {"weight": np.ones(self.width, np.float32)}

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (..., C) -> (..., C). Local."""
        weight_C = take(params, "weight", (self.width,), self, ctx)
        check_input(x, self.width, weight_C, self, ctx)
        x_NC = wide(x).reshape(-1, self.width)
        scale_N1 = _rsqrt_mean_square(x_NC, self.eps)
        hat_NC = x_NC * scale_N1
        y_NC = hat_NC * wide(weight_C)
        return narrow(y_NC, x.dtype).reshape(x.shape), (hat_NC, scale_N1)

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        """Map (..., C) -> (..., C); reports ``weight``. Local."""
        hat_NC, scale_N1 = saved
        dy_NC, weight_C = wide(dy).reshape(-1, self.width), params["weight"]
        on_grad("weight", _gain_fill(dy_NC, hat_NC, weight_C.dtype))
        dx_NC = _remove_component(dy_NC * wide(weight_C), hat_NC)
        dx_NC *= scale_N1
        return narrow(dx_NC, dy.dtype).reshape(dy.shape)


def _row_mean_product(a_NC: Array, b_NC: Array) -> Array:
    mean_N: Array = namespace(a_NC).einsum("nc,nc->n", a_NC, b_NC)
    mean_N /= a_NC.shape[1]
    return mean_N[:, None]


def _rsqrt_mean_square(x_NC: Array, eps: float) -> Array:
    square_N1 = _row_mean_product(x_NC, x_NC)
    square_N1 += eps
    scale_N1: Array = 1 / namespace(x_NC).sqrt(square_N1)
    return scale_N1


def _remove_component(grad_NC: Array, hat_NC: Array) -> Array:
    """Take out of each row, in place, the part that only changes the row's length."""
    grad_NC -= hat_NC * _row_mean_product(grad_NC, hat_NC)
    return grad_NC


def _gain_fill(dy_NC: Array, hat_NC: Array, dtype: np.dtype[Any]) -> Fill:
    einsum = namespace(dy_NC).einsum
    return grad_fill(lambda out: einsum("nc,nc->c", dy_NC, hat_NC), dy_NC.shape[1:], dtype)


def _shift_fill(dy_NC: Array, dtype: np.dtype[Any]) -> Fill:
    return grad_fill(
        lambda out: namespace(dy_NC).sum(dy_NC, axis=0, out=out), dy_NC.shape[1:], dtype
    )

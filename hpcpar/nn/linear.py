"""Matrix products and table look-ups.

Shape suffixes: N = tokens (all leading axes), I = input width, O = output width, V = vocabulary,
C = hidden width, U = distinct ids.
"""

from __future__ import annotations

import numpy as np

from .._arrays import Array, namespace
from ..random import Key, normal
from .layer import Ctx, Layer, OnGrad, Params, Saved
from .numeric import check_ids, check_input, grad_fill, narrow, take, wide

__all__ = ["Embedding", "Linear"]


class Linear(Layer):
    """``y = x @ weight.T + bias``.

    Parameters
    ----------
    inputs, outputs
        Widths I and O. Parameters: ``weight`` (O, I) and ``bias`` (O,).
    bias
        Whether there is a bias.
    std
        Standard deviation of the initial weight (GPT-2: 0.02); biases start at zero.

    Notes
    -----
    Saved: the input x (..., I).
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, std: float = 0.02) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.bias = bias
        self.std = std

    def init(self, key: Key) -> dict[str, Array]:
        """Return ``weight`` and, if there is one, ``bias``. Local."""
        params = {"weight": _gaussian(key.child("weight"), (self.outputs, self.inputs), self.std)}
        if self.bias:
            params["bias"] = np.zeros(self.outputs, np.float32)
        return params

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (..., I) -> (..., O). Local."""
        weight_OI = take(params, "weight", (self.outputs, self.inputs), self, ctx)
        check_input(x, self.inputs, weight_OI, self, ctx)
        y_NO = wide(x.reshape(-1, self.inputs)) @ wide(weight_OI).T
        if self.bias:
            y_NO += take(params, "bias", (self.outputs,), self, ctx)
        return narrow(y_NO, x.dtype).reshape(*x.shape[:-1], self.outputs), x

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        """Map (..., O) -> (..., I); reports ``weight``, then ``bias``. Local."""
        x_NI = saved.reshape(-1, self.inputs)
        dy_NO = wide(dy.reshape(-1, self.outputs))
        xp, weight_OI = namespace(dy), params["weight"]

        shape, dtype = weight_OI.shape, weight_OI.dtype
        on_grad(
            "weight",
            grad_fill(lambda out: xp.matmul(dy_NO.T, wide(x_NI), out=out), shape, dtype),
        )
        if self.bias:
            on_grad("bias", grad_fill(lambda out: xp.sum(dy_NO, 0, out=out), shape[:1], dtype))
        dx_NI = dy_NO @ wide(weight_OI)
        return narrow(dx_NI, dy.dtype).reshape(saved.shape)


class Embedding(Layer):
    """Rows of a table.

    Parameters
    ----------
    count, width
        V and C. Parameter: ``weight`` (V, C).
    std
        Standard deviation of the initial table.

    Notes
    -----
    Saved: the ids.
    """

    def __init__(self, count: int, width: int, *, std: float = 0.02) -> None:
        self.count = count
        self.width = width
        self.std = std

    def init(self, key: Key) -> dict[str, Array]:
        """Return ``weight``. Local."""
        return {"weight": _gaussian(key.child("weight"), (self.count, self.width), self.std)}

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map ids (...) -> rows (..., C). Local.

        Raises
        ------
        ArgumentError
            An id is negative or not below V.
        """
        check_ids(x, self.count, f"Embedding.forward ({ctx.path})", "x")
        weight_VC = take(params, "weight", (self.count, self.width), self, ctx)
        return weight_VC[x], x

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> None:
        """Report ``weight`` for dy (..., C); ids have no gradient. Local."""
        ids_N, dy_NC = saved.reshape(-1), dy.reshape(-1, self.width)
        shape, dtype = params["weight"].shape, params["weight"].dtype
        fill = grad_fill(
            lambda out: _table_grad(ids_N, dy_NC, shape, out),
            shape,
            dtype,
            lambda out: _add_rows(ids_N, dy_NC, out),
        )
        on_grad("weight", fill)


def _table_grad(ids_N: Array, dy_NC: Array, shape: tuple[int, ...], out: Array | None) -> Array:
    rows_U, sums_UC = _sums_by_id(ids_N, wide(dy_NC))
    grad_VC: Array = namespace(dy_NC).empty(shape, sums_UC.dtype) if out is None else out
    grad_VC[...] = 0
    grad_VC[rows_U] = sums_UC
    return grad_VC


def _add_rows(ids_N: Array, dy_NC: Array, out: Array) -> None:
    rows_U, sums_UC = _sums_by_id(ids_N, wide(dy_NC))
    out[rows_U] = wide(out[rows_U]) + sums_UC


def _sums_by_id(ids_N: Array, dy_NC: Array) -> tuple[Array, Array]:
    """Return the distinct ids and, for each, the sum of its rows, added in token order.

    Sorting keeps the order of the sums fixed (atomic adds on a GPU would not), and is several
    times faster than ``np.add.at``.
    """
    xp = namespace(dy_NC)
    order_N = xp.argsort(ids_N, kind="stable")
    sorted_N = ids_N[order_N]
    first_N = xp.ones(ids_N.shape, bool)
    first_N[1:] = sorted_N[1:] != sorted_N[:-1]
    start_U = xp.flatnonzero(first_N)
    return sorted_N[start_U], xp.add.reduceat(dy_NC[order_N], start_U, axis=0)


def _gaussian(key: Key, shape: tuple[int, ...], std: float) -> Array:
    draw: Array = normal(key, shape, dtype=np.float32)
    draw *= std
    return draw

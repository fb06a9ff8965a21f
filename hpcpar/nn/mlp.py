"""Activations and the two kinds of feed-forward layer.

Shape suffixes: none; everything here is element by element. `(..., C)` in docstrings is an array
of hidden width C, F is the inner width.
"""

from __future__ import annotations

import math
from types import ModuleType

from .._arrays import Array, namespace
from ..random import Key
from .containers import Sequential
from .layer import Ctx, Layer, OnGrad, Params, Saved, init_children, scope, scope_hook
from .linear import Linear
from .numeric import blocks, narrow, wide

__all__ = ["GELU", "SwiGLU", "gelu_mlp"]

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


class GELU(Layer):
    """``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3)))``; no parameters.

    Notes
    -----
    Saved: the input and the tanh, in the dtype computed in. (tanh costs as much as a narrow
    matrix product, so it is kept rather than recomputed.)

    References
    ----------
    Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016, section 2 (the tanh form of GPT-2).
    """

    def init(self, key: Key) -> dict[str, Array]:
        """Return no parameters. Local."""
        return {}

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (...) -> (...). Local."""
        u = wide(x)
        xp = namespace(u)
        y, tanh = xp.empty_like(u), xp.empty_like(u)
        for block in blocks(*_rows(u, tanh, y)):
            _gelu(xp, *block)
        return narrow(y, x.dtype), (u, tanh)

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        """Map (...) -> (...). Local."""
        u, tanh = saved
        dx = namespace(u).empty_like(u)
        for block in blocks(*_rows(u, tanh, dy, dx)):
            _gelu_backward(*block)
        return narrow(dx, dy.dtype)


def _rows(*arrays: Array) -> tuple[Array, ...]:
    """Return 2-D views (all leading axes in one), C-contiguous."""
    width = arrays[0].shape[-1] if arrays[0].ndim else 1
    return tuple(a.reshape(-1, width) if width else a for a in arrays)


def _gelu(xp: ModuleType, u: Array, tanh: Array, y: Array) -> None:
    xp.multiply(u, u, out=tanh)
    tanh *= _CUBIC
    tanh += 1
    tanh *= u
    tanh *= _SQRT_2_OVER_PI
    xp.tanh(tanh, out=tanh)
    xp.add(tanh, 1, out=y)
    y *= u
    y *= 0.5


def _gelu_backward(u: Array, tanh: Array, dy: Array, dx: Array) -> None:
    slope = u * u  # of the tanh's argument, times u
    slope *= 3 * _CUBIC
    slope += 1
    slope *= u
    slope *= _SQRT_2_OVER_PI
    sech2 = tanh * tanh
    sech2 -= 1  # minus sech**2
    slope *= sech2
    namespace(u).subtract(tanh, slope, out=dx)
    dx += 1
    dx *= 0.5
    dx *= dy


def gelu_mlp(width: int, inner: int, *, bias: bool = True, out_std: float = 0.02) -> Sequential:
    """Return the feed-forward layer of GPT-2: ``down(gelu(up(x)))``, (..., C) -> (..., C).

    Parameters
    ----------
    width, inner
        C and F. Parameters: ``up.weight`` (F, C), ``down.weight`` (C, F) and their biases.
    bias
        Whether both have a bias.
    out_std
        Standard deviation of the initial ``down.weight``.
    """
    up = Linear(width, inner, bias=bias)
    return Sequential(
        {"up": up, "act": GELU(), "down": Linear(inner, width, bias=bias, std=out_std)}
    )


class SwiGLU(Layer):
    """``down(silu(gate(x)) * up(x))``.

    Parameters
    ----------
    width, inner
        C and F. Parameters: ``gate.weight``, ``up.weight`` (F, C), ``down.weight`` (C, F).
    bias
        Whether the three have a bias.
    out_std
        Standard deviation of the initial ``down.weight``.

    Notes
    -----
    Saved: gate(x), its sigmoid and up(x), each (..., F) in the dtype computed in, and what the
    three children save (x once, and the product).

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020, equation 6.
    """

    def __init__(
        self, width: int, inner: int, *, bias: bool = False, out_std: float = 0.02
    ) -> None:
        self.children = {
            "gate": Linear(width, inner, bias=bias),
            "up": Linear(width, inner, bias=bias),
            "down": Linear(inner, width, bias=bias, std=out_std),
        }

    def init(self, key: Key) -> dict[str, Array]:
        """Return the children's parameters. Local."""
        return init_children(self, key)

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (..., C) -> (..., C). Local."""
        gate, saved_gate = self._run("gate", params, x, ctx)
        up, saved_up = self._run("up", params, x, ctx)
        gate, up = wide(gate), wide(up)
        sigmoid = _sigmoid(gate)
        inner = gate * sigmoid
        inner *= up
        y, saved_down = self._run("down", params, narrow(inner, x.dtype), ctx)
        return y, (gate, sigmoid, up, saved_gate, saved_up, saved_down)

    def _run(self, name: str, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        return self.children[name].forward(scope(params, name), x, ctx.child(name))

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array | None:
        """Map (..., C) -> (..., C); reports ``down``, ``up``, ``gate``. Local."""
        gate, sigmoid, up, saved_gate, saved_up, saved_down = saved
        dinner = wide(self._back("down", params, saved_down, dy, on_grad))
        silu = gate * sigmoid
        dup = dinner * silu
        silu *= sigmoid  # silu' = sigmoid + silu (1 - sigmoid)
        dgate = gate * sigmoid
        dgate += sigmoid
        dgate -= silu
        dgate *= up
        dgate *= dinner
        dx = self._back("up", params, saved_up, narrow(dup, dy.dtype), on_grad)
        return dx + self._back("gate", params, saved_gate, narrow(dgate, dy.dtype), on_grad)

    def _back(self, name: str, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        hook = scope_hook(on_grad, name)
        dx = self.children[name].backward(scope(params, name), saved, dy, hook)
        assert dx is not None
        return dx


def _sigmoid(x: Array) -> Array:
    """Return 1/(1 + exp(-x)); through tanh, which cannot overflow."""
    y: Array = x * 0.5
    namespace(x).tanh(y, out=y)
    y += 1
    y *= 0.5
    return y

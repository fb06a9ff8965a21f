"""One transformer layer.

Shape suffixes: none; `(B, T, C)` in docstrings is batch, tokens, hidden width.
"""

from __future__ import annotations

from typing import Literal

from .._arrays import Array
from ..errors import ArgumentError
from ..random import Key
from .attention import CausalSelfAttention
from .dropout import Dropout
from .layer import Ctx, Layer, OnGrad, Params, Saved, backward_chain, forward_chain, init_children
from .mlp import SwiGLU, gelu_mlp
from .norm import LayerNorm, RMSNorm

__all__ = ["STD", "Block", "make_norm"]

#: Standard deviation of initial weights (GPT-2).
STD = 0.02


class Block(Layer):
    """One transformer layer: ``x += drop(attn(norm(x)))``, then ``x += drop(mlp(norm(x)))``.

    Parameters
    ----------
    hidden, heads, kv_heads
        Of the attention.
    mlp
        ``"gelu"`` (inner width 4 C, as GPT-2) or ``"swiglu"`` (8/3 C up to a multiple of 32).
    norm
        ``"layer"`` (and biases everywhere, as GPT-2) or ``"rms"`` (and none, as Llama).
    dropout
        Share dropped from both branches.
    out_std
        Standard deviation of the initial weights that write to the residual stream.

    Notes
    -----
    Children ``norm1``, ``attn``, ``drop1``, ``norm2``, ``mlp``, ``drop2``. Saved: what they save.
    """

    _first = ("norm1", "attn", "drop1")
    _second = ("norm2", "mlp", "drop2")

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        *,
        mlp: Literal["gelu", "swiglu"] = "gelu",
        norm: Literal["layer", "rms"] = "layer",
        dropout: float = 0.0,
        out_std: float = STD,
    ) -> None:
        bias = norm == "layer"
        self.children = {
            "norm1": make_norm(norm, hidden),
            "attn": CausalSelfAttention(
                hidden, heads, kv_heads=kv_heads, bias=bias, out_std=out_std
            ),
            "drop1": Dropout(dropout),
            "norm2": make_norm(norm, hidden),
            "mlp": _mlp(mlp, hidden, bias, out_std),
            "drop2": Dropout(dropout),
        }

    def init(self, key: Key) -> dict[str, Array]:
        """Return the children's parameters. Local."""
        return init_children(self, key)

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (B, T, C) -> (B, T, C). Local."""
        y, first = forward_chain(self, self._first, params, x, ctx)
        x = x + y
        y, second = forward_chain(self, self._second, params, x, ctx)
        return x + y, (first, second)

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        """Map (B, T, C) -> (B, T, C). Local."""
        first, second = saved
        # not in place: a fill that runs later may still hold dy or the branch's gradient
        dy = dy + backward_chain(self, self._second, params, second, dy, on_grad)
        return dy + backward_chain(self, self._first, params, first, dy, on_grad)


def make_norm(kind: str, width: int) -> Layer:
    """Return the norm of that kind: "layer" or "rms". Local."""
    if kind not in ("layer", "rms"):
        raise ArgumentError(f"GPT: norm is {kind!r}, needs 'layer' or 'rms'.")
    return LayerNorm(width) if kind == "layer" else RMSNorm(width)


def _mlp(kind: str, width: int, bias: bool, out_std: float) -> Layer:
    if kind not in ("gelu", "swiglu"):
        raise ArgumentError(f"GPT: mlp is {kind!r}, needs 'gelu' or 'swiglu'.")
    if kind == "gelu":
        return gelu_mlp(width, 4 * width, bias=bias, out_std=out_std)
    inner = -(-8 * width // 96) * 32
    return SwiGLU(width, inner, bias=bias, out_std=out_std)

"""A decoder-only language model put together from the layers of this room.

Shape suffixes: B = batch, T = tokens, C = hidden width, V = vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal

from .._arrays import Array, namespace
from ..errors import ArgumentError
from ..random import Key
from .block import STD, Block, make_norm
from .containers import Sequential
from .dropout import Dropout
from .generate import sample_tokens
from .layer import (
    Ctx,
    Fill,
    Layer,
    OnGrad,
    Params,
    Saved,
    backward_chain,
    forward_chain,
    init_children,
    scope,
    scope_hook,
)
from .linear import Embedding, Linear
from .numeric import computed_in, grad_fill, refuse, take

__all__ = ["GPT"]

_BODY = ("embed", "drop", "blocks", "norm")


class GPT(Layer):
    """Token embedding, `layers` blocks with rotary positions, a norm, and logits over `vocab`.

    Parameters
    ----------
    layers, hidden, heads
        Number of blocks, C, and query heads.
    vocab, seq
        V, and the longest sequence.
    kv_heads
        Key/value heads; None is `heads`.
    mlp, norm
        As for `Block`: ``"gelu"`` or ``"swiglu"``, ``"layer"`` or ``"rms"``.
    tied
        Whether the logits use the embedding's table: one parameter, ``embed.weight``, and one
        ``on_grad``, at the end of backward. Else ``head.weight``.
    dropout
        Of the embeddings and of both branches of each block.

    Raises
    ------
    ArgumentError
        A size below 1, heads that do not divide, an unknown `mlp` or `norm`, a bad `dropout`.

    Notes
    -----
    Children ``embed``, ``drop``, ``blocks`` (with children "0", "1", ...), ``norm``, ``head``.
    Saved: what they save. Weights start with standard deviation 0.02, those that write to the
    residual stream with 0.02 / sqrt(2 * layers).

    References
    ----------
    Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.nn import GPT, Ctx, collect, cross_entropy, cross_entropy_backward
    >>> from hpcpar.random import Key
    >>> model = GPT(layers=2, hidden=16, heads=2, vocab=11, seq=8)
    >>> params, grads = model.init(Key(0)), {}
    >>> ids = np.arange(8).reshape(2, 4)
    >>> logits, saved = model.forward(params, ids, Ctx(train=True))
    >>> loss, kept = cross_entropy(logits, ids + 1)
    >>> model.backward(params, saved, cross_entropy_backward(kept), collect(grads))
    >>> logits.shape, grads.keys() == params.keys()
    ((2, 4, 11), True)
    """

    def __init__(
        self,
        *,
        layers: int,
        hidden: int,
        heads: int,
        vocab: int,
        seq: int,
        kv_heads: int | None = None,
        mlp: Literal["gelu", "swiglu"] = "gelu",
        norm: Literal["layer", "rms"] = "layer",
        tied: bool = True,
        dropout: float = 0.0,
    ) -> None:
        _check_sizes(layers=layers, hidden=hidden, heads=heads, vocab=vocab, seq=seq)
        self.vocab = vocab
        self.hidden = hidden
        self.seq = seq
        self.tied = tied
        out_std = STD / math.sqrt(2 * layers)
        kv_heads = heads if kv_heads is None else kv_heads
        blocks = [
            Block(hidden, heads, kv_heads, mlp=mlp, norm=norm, dropout=dropout, out_std=out_std)
            for _ in range(layers)
        ]
        self.children = {
            "embed": Embedding(vocab, hidden, std=STD),
            "drop": Dropout(dropout),
            "blocks": Sequential(blocks),
            "norm": make_norm(norm, hidden),
            "head": Linear(hidden, vocab, bias=False, std=STD),
        }

    def init(self, key: Key) -> dict[str, Array]:
        """Return the parameters of all children; no ``head.weight`` if tied. Local."""
        params = init_children(self, key)
        if self.tied:
            del params["head.weight"]
        return params

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map ids (B, T) -> logits (B, T, V). Local.

        Raises
        ------
        ArgumentError
            `x` has not two axes, T is above `seq`, an id is out of range.
        """
        h_BTC, saved = self.hidden_states(params, x, ctx)
        y_BTV, saved_head = self.logits(params, h_BTC, ctx)
        return y_BTV, (saved, saved_head)

    def hidden_states(self, params: Params, ids: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map ids (B, T) -> what the head reads, (B, T, C). Local."""
        if ids.ndim != 2 or ids.shape[1] > self.seq:
            refuse(self, ctx, f"x has shape {ids.shape}, needs (batch, tokens <= seq {self.seq})")
        return forward_chain(self, _BODY, params, ids, ctx)

    def logits(self, params: Params, h_BTC: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (B, T, C) -> logits (B, T, V). Local."""
        head_params = self._head_params(params, ctx)
        return self.children["head"].forward(head_params, h_BTC, ctx.child("head"))

    def _head_params(self, params: Params, ctx: Ctx) -> Params:
        if not self.tied:
            return scope(params, "head")
        return {"weight": take(params, "embed.weight", (self.vocab, self.hidden), self, ctx)}

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> None:
        """Report all gradients for dy (B, T, V), last layer first; ids have none. Local."""
        saved_body, saved_head = saved
        tie = _Tie(on_grad, params)
        head_hook = tie.head if self.tied else scope_hook(on_grad, "head")
        head_params = self._head_params(params, Ctx())
        dh_BTC = self.children["head"].backward(head_params, saved_head, dy, head_hook)
        assert dh_BTC is not None
        body_hook = tie.body if self.tied else on_grad
        backward_chain(self, _BODY, params, saved_body, dh_BTC, body_hook)

    def generate(
        self,
        params: Params,
        ids: Array,
        count: int,
        *,
        temperature: float = 1.0,
        key: Key | None = None,
    ) -> Array:
        """Return `ids` (B, T) with `count` sampled tokens after them, (B, T + count). Local.

        Parameters
        ----------
        params
            Of this model.
        ids
            The prompts, T >= 1. The model sees the last `seq` tokens.
        count
            Number of new tokens.
        temperature
            The logits are divided by it; 0 takes the likeliest token.
        key
            Key of the draws: token t of sample b is a function of the key, b, t and the logits.

        Raises
        ------
        ArgumentError
            No token to start from, a negative `count` or `temperature`, or no key to sample with.
        """

        def _last_logits(window: Array) -> Array:
            h_BTC, _ = self.hidden_states(params, window[:, -self.seq :], Ctx())
            return self.logits(params, h_BTC[:, -1], Ctx())[0]

        return sample_tokens(_last_logits, ids, count, temperature=temperature, key=key)


class _Tie:
    """Joins the head's and the embedding's contributions to the one table."""

    def __init__(self, on_grad: OnGrad, params: Params) -> None:
        self.on_grad = on_grad
        self.params = params
        self.from_head: Fill | None = None

    def head(self, name: str, fill: Fill) -> None:
        """Keep the head's contribution for later."""
        self.from_head = fill

    def body(self, name: str, fill: Fill) -> None:
        """Pass on what the body reports; its table with both contributions."""
        if name == "embed.weight":
            assert self.from_head is not None
            fill = _sum_fill(self.from_head, fill, self.params[name])
        self.on_grad(name, fill)


def _sum_fill(dense: Fill, rows: Fill, param: Array) -> Fill:
    shape, dtype = param.shape, param.dtype

    def _compute(out: Array | None) -> Array:
        if out is None:
            out = namespace(param).empty(shape, computed_in(dtype))
        return rows(dense(out), add=True)

    return grad_fill(_compute, shape, dtype)


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ArgumentError(f"GPT: {name} is {value}, needs at least 1.")

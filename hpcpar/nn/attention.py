"""Causal self-attention with rotary positions and grouped key/value heads.

Shape suffixes: B = batch, T = tokens, E = heads * head width, H = query heads, G = key/value heads,
R = H / G query heads per key/value head, Q = R * T query rows per key/value head, D = head width,
P = D / 2 rotated pairs.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from .._arrays import Array, namespace
from ..errors import ArgumentError
from ..random import Key
from .layer import Ctx, Layer, OnGrad, Params, Saved, init_children, scope, scope_hook
from .linear import Linear
from .numeric import blocks, narrow, refuse, wide

__all__ = ["CausalSelfAttention", "rotate"]


class CausalSelfAttention(Layer):
    """``out(softmax(rope(q(x)) rope(k(x)).T / sqrt(D) + causal mask) v(x))``.

    Parameters
    ----------
    width, heads
        E and H; D = width / heads must be even.
    kv_heads
        G, a divisor of `heads`; None is `heads`. Key/value head g serves the query heads
        ``g*R .. g*R + R-1``.
    bias
        Whether the four projections have a bias.
    out_std
        Standard deviation of the initial ``out.weight``.
    rope_base
        Base of the rotary wave lengths.

    Raises
    ------
    ArgumentError
        `heads` does not divide `width`, `kv_heads` does not divide `heads`, D is odd.

    Notes
    -----
    Children ``q``, ``k``, ``v``, ``out`` are Linear layers of widths E -> H*D, G*D, G*D and
    H*D -> E. The head counts are read off the outputs of ``q`` and ``k``: wrappers may return a
    part of the heads.

    Saved: rotated q and k, v, the probabilities (B, G, Q, T), the attention output (B, T, E), all
    in the dtype computed in, the rotation tables (T, P), and what the four projections save.

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.2; Su et al., "RoFormer", 2021,
    equation 34; Ainslie et al., "GQA", 2023, section 2.2.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        out_std: float = 0.02,
        rope_base: float = 10000.0,
    ) -> None:
        kv_heads = heads if kv_heads is None else kv_heads
        _check_heads(width, heads, kv_heads)
        self.head_width = width // heads
        self.rope_base = rope_base
        kv_width = kv_heads * self.head_width
        self.children = {
            "q": Linear(width, width, bias=bias),
            "k": Linear(width, kv_width, bias=bias),
            "v": Linear(width, kv_width, bias=bias),
            "out": Linear(width, width, bias=bias, std=out_std),
        }

    def init(self, key: Key) -> dict[str, Array]:
        """Return the children's parameters. Local."""
        return init_children(self, key)

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (B, T, E) -> (B, T, E). Local.

        Raises
        ------
        ArgumentError
            `x` has not three axes, or ``ctx.positions`` is not one position per token.
        """
        if x.ndim != 3:
            refuse(self, ctx, f"x has shape {x.shape}, needs (batch, tokens, width)")
        xp, positions_T = namespace(x), self._positions(x, ctx)
        inputs, kept = [], []
        for name in ("q", "k", "v"):
            y, saved = self.children[name].forward(scope(params, name), x, ctx.child(name))
            inputs.append(_split_heads(wide(y), self.head_width))
            kept.append(saved)
        q_BHTD, k_BGTD, v_BGTD = inputs
        tables = _rope_tables(xp, positions_T, self.head_width, self.rope_base, q_BHTD.dtype)
        mask_TT = _causal_mask(xp, positions_T, q_BHTD.dtype)
        o_BTE, core = _attend(q_BHTD, k_BGTD, v_BGTD, tables, mask_TT)
        y, saved = self.children["out"].forward(
            scope(params, "out"), narrow(o_BTE, x.dtype), ctx.child("out")
        )
        return y, (core, kept, saved)

    def _positions(self, x: Array, ctx: Ctx) -> Array:
        tokens = x.shape[1]
        if ctx.positions is None:
            result: Array = namespace(x).arange(tokens)
            return result
        if ctx.positions.shape != (tokens,):
            refuse(self, ctx, f"ctx.positions has shape {ctx.positions.shape}, needs ({tokens},)")
        return ctx.positions

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        """Map (B, T, E) -> (B, T, E); reports ``out``, ``q``, ``k``, ``v``. Local."""
        core, kept, saved_out = saved
        do_BTE = self._back("out", params, saved_out, dy, on_grad)
        grads = _attend_backward(core, wide(do_BTE), self.head_width)
        dx: Array | None = None
        for name, kept_one, grad in zip(("q", "k", "v"), kept, grads, strict=True):
            part = self._back(name, params, kept_one, narrow(grad, dy.dtype), on_grad)
            dx = part if dx is None else dx + part
        assert dx is not None
        return dx

    def _back(self, name: str, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        hook = scope_hook(on_grad, name)
        dx = self.children[name].backward(scope(params, name), saved, dy, hook)
        assert dx is not None
        return dx


def _check_heads(width: int, heads: int, kv_heads: int) -> None:
    if heads < 1 or width % heads:
        raise ArgumentError(
            f"CausalSelfAttention: heads is {heads}, needs a divisor of width {width}."
        )
    if kv_heads < 1 or heads % kv_heads:
        raise ArgumentError(
            f"CausalSelfAttention: kv_heads is {kv_heads}, needs a divisor of heads {heads}."
        )
    if (width // heads) % 2:
        raise ArgumentError(
            f"CausalSelfAttention: head width is {width} / {heads} = {width // heads}, needs an "
            "even number: rotary positions turn pairs. Change width or heads."
        )


def _attend(
    q_BHTD: Array, k_BGTD: Array, v_BGTD: Array, tables: tuple[Array, Array], mask_TT: Array
) -> tuple[Array, Saved]:
    """Return the attention output (B, T, H*D), and what its backward needs."""
    B, H, T, D = q_BHTD.shape
    G = k_BGTD.shape[1]
    cos_TP, sin_TP = tables
    scale = D**-0.5  # folded into the query's rotation: no pass over the scores
    q_BGQD = rotate(q_BHTD, cos_TP * scale, sin_TP * scale).reshape(B, G, H // G * T, D)
    k_BGTD = rotate(k_BGTD, cos_TP, sin_TP)
    p_BGQT = q_BGQD @ k_BGTD.swapaxes(-1, -2)
    _masked_softmax(p_BGQT.reshape(B * H, T, T), mask_TT)
    o_BHTD = (p_BGQT @ v_BGTD).reshape(B, H, T, D)
    o_BTE = o_BHTD.swapaxes(1, 2).reshape(B, T, H * D)
    return o_BTE, (q_BGQD, k_BGTD, v_BGTD, p_BGQT, o_BTE, tables)


def _masked_softmax(scores_MTT: Array, mask_TT: Array) -> None:
    """Turn scores into probabilities in place; each row has a finite entry (the diagonal)."""
    if scores_MTT.size == 0:
        return
    xp = namespace(scores_MTT)
    for (block,) in blocks(scores_MTT):
        block += mask_TT
        block -= block.max(axis=-1, keepdims=True)
        xp.exp(block, out=block)
        block /= block.sum(axis=-1, keepdims=True)


def _attend_backward(core: Saved, do_BTE: Array, D: int) -> tuple[Array, Array, Array]:
    """Return the gradients of the projections' outputs: (B, T, H*D) and twice (B, T, G*D)."""
    q_BGQD, k_BGTD, v_BGTD, p_BGQT, o_BTE, (cos_TP, sin_TP) = core
    xp = namespace(do_BTE)
    B, G, Q, T = p_BGQT.shape
    H = G * Q // max(T, 1)
    o_BTHD, do_BTHD = (a.reshape(B, T, H, D) for a in (o_BTE, do_BTE))
    # the row sum of p * dp is the row's o . do: D products instead of T
    dot_BTH = xp.einsum("bthd,bthd->bth", do_BTHD, o_BTHD)
    do_BGQD = do_BTHD.swapaxes(1, 2).reshape(B, G, Q, D)
    dv_BGTD = p_BGQT.swapaxes(-1, -2) @ do_BGQD
    ds_BGQT = do_BGQD @ v_BGTD.swapaxes(-1, -2)
    dot_BGQ1 = dot_BTH.swapaxes(1, 2).reshape(B, G, Q, 1)
    for ds, dot, p in blocks(ds_BGQT, dot_BGQ1, p_BGQT):
        ds -= dot
        ds *= p
    dq_BHTD = (ds_BGQT @ k_BGTD).reshape(B, H, T, D)
    dk_BGTD = ds_BGQT.swapaxes(-1, -2) @ q_BGQD
    scale = D**-0.5
    dq_BHTD = rotate(dq_BHTD, cos_TP * scale, -sin_TP * scale)
    dk_BGTD = rotate(dk_BGTD, cos_TP, -sin_TP)
    return _merge_heads(dq_BHTD), _merge_heads(dk_BGTD), _merge_heads(dv_BGTD)


def _split_heads(x_BTE: Array, D: int) -> Array:
    B, T, E = x_BTE.shape
    return x_BTE.reshape(B, T, E // D, D).swapaxes(1, 2)


def _merge_heads(x_BHTD: Array) -> Array:
    B, H, T, D = x_BHTD.shape
    return x_BHTD.swapaxes(1, 2).reshape(B, T, H * D)


def rotate(x_BHTD: Array, cos_TP: Array, sin_TP: Array) -> Array:
    """Turn the pairs (i, i + D/2) of each head by their position's angles. Local.

    Parameters
    ----------
    x_BHTD
        Shape (B, H, T, D).
    cos_TP, sin_TP
        Shape (T, D/2); minus the sine turns back.

    Returns
    -------
    array
        New, C-contiguous, shape (B, H, T, D).
    """
    xp = namespace(x_BHTD)
    half = x_BHTD.shape[-1] // 2
    a, b = x_BHTD[..., :half], x_BHTD[..., half:]
    y_BHTD: Array = xp.empty(x_BHTD.shape, x_BHTD.dtype)
    first, second = y_BHTD[..., :half], y_BHTD[..., half:]
    xp.multiply(a, cos_TP, out=first)
    first -= b * sin_TP
    xp.multiply(b, cos_TP, out=second)
    second += a * sin_TP
    return y_BHTD


def _rope_tables(
    xp: ModuleType, positions_T: Array, D: int, base: float, dtype: np.dtype[np.floating]
) -> tuple[Array, Array]:
    """Return cosine and sine of position * base**(-2p/D), computed in float64."""
    rate_P = base ** (xp.arange(D // 2) * (-2.0 / D))
    angle_TP = positions_T[:, None] * rate_P
    return xp.cos(angle_TP).astype(dtype), xp.sin(angle_TP).astype(dtype)


def _causal_mask(xp: ModuleType, positions_T: Array, dtype: np.dtype[np.floating]) -> Array:
    """Return 0 where a query (row) may see a key (column), -inf where the key is later."""
    later_TT = positions_T[:, None] < positions_T[None, :]
    mask_TT: Array = xp.zeros(later_TT.shape, dtype)
    mask_TT[later_TT] = -np.inf
    return mask_TT

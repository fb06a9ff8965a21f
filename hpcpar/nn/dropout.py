"""Dropout whose mask does not depend on how the batch is cut.

Shape suffixes: none; `(B, ...)` is a batch of B samples.
"""

from __future__ import annotations

import math

import numpy as np

from .._arrays import Array, namespace
from ..errors import ArgumentError, UnsupportedError
from ..random import Key, uniform
from .layer import Ctx, Layer, OnGrad, Params, Saved
from .numeric import narrow, wide

__all__ = ["Dropout"]


class Dropout(Layer):
    """Set a share `rate` of the elements to zero, scale the others by 1/(1 - rate).

    Parameters
    ----------
    rate
        In [0, 1).

    Raises
    ------
    ArgumentError
        `rate` out of range.

    Notes
    -----
    Saved: the mask (bool), or None where nothing was dropped. Element i of sample b has the
    random number with counter ``(ctx.batch_start + b) * elements per sample + i`` under the key
    ``ctx.mask_key()``: the same on one process, on any number of ranks, and in any cut into
    microbatches.
    """

    def __init__(self, rate: float) -> None:
        if not 0 <= rate < 1:
            raise ArgumentError(f"Dropout: rate is {rate}, needs 0 <= rate < 1.")
        self.rate = rate

    def init(self, key: Key) -> dict[str, Array]:
        """Return no parameters. Local."""
        return {}

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Map (B, ...) -> (B, ...); `x` itself if nothing is dropped. Local.

        Raises
        ------
        ArgumentError
            ``ctx.train`` without ``ctx.key``.
        UnsupportedError
            ``ctx.positions`` is set: the counters of a cut sequence are not known here.
        """
        if not ctx.train or self.rate == 0:
            return x, None
        if ctx.positions is not None:
            raise UnsupportedError(
                f"Dropout.forward ({ctx.path}): ctx.positions is set, but masks of a cut "
                "sequence are not defined. Train with dropout=0 or with whole sequences."
            )
        start = ctx.batch_start * math.prod(x.shape[1:])
        draw = uniform(ctx.mask_key(), x.shape, dtype=np.float32, start=start)
        keep = namespace(x).asarray(draw >= self.rate)
        return self._masked(x, keep), keep

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array:
        """Map (B, ...) -> (B, ...). Local."""
        return dy if saved is None else self._masked(dy, saved)

    def _masked(self, x: Array, keep: Array) -> Array:
        y = wide(x) * keep
        y *= 1 / (1 - self.rate)
        return narrow(y, x.dtype)

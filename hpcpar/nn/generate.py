"""Sampling tokens one after the other.

Shape suffixes: B = batch, T = tokens, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._arrays import Array, namespace
from ..errors import ArgumentError
from ..random import Key, uniform
from .numeric import wide

__all__ = ["sample_tokens"]


def sample_tokens(
    last_logits: Callable[[Array], Array],
    ids: Array,
    count: int,
    *,
    temperature: float,
    key: Key | None,
) -> Array:
    """Return `ids` (B, T) with `count` tokens after them. Local.

    Parameters
    ----------
    last_logits
        Maps the ids so far (B, T) to the logits of the next token (B, V).
    ids, count, temperature, key
        As for `GPT.generate`.
    """
    _check(ids, count, temperature, key)
    xp = namespace(ids)
    for _ in range(count):
        logits_BV = wide(last_logits(ids))
        if key is None or temperature == 0:
            next_B = logits_BV.argmax(axis=1)
        else:
            next_B = _draw(logits_BV / temperature, key.child(ids.shape[1]))
        ids = xp.concatenate([ids, next_B[:, None].astype(ids.dtype)], axis=1)
    return ids


def _draw(logits_BV: Array, key: Key) -> Array:
    """Return one token per row: where the cumulated probability passes the row's number."""
    xp = namespace(logits_BV)
    work_BV = (logits_BV - logits_BV.max(axis=1, keepdims=True)).astype(np.float64)
    cumulated_BV = xp.exp(work_BV).cumsum(axis=1)
    u_B = xp.asarray(uniform(key, (len(logits_BV),), dtype=np.float64))
    below_BV = cumulated_BV <= (u_B * cumulated_BV[:, -1])[:, None]
    next_B: Array = below_BV.sum(axis=1)
    return xp.minimum(next_B, logits_BV.shape[1] - 1)  # type: ignore[no-any-return]


def _check(ids: Array, count: int, temperature: float, key: Key | None) -> None:
    if ids.ndim != 2 or ids.shape[1] < 1:
        raise ArgumentError(f"generate: ids has shape {ids.shape}, needs (batch, tokens >= 1).")
    if count < 0:
        raise ArgumentError(f"generate: count is {count}, needs 0 or more.")
    if not temperature >= 0:
        raise ArgumentError(f"generate: temperature is {temperature}, needs 0 or more.")
    if temperature > 0 and key is None:
        raise ArgumentError(
            f"generate: key is None with temperature {temperature}. "
            "Pass key=Key(seed), or temperature=0 for the likeliest tokens."
        )

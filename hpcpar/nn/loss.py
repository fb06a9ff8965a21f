"""Cross-entropy of logits against integer targets.

Shape suffixes: N = tokens (all leading axes), V = vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._arrays import Array, namespace
from ..errors import ArgumentError, UnsupportedError
from .numeric import blocks, check_ids, narrow, wide

__all__ = ["CrossEntropySaved", "cross_entropy", "cross_entropy_backward"]


class CrossEntropySaved(NamedTuple):
    """What `cross_entropy_backward` needs.

    Attributes
    ----------
    logits
        The caller's array.
    logsumexp
        Of each token, shape (N, 1), in the dtype computed in.
    targets
        Shape (N,); 0 where ignored.
    valid
        Shape (N,), bool.
    num_valid
        Number of valid tokens here.
    scale
        One over the divisor, or 0 where the divisor is 0.
    """

    logits: Array
    logsumexp: Array
    targets: Array
    valid: Array
    num_valid: int
    scale: float


def cross_entropy(
    logits: Array, targets: Array, *, ignore_index: int = -100, divisor: float | None = None
) -> tuple[Array, CrossEntropySaved]:
    """Return the mean of ``log(sum(exp(logits))) - logits[target]`` over the valid tokens. Local.

    Parameters
    ----------
    logits
        Shape (..., V), any float dtype; large values are safe. Half types are computed in
        float32; the sum over tokens runs in float64.
    targets
        Shape (...), integers in ``0..V-1`` or `ignore_index`.
    ignore_index
        Tokens with this target count for nothing.
    divisor
        What the sum over tokens is divided by; None is the number of valid tokens here. Pass the
        tokens of all ranks (or microbatches) where gradients are summed over them: a mean of
        means is wrong when the counts differ.

    Returns
    -------
    loss
        0-d array, float32 or float64 as computed in; 0 without valid tokens.
    saved
        For `cross_entropy_backward`; ``saved.num_valid`` is the number of valid tokens.

    Raises
    ------
    ArgumentError
        Shapes do not match, a target is out of range, `divisor` is negative.
    UnsupportedError
        Targets are not integers, logits are not floats.

    Examples
    --------
    >>> import numpy as np
    >>> loss, saved = cross_entropy(np.zeros((1, 2, 4)), np.array([[3, -100]]))
    >>> round(float(loss), 6) == round(float(np.log(4)), 6), saved.num_valid
    (True, 1)
    """
    _check(logits, targets, divisor)
    xp, classes = namespace(logits), logits.shape[-1]
    targets_N = targets.reshape(-1)
    valid_N = targets_N != ignore_index
    targets_N = xp.where(valid_N, targets_N, 0)
    check_ids(targets_N, classes, "cross_entropy", "targets")
    logits_NV = wide(logits).reshape(-1, classes)
    lse_N1 = _logsumexp(logits_NV)
    loss_N = lse_N1[:, 0] - logits_NV[xp.arange(targets_N.size), targets_N]
    num_valid = int(xp.count_nonzero(valid_N))
    parts = float(num_valid) if divisor is None else float(divisor)
    scale = 1 / parts if parts else 0.0
    loss = xp.where(valid_N, loss_N, 0).sum(dtype=np.float64) * scale
    saved = CrossEntropySaved(logits, lse_N1, targets_N, valid_N, num_valid, scale)
    return xp.asarray(loss, dtype=logits_NV.dtype), saved


def cross_entropy_backward(saved: CrossEntropySaved, dloss: float = 1.0) -> Array:
    """Return ``dloss * (softmax(logits) - onehot(targets)) / divisor``, 0 where ignored. Local.

    Parameters
    ----------
    saved
        From `cross_entropy`.
    dloss
        Gradient of the loss, e.g. a loss scale.

    Returns
    -------
    dlogits
        New array of the logits' shape (..., V) and dtype.
    """
    xp, logits = namespace(saved.logits), saved.logits
    logits_NV = wide(logits).reshape(-1, logits.shape[-1])
    grad_NV = xp.empty_like(logits_NV)
    factor = dloss * saved.scale
    for source, lse, grad in blocks(logits_NV, saved.logsumexp, grad_NV):
        xp.subtract(source, lse, out=grad)
        xp.exp(grad, out=grad)
        grad *= factor
    grad_NV[xp.arange(saved.targets.size), saved.targets] -= factor
    grad_NV[~saved.valid] = 0  # assigned, not multiplied: an ignored row may hold inf
    return narrow(grad_NV, logits.dtype).reshape(logits.shape)


def _logsumexp(logits_NV: Array) -> Array:
    xp = namespace(logits_NV)
    lse_N1: Array = xp.empty((len(logits_NV), 1), logits_NV.dtype)
    for logits, lse in blocks(logits_NV, lse_N1):
        high = logits.max(axis=1, keepdims=True)
        work = logits - high
        xp.exp(work, out=work)
        xp.log(work.sum(axis=1, keepdims=True), out=lse)
        lse += high
    return lse_N1


def _check(logits: Array, targets: Array, divisor: float | None) -> None:
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ArgumentError(f"cross_entropy: logits has shape {logits.shape}, needs (..., V).")
    if logits.dtype.kind != "f" and logits.dtype.name != "bfloat16":
        raise UnsupportedError(
            f"cross_entropy: logits has dtype {logits.dtype.name}, needs a float dtype."
        )
    if targets.shape != logits.shape[:-1]:
        raise ArgumentError(
            f"cross_entropy: targets has shape {targets.shape}, needs {logits.shape[:-1]} = "
            "that of logits without the last axis."
        )
    if divisor is not None and not divisor >= 0:
        raise ArgumentError(f"cross_entropy: divisor is {divisor}, needs a count of tokens.")

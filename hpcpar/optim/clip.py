"""The norm of all gradients together, and scaling them down to a largest norm."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .._arrays import Array, namespace
from ..errors import ArgumentError
from .optimizer import Reduce, blocks

__all__ = ["clip_grad_norm", "grad_norm"]


def clip_grad_norm(
    grads: Mapping[str, Array],
    max_norm: float,
    reduce: Reduce | None = None,
    *,
    norm_type: float = 2.0,
) -> float:
    """Scale `grads` in place so that their common norm is at most `max_norm`. Local.

    Parameters
    ----------
    grads
        Arrays of any shape and float dtype; may be empty.
    max_norm
        The largest norm to let through; ``inf`` only measures.
    reduce
        ``reduce(value, op)`` combines a 0-d float64 array over the ranks that hold the other
        parts of the gradients ("sum", or "max" for the inf norm), e.g. ``group.all_reduce``.
        It is called exactly once, also without gradients: collective over those ranks. Each
        element must be counted on one rank only.
    norm_type
        2, 1 or ``inf``.

    Returns
    -------
    norm
        Before scaling. If it is not finite, `grads` are left as they are: skip the step.

    Raises
    ------
    ArgumentError
        `max_norm` is not above 0, or another `norm_type`.

    Notes
    -----
    Sums run in float64. The factor is ``max_norm / (norm + 1e-6)``, as in PyTorch.

    Examples
    --------
    >>> import numpy as np
    >>> grads = {"a": np.array([3.0]), "b": np.array([4.0])}
    >>> clip_grad_norm(grads, 1.0), round(grads["a"].item(), 3)
    (5.0, 0.6)
    """
    if not max_norm > 0:
        raise ArgumentError(f"clip_grad_norm: max_norm is {max_norm}, needs a number above 0.")
    norm = grad_norm(grads, reduce, norm_type=norm_type)
    factor = max_norm / (norm + 1e-6)
    if math.isfinite(norm) and factor < 1:
        for grad in grads.values():
            grad *= factor
    return norm


def grad_norm(
    grads: Mapping[str, Array], reduce: Reduce | None = None, *, norm_type: float = 2.0
) -> float:
    """Return the norm that `clip_grad_norm` clips, and change nothing. Local."""
    if norm_type not in (1, 2, math.inf):
        raise ArgumentError(f"clip_grad_norm: norm_type is {norm_type}, needs 2, 1 or inf.")
    op = "max" if norm_type == math.inf else "sum"
    xp = namespace(next(iter(grads.values()), None))
    parts = [_block_norm(block, norm_type) for grad in grads.values() for (block,) in blocks(grad)]
    total = xp.zeros((), np.float64)
    for part in parts:
        total = xp.maximum(total, part) if op == "max" else total + part
    if reduce is not None:
        total = reduce(xp.asarray(total), op)
    return math.sqrt(float(total)) if norm_type == 2 else float(total)


def _block_norm(block: Array, norm_type: float) -> Array:
    """Return sum of squares, sum of magnitudes, or largest magnitude, in float64."""
    xp = namespace(block)
    values = block.astype(np.float64).reshape(-1)
    if norm_type == 2:
        result: Array = xp.dot(values, values)
    elif norm_type == 1 or not values.size:
        result = xp.abs(values).sum()
    else:
        result = xp.abs(values).max()
    return result

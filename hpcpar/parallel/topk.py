"""Top-k: only the largest gradients travel, the rest waits for its turn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..errors import ArgumentError
from .buffers import Buffers, Layout
from .hooks import CommHook, Flow, GradBucket, Onward, State
from .residual import Residual

__all__ = ["TopK", "topk_nbytes"]


def topk_nbytes(count: int, itemsize: int, fraction: float) -> int:
    """Return the bytes that a rank gives to each other one for a bucket of `count` elements. Pure.

    Values of half types travel in float32.

    Examples
    --------
    >>> topk_nbytes(1000, 4, 0.01)
    80
    """
    return _chosen(count, fraction) * (4 + max(4, itemsize))


def _chosen(count: int, fraction: float) -> int:
    return min(count, math.ceil(count * fraction))


class TopK(CommHook):
    """Sends the largest gradients of each bucket by magnitude, with their places.

    What is not sent is kept, and added to the gradients of the next step (error feedback): the
    means that arrive over many steps add up to all gradients. Every rank gathers the choices of all
    others: ``(n - 1) * k * (4 + itemsize)`` bytes, less than an all-reduce while ``k`` is below
    about ``1/n`` of the bucket. Ends the chain: nothing after it is called.

    Parameters
    ----------
    fraction
        Share of each bucket that is sent, above 0 and up to 1; rounded up.
    start_step
        Synchronised steps that are not compressed, while gradients change quickly.
    momentum
        In [0, 1). Above 0 the choice is made among each rank's gradients with momentum, which the
        optimizer must not add again: with the momentum of an `SGD` here, and none there, late
        gradients have the direction that they would have had in time (momentum correction). The
        momentum of what is sent begins anew (factor masking). With weights it is that of products.

    Raises
    ------
    ArgumentError
        Another fraction or momentum, a negative step.

    Notes
    -----
    A gradient that waits for 100 steps comes as the sum of 100: clipping the averaged gradients
    then takes away most of it, and `AdamW` makes a step of it that is not larger than that of one.

    References
    ----------
    Lin et al., Deep Gradient Compression, ICLR 2018, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.parallel import DDP
    >>> ddp = DDP({"w": np.zeros(4)}, hooks=[TopK(0.25)])
    >>> for _ in range(3):
    ...     with ddp.step() as step:
    ...         step.put("w", np.array([1.0, 3.0, 0.0, 2.0]))
    ...     print(ddp.grads["w"].tolist())
    [0.0, 3.0, 0.0, 0.0]
    [0.0, 0.0, 0.0, 4.0]
    [0.0, 6.0, 0.0, 0.0]
    """

    has_state = True

    def __init__(self, fraction: float, *, start_step: int = 0, momentum: float = 0.0) -> None:
        if not 0 < fraction <= 1 or start_step < 0 or not 0 <= momentum < 1:
            raise ArgumentError(
                f"TopK: fraction {fraction} must be above 0 and at most 1, start_step {start_step} "
                f"at least 0, momentum {momentum} in [0, 1)."
            )
        self._fraction, self._start_step, self._momentum = fraction, start_step, momentum

    def __repr__(self) -> str:
        return f"TopK({self._fraction}, start_step={self._start_step}, momentum={self._momentum})"

    def start(self, buffers: Buffers, layout: Layout, group: Group) -> None:
        """Make room for what is not sent, and for momentum."""
        self._residual = Residual(layout, group)
        self._velocity = Residual(layout, group, "momentum") if self._momentum else None

    def rebuilt(self, layout: Layout) -> None:
        """Keep what is not sent."""
        for kept in self._kept:
            kept.rebuilt(layout)

    @property
    def _kept(self) -> list[Residual]:
        return [self._residual] if self._velocity is None else [self._residual, self._velocity]

    def reduce(self, x: Array, grad: GradBucket, onward: Onward) -> Flow:
        """Gather everybody's largest, and add them up."""
        is_whole = grad.step < self._start_step
        if is_whole and self._velocity is None:
            return (yield from onward(x, grad))
        kept = self._residual.flat(grad.index)
        moving = self._moving(x, grad)
        if is_whole:
            x[...] = yield from onward(moving.copy(), grad.multiplied)
            self._move(grad.index, moving)
            return x
        total = kept + moving
        count = _chosen(x.size, self._fraction)
        largest = np.argpartition(np.abs(total), x.size - count)[x.size - count :]
        places = np.sort(largest).astype(np.uint32)
        values = total[places]
        mine = np.concatenate([places.view(np.uint8), values.view(np.uint8)])
        rows = yield grad.group.all_gather(mine[None], sizes="equal", async_op=True)
        total[places] = 0  # now that it has been sent: a step that fails keeps all
        kept[...] = total
        self._residual.keep_finite(grad.index)
        moving[places] = 0
        self._move(grad.index, moving)
        total[...] = 0
        for row in rows:  # no place comes twice in one row
            total[row[: 4 * count].view(np.uint32)] += row[4 * count :].view(total.dtype)
        x[...] = grad.divide(total)
        return x

    def _moving(self, x: Array, grad: GradBucket) -> Array:
        """Return this step's products with the weight, with their momentum; a new array."""
        wide = self._residual.flat(grad.index).dtype
        product: Array = grad.weight * x.astype(wide, copy=False)
        if self._velocity is not None:
            product += self._momentum * self._velocity.flat(grad.index)
        return product

    def _move(self, index: int, moving: Array) -> None:
        """Keep the momentum, now that the step went well."""
        if self._velocity is not None:
            self._velocity.flat(index)[...] = moving
            self._velocity.keep_finite(index)

    def state_dict(self) -> State:
        """Return what is not sent yet, and the momentum."""
        return {key: leaf for kept in self._kept for key, leaf in kept.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with them."""
        for kept in self._kept:
            kept.check_state(state)
        for kept in self._kept:
            kept.load_state_dict(state)

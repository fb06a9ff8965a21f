"""Local SGD: each rank steps by its own gradients, and parameters are averaged now and then."""

from __future__ import annotations

from collections.abc import Mapping

from .._arrays import Array
from ..comm.group import Group
from ..errors import ArgumentError
from .buffers import Buffers, Layout
from .hooks import CommHook, Flow, GradBucket, Onward

__all__ = ["LocalSGD"]


class LocalSGD(CommHook):
    """Reduces gradients until `start_step`; after it parameters are averaged every `period` steps.

    In between the ranks' parameters differ. Call `average` after each update; it does nothing when
    it is not due.

    Parameters
    ----------
    period
        Steps from one averaging to the next, 1 or more.
    start_step
        Synchronised steps that are reduced as always, while parameters change quickly.
    group
        A smaller group that goes on reducing every step, as ``group.node``; None: nobody does.

    Raises
    ------
    ArgumentError
        A period below 1, a negative step.

    References
    ----------
    Lin et al., Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020 (post-local SGD).

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.parallel import DDP
    >>> local = LocalSGD(period=2, start_step=0)
    >>> ddp = DDP({"w": np.zeros(1)}, hooks=[local])
    >>> for _ in range(2):
    ...     with ddp.step() as step:
    ...         step.put("w", np.ones(1))
    ...     ddp.params["w"] -= ddp.grads["w"]
    ...     print(local.average(ddp.params))
    False
    True
    """

    stays_local = True

    def __init__(self, period: int, *, start_step: int, group: Group | None = None) -> None:
        if period < 1 or start_step < 0:
            raise ArgumentError(
                f"LocalSGD: period {period} must be at least 1, start_step {start_step} at least 0."
            )
        self._period, self._start_step, self._part = period, start_step, group
        self._step = -1

    def __repr__(self) -> str:
        part = "" if self._part is None else f", group of {self._part.size}"
        return f"LocalSGD({self._period}, start_step={self._start_step}{part})"

    def start(self, buffers: Buffers, layout: Layout, group: Group) -> None:
        """Keep the group that averages."""
        self._group = group

    def reduce(self, x: Array, grad: GradBucket, onward: Onward) -> Flow:
        """Reduce over all, over some, or not at all."""
        self._step = grad.step
        if grad.step < self._start_step:
            return (yield from onward(x, grad))
        if self._part is not None:
            yield self._part.all_reduce(x, "mean", weight=grad.portion, out=x, async_op=True)
        return x

    def average(self, params: Mapping[str, Array]) -> bool:
        """Average `params` over all ranks in place, if it is due; return whether it was.

        Collective over the `DDP`'s group.
        """
        since = self._step + 1 - self._start_step
        if since <= 0 or since % self._period:
            return False
        arrays = list(params.values())
        self._group.all_reduce(arrays, "mean", out=arrays)  # a tree travels in buckets
        return True

"""Communication hooks: what happens to a bucket between the backward pass and the wire.

Hooks form a chain. Each takes a bucket's gradients, gives something smaller to the next, and makes
the mean over the ranks of what comes back; the last one's is reduced by the group. A hook is a
generator: it yields the operations that it begins and is sent their results, so that the backward
pass goes on meanwhile. First operations begin in launch order, as buckets fill. What follows them
waits for the end of the step, and begins in rounds over all buckets: so the order of operations
depends on the plan only, never on timing, and is the same on all ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np

from .._arrays import Array, as_dtype
from .._core import PackPlan
from ..comm.group import Group
from ..comm.reductions import Portion, premul_sum
from ..comm.work import Work
from ..errors import ArgumentError
from .bucket import Bucket
from .buffers import Buffers, Layout

__all__ = ["Cast", "CommHook", "Flow", "GradBucket", "Onward", "State", "run_chain"]

#: Yields operations, is sent their results, returns the mean over the ranks, in its first array.
Flow: TypeAlias = Generator[Work, Any, Array]
#: The rest of the chain, for an array and what is to be known of it.
Onward: TypeAlias = Callable[[Array, "GradBucket"], Flow]
State: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class GradBucket:
    """A bucket on its way.

    Attributes
    ----------
    index
        Its place in launch order.
    plan
        Its members.
    group
        Ranks that reduce it.
    divisor
        What the sum over these ranks is divided by: the size of the `DDP`'s group, also where a
        smaller group reduces (experts).
    step
        Synchronised steps before this one.
    portion
        This rank's weight in the mean; None: all count alike.
    agreed
        Sum of all ranks' weights, once the ranks have told them: after a first operation.
    """

    index: int
    plan: Bucket
    group: Group
    divisor: int
    step: int
    portion: Portion | None
    agreed: list[float]

    @property
    def is_partial(self) -> bool:
        """Whether only some of the `DDP`'s ranks reduce it."""
        return self.divisor != self.group.size

    def mean(self, x: Array) -> Flow:
        """Reduce `x` in place as it is: the end of every chain."""
        if not self.is_partial:
            yield self.group.all_reduce(x, "mean", weight=self.portion, out=x, async_op=True)
            return x
        if self.portion is not None and not self.portion.multiplied:
            scale(x, self.portion.weight)
        yield self.group.all_reduce(x, premul_sum(1 / self.divisor), out=x, async_op=True)
        if self.portion is not None and self.agreed[0]:
            scale(x, self.agreed[0] / self.divisor, np.divide)
        return x

    @property
    def weight(self) -> float:
        """What this rank's gradients are multiplied by before they are summed."""
        return 1.0 if self.portion is None else self.portion.weight

    @property
    def multiplied(self) -> GradBucket:
        """The same for an array that is multiplied by the weight already."""
        if self.portion is None:
            return self
        return replace(self, portion=Portion(self.portion.weight, multiplied=True))

    def divide(self, total: Array) -> Array:
        """Return the mean for the sum of all ranks' products; after a first operation."""
        whole = self.divisor if self.portion is None else self.agreed[0] or 1.0
        mean: Array = total / total.dtype.type(whole)
        return mean


class CommHook(ABC):
    """One link of the chain; see the module for the order of operations.

    State is kept by parameter name, so that it outlives a new plan and can be saved.

    Attributes
    ----------
    stays_local
        Whether gradients may stay as they are on each rank.
    has_state
        Whether `state_dict` returns something.
    """

    stays_local: ClassVar[bool] = False
    has_state: ClassVar[bool] = False

    def __repr__(self) -> str:
        """Name the settings, which must be the same on all ranks."""
        return f"{type(self).__name__}()"

    def start(self, buffers: Buffers, layout: Layout, group: Group) -> None:  # noqa: B027
        """Make what the first step needs. Collective over the `DDP`'s group."""

    def rebuilt(self, layout: Layout) -> None:  # noqa: B027
        """Take note of a new plan of the same parameters. Local."""

    @abstractmethod
    def reduce(self, x: Array, grad: GradBucket, onward: Onward) -> Flow:
        """Write the mean of `x`, a flat array, over the ranks into it.

        Every rank yields as many operations. ``onward(y, grad)`` is the rest of the chain: the
        mean of `y`, weighted as `grad` says. A hook that sums by itself sums products with
        ``grad.weight``, and gives the sum to ``grad.divide``.
        """

    def state_dict(self) -> State:
        """Return what a restarted run needs. Collective over the `DDP`'s group."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Go on from what `state_dict` returned. Local."""


def run_chain(hooks: Sequence[CommHook], x: Array, grad: GradBucket) -> Flow:
    """Return the flow of a bucket through all hooks. Local."""
    if not hooks:
        return grad.mean(x)
    return hooks[0].reduce(x, grad, partial(run_chain, hooks[1:]))


def scale(x: Array, factor: float, by: np.ufunc = np.multiply) -> Array:
    """Scale `x` in place; in float32 where the dtype has fewer bits than the factor."""
    if x.dtype.itemsize > 2:
        by(x, factor, out=x)
    else:
        x[...] = by(x.astype(np.float32), factor)
    return x


class Cast(CommHook):
    """Sends gradients in a smaller dtype: half the bytes of float32.

    Sums are still made in float32. Gradients of no larger dtype, and complex ones, go as they are.

    Parameters
    ----------
    dtype
        "float16" or "bfloat16" (or "float32", for float64 gradients).

    Raises
    ------
    ArgumentError
        Another dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.parallel import DDP
    >>> ddp = DDP({"w": np.zeros(2, np.float32)}, hooks=[Cast("bfloat16")])
    >>> with ddp.step() as step:
    ...     step.put("w", np.array([1.0, 1.001]))
    >>> ddp.grads["w"]
    array([1., 1.], dtype=float32)
    """

    def __init__(self, dtype: str) -> None:
        if dtype not in ("float16", "bfloat16", "float32"):
            raise ArgumentError(f"Cast: dtype {dtype!r} must be float16, bfloat16 or float32.")
        self._name = dtype
        self._dtype = as_dtype(dtype)

    def __repr__(self) -> str:
        return f"Cast({self._name!r})"

    def start(self, buffers: Buffers, layout: Layout, group: Group) -> None:
        """Make buffers of the smaller dtype."""
        self._buffers = buffers.companion(self._dtype)
        self.rebuilt(layout)

    def rebuilt(self, layout: Layout) -> None:
        """Lay the buffers out anew."""
        self._layout = self._buffers.lay_out(layout.buckets)

    def reduce(self, x: Array, grad: GradBucket, onward: Onward) -> Flow:
        """Reduce a copy of the smaller dtype."""
        if x.dtype.kind == "c" or x.dtype.itemsize <= self._dtype.itemsize:
            return (yield from onward(x, grad))
        plan = PackPlan([(x.shape, x.dtype)], self._dtype)
        small = self._layout.flats[grad.index][: x.size]
        if small.size < x.size:  # a hook before this one sends more than the bucket holds
            small = np.empty(x.size, self._dtype)
        plan.pack([x], small)
        plan.unpack((yield from onward(small, grad)), [x])
        return x

"""Adam with decoupled weight decay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

from .._arrays import Array, namespace
from .optimizer import Optimizer, Reduce, State, each_parameter, init_slots, require

__all__ = ["AdamW"]

_SLOTS = ("m", "v")


@dataclass(frozen=True)
class AdamW(Optimizer):
    """``w -= lr (weight_decay w + mhat / (sqrt(vhat) + eps))``.

    Parameters
    ----------
    beta1, beta2
        Decay of the means of the gradient (m) and of its square (v), in [0, 1).
    eps
        Added to the root, above 0.
    weight_decay
        Decoupled: it does not pass through m and v.
    no_decay
        Patterns (``*``, ``?``, here across dots) of names that do not decay, e.g.
        ``("*.bias", "*norm*")``.

    Raises
    ------
    ArgumentError
        A setting is out of range.

    References
    ----------
    Kingma, Ba, "Adam", 2015, algorithm 1; Loshchilov, Hutter, "Decoupled Weight Decay
    Regularization", 2019, algorithm 2 with the schedule multiplier folded into `lr`.

    Examples
    --------
    >>> import numpy as np
    >>> adamw, w = AdamW(weight_decay=0.0), {"w": np.array([1.0])}
    >>> adamw.update(w, {"w": np.array([3.0])}, adamw.init(w), lr=0.125)
    >>> round(w["w"].item(), 6)  # the first step is lr, whatever the gradient's size
    0.875
    """

    needs: ClassVar[Literal["element", "norm", "whole"]] = "element"

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    no_decay: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(
            "AdamW",
            beta1=(self.beta1, 0 <= self.beta1 < 1, "0 <= beta1 < 1"),
            beta2=(self.beta2, 0 <= self.beta2 < 1, "0 <= beta2 < 1"),
            eps=(self.eps, self.eps > 0, "a number above 0"),
            weight_decay=(self.weight_decay, self.weight_decay >= 0, "0 or more"),
        )

    def decays(self, name: str) -> bool:
        """Whether the parameter `name` decays. Local."""
        return not any(fnmatchcase(name, pattern) for pattern in self.no_decay)

    def init(self, params: Mapping[str, Array]) -> dict[str, Any]:
        """Return step counts, ``m.<name>`` and ``v.<name>``. Local."""
        return init_slots(params, _SLOTS)

    def update(
        self,
        params: Mapping[str, Array],
        grads: Mapping[str, Array],
        state: State,
        *,
        lr: float,
        reduce: Reduce | None = None,
    ) -> None:
        """Take one step in place; see `Optimizer.update`. Local."""
        for name, step, parts in each_parameter(params, grads, state, lr, _SLOTS):
            keep = 1 - lr * self.weight_decay if self.decays(name) else 1.0
            for weight, grad, m, v in parts:
                weight *= keep
                weight -= self._move(grad, m, v, step, lr)

    def _move(self, grad: Array, m: Array, v: Array, step: int, lr: float) -> Array:
        """Update m and v; return ``lr mhat / (sqrt(vhat) + eps)``."""
        work = grad * (1 - self.beta1)
        m *= self.beta1
        m += work
        namespace(grad).multiply(grad, grad, out=work)
        work *= 1 - self.beta2
        v *= self.beta2
        v += work
        namespace(grad).sqrt(v, out=work)
        work *= 1 / math.sqrt(1 - self.beta2**step)
        work += self.eps
        namespace(grad).divide(m, work, out=work)
        work *= lr / (1 - self.beta1**step)
        return work

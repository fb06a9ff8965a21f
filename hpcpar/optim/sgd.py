"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .._arrays import Array
from ..errors import ArgumentError
from .optimizer import Optimizer, Reduce, State, each_parameter, init_slots, require

__all__ = ["SGD"]


@dataclass(frozen=True)
class SGD(Optimizer):
    """``g += weight_decay w; buf = momentum buf + g; w -= lr buf``.

    With `nesterov` the last step is ``w -= lr (g + momentum buf)``.

    Parameters
    ----------
    momentum
        In [0, 1); 0 keeps no buffer.
    nesterov
        Look ahead along the momentum; needs momentum above 0.
    weight_decay
        L2 penalty, added to the gradient.

    Raises
    ------
    ArgumentError
        A setting is out of range.

    References
    ----------
    Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013,
    section 2; with the learning rate outside the buffer, as in PyTorch.

    Examples
    --------
    >>> import numpy as np
    >>> sgd, w = SGD(), {"w": np.array([1.0])}
    >>> sgd.update(w, {"w": np.array([2.0])}, sgd.init(w), lr=0.25)
    >>> w["w"].item()
    0.5
    """

    needs: ClassVar[Literal["element", "norm", "whole"]] = "element"

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require(
            "SGD",
            momentum=(self.momentum, 0 <= self.momentum < 1, "0 <= momentum < 1"),
            weight_decay=(self.weight_decay, self.weight_decay >= 0, "0 or more"),
        )
        if self.nesterov and self.momentum == 0:
            raise ArgumentError("SGD: nesterov is True with momentum 0.0, needs momentum > 0.")

    @property
    def _slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def init(self, params: Mapping[str, Array]) -> dict[str, Any]:
        """Return step counts and, with momentum, ``momentum.<name>``. Local."""
        return init_slots(params, self._slots)

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
        for _, _, parts in each_parameter(params, grads, state, lr, self._slots):
            for weight, grad, *buffers in parts:
                weight -= lr * self._direction(weight, grad, *buffers)

    def _direction(self, weight: Array, grad: Array, buffer: Array | None = None) -> Array:
        if self.weight_decay:
            grad = grad + self.weight_decay * weight
        if buffer is None:
            return grad
        buffer *= self.momentum
        buffer += grad
        return grad + self.momentum * buffer if self.nesterov else buffer

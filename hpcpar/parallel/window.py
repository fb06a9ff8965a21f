"""What has been added up since the last synchronised step: gradients, and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._arrays import Array
from ..nn.layer import Fill
from .hooks import scale

__all__ = ["Window"]


class Window:
    """The micro-steps from one synchronised step to the next.

    Attributes
    ----------
    touched
        Parameters that hold a gradient.
    weights
        One per micro-step.
    error
        Of a micro-step that failed and left partial sums.
    multiplied
        Whether the gradients are sums of products with the weights: so with several micro-steps.
        One alone is multiplied where it is reduced.
    """

    def __init__(self) -> None:
        self.touched: set[str] = set()
        self.weights: list[float | None] = []
        self.error: str | None = None
        self.multiplied = False

    @property
    def weight(self) -> float:
        """Sum over the micro-steps."""
        return sum(weight or 0.0 for weight in self.weights)

    def begin(self, weight: float | None, is_last: bool) -> None:
        """Take note of a micro-step."""
        self.weights.append(weight)
        self.multiplied |= weight is not None and (len(self.weights) > 1 or not is_last)

    def take(self, name: str, view: Array, fill: Fill) -> None:
        """Put a gradient of the current micro-step into the view, onto what is there already."""
        weight = self.weights[-1] if self.multiplied or self.weights[-1] == 0 else None
        add = name in self.touched
        self.touched.add(name)
        if weight == 0:
            if not add:
                view[...] = 0
        elif weight is None:
            fill(out=view, add=add)
        elif add:
            view += scale(fill(), weight)
        else:
            scale(fill(out=view), weight)

    def clear_untouched(self, views: Mapping[str, Any]) -> None:
        """Let nothing of an earlier window travel."""
        for name in views.keys() - self.touched:
            views[name][...] = 0

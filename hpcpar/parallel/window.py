"""What has been added up since the last synchronised step: gradients, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .._arrays import Array
from ..nn.layer import Fill
from .hooks import scale

__all__ = ["FillAll", "Window"]

#: Writes the gradients of some names into arrays, or adds them.
FillAll: TypeAlias = Callable[[Sequence[str], Sequence[Array], bool], object]


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
        weight, add = self.factor, name in self.touched
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

    def take_all(self, names: Sequence[str], views: Mapping[str, Array], fill: FillAll) -> None:
        """Put several gradients into their views, in one call of `fill` if nothing is scaled."""
        if self.factor is not None:
            for name in names:
                self.take(name, views[name], partial(_one, fill, name, views[name]))
            return
        touched = self.touched
        is_new = touched.isdisjoint(names)
        new = names if is_new else [name for name in names if name not in touched]
        old = [] if is_new else [name for name in names if name in touched]
        touched.update(new)
        for some, add in ((new, False), (old, True)):
            if some:
                fill(some, [views[name] for name in some], add)

    @property
    def factor(self) -> float | None:
        """What gradients are multiplied by as they come; None: nothing."""
        return self.weights[-1] if self.multiplied or self.weights[-1] == 0 else None

    def clear_untouched(self, views: Mapping[str, Any], given_up: Sequence[str]) -> None:
        """Let nothing of an earlier window travel; what was given up is on its way."""
        for name in views.keys() - self.touched.union(given_up):
            views[name][...] = 0


def _one(
    fill: FillAll, name: str, view: Array, out: Array | None = None, add: bool = False
) -> Array:
    """Fill one gradient: into `out`, or a new array."""
    out = np.empty_like(view) if out is None else out
    fill([name], [out], add)
    return out

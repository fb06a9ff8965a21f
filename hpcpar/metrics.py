"""Weighted means of numbers over steps and ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ._arrays import Array
from .comm.attach import as_group
from .comm.group import Group
from .errors import ArgumentError

__all__ = ["Means"]


class Means:
    """Adds numbers up locally, and gives their weighted means over all steps and ranks.

    Unlike a mean of means it is right where ranks or steps have other numbers of samples, and where
    a name came on some ranks only.

    Parameters
    ----------
    group
        Ranks whose numbers count; None is the current group.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     means = Means(group)
    ...     losses = [[1.0, 2.0, 3.0, 4.0], [10.0]][group.rank]
    ...     means.update({"loss": sum(losses) / len(losses)}, weight=len(losses))
    ...     return means.compute()
    >>> run_ranks(2, body)
    [{'loss': 4.0}, {'loss': 4.0}]
    """

    def __init__(self, group: Group | None = None) -> None:
        self._group = as_group(group)
        self.reset()

    def update(self, values: Mapping[str, float | Array], weight: float = 1.0) -> None:
        """Add numbers of one step. Local.

        Parameters
        ----------
        values
            Numbers, or arrays of one, by name.
        weight
            What they count, as the tokens that they are means over.

        Raises
        ------
        ArgumentError
            A weight that is negative or not finite, an array of several numbers.
        """
        if not 0 <= weight < math.inf:
            raise ArgumentError(f"Means.update: weight {weight} must be a finite number >= 0.")
        for name, value in values.items():
            if math.prod(getattr(value, "shape", ())) != 1:
                raise ArgumentError(f"Means.update: {name!r} is an array of several numbers.")
        for name, value in values.items():
            if weight:  # what has no samples may be nan
                total, weights = self._sums.get(name, (0.0, 0.0))
                number = value.item() if hasattr(value, "item") else value
                self._sums[name] = (total + weight * float(number), weights + weight)
            else:
                self._sums.setdefault(name, (0.0, 0.0))

    def compute(self) -> dict[str, float]:
        """Return the means over all ranks, by name; nan for what has no weight. Collective.

        Sums are made in rank order: all ranks get the same bits.
        """
        sums: dict[str, tuple[float, float]] = {}
        for rank in self._group.all_gather_object({n: list(s) for n, s in self._sums.items()}):
            for name, (total, weight) in rank.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + total, before[1] + weight)
        return {name: t / w if w else math.nan for name, (t, w) in sums.items()}

    def reset(self) -> None:
        """Forget all numbers. Local."""
        self._sums: dict[str, tuple[float, float]] = {}

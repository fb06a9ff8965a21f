"""Learning rates as functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from ..errors import ArgumentError

__all__ = ["Schedule", "warmup_cosine"]

Schedule: TypeAlias = Callable[[int], float]


def warmup_cosine(peak: float, *, warmup: int, total: int, floor: float = 0.0) -> Schedule:
    """Return a schedule: linear up to `peak`, half a cosine down to `floor`, then flat. Local.

    Parameters
    ----------
    peak
        Highest learning rate.
    warmup
        Steps on the way up: step s < warmup has ``peak (s + 1) / warmup``. 0: start at the peak.
    total
        Step from which the rate is `floor`; above `warmup`.
    floor
        Lowest rate after the way up.

    Returns
    -------
    schedule
        Maps a step, counted from 0, to its rate; a pure function, so resuming needs no state.

    Raises
    ------
    ArgumentError
        ``0 <= floor <= peak`` or ``0 <= warmup < total`` does not hold.

    References
    ----------
    Loshchilov, Hutter, "SGDR", 2017, equation 5, without restarts.

    Examples
    --------
    >>> schedule = warmup_cosine(1.0, warmup=2, total=6)
    >>> [round(schedule(step), 6) for step in (0, 1, 2, 4, 6, 99)]
    [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """
    if not 0 <= floor <= peak:
        raise ArgumentError(f"warmup_cosine: floor is {floor}, needs 0 <= floor <= peak {peak}.")
    if not 0 <= warmup < total:
        raise ArgumentError(
            f"warmup_cosine: warmup is {warmup}, needs 0 <= warmup < total {total}."
        )

    def _schedule(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        done = min(1.0, (step - warmup) / (total - warmup))
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return _schedule

"""Timing of whole training steps: ways take turns within each round, and differences are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group

__all__ = ["by_turns", "median_interval"]

_WARMUP = 3


def by_turns(
    group: Group,
    calls: Sequence[Callable[[], Any]],
    rounds: int,
    repeats: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Array:
    """Time calls by turns, each round in another order. Collective over `group`.

    Returns
    -------
    ndarray
        Seconds of one call, of the slowest rank, shape ``(rounds, len(calls))``.
    """
    seconds = np.zeros((rounds + _WARMUP, len(calls)))
    for turn in range(len(seconds)):
        for at in np.roll(range(len(calls)), turn):
            group.barrier()
            began = time.perf_counter()
            for _ in range(repeats):
                calls[at]()
            seconds[turn, at] = (time.perf_counter() - began) / repeats
        if progress is not None:
            progress(f"round {turn + 1}/{len(seconds)}")
    slowest: Array = group.all_reduce(seconds[_WARMUP:], "max")
    return slowest


def median_interval(
    rounds: Array, figure: Callable[[Array], Array], picks: int = 2000
) -> tuple[float, float, float]:
    """Return a figure of medians and the bootstrap interval of 95 % around it. Pure.

    Parameters
    ----------
    rounds
        One row per round.
    figure
        From the rows along the axis before the last to one number each.

    Examples
    --------
    >>> import numpy as np
    >>> median_interval(np.full((9, 1), 2.0), lambda rows: np.median(rows[..., 0], axis=-1))
    (2.0, 2.0, 2.0)
    """
    random = np.random.default_rng(0)
    drawn = rounds[random.integers(len(rounds), size=(picks, len(rounds)))]
    low, high = np.quantile(figure(drawn), [0.025, 0.975])
    return float(figure(rounds)), float(low), float(high)

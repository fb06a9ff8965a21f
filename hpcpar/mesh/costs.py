"""What moving takes along a mesh axis: latency and bandwidth, assumed or measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from statistics import median

import numpy as np

from ..comm.group import Group

__all__ = ["Costs", "measure_costs"]

_ROUNDS, _LARGE = 9, 1 << 22


@dataclass(frozen=True)
class Costs:
    """What moving takes, in seconds, by which ways of redistribution are compared.

    Attributes
    ----------
    latency : float
        Of a collective of two ranks; that of more grows with their logarithm.
    per_byte : float
        For each byte that a rank receives.
    copy : float
        For each byte that is copied on the way.
    """

    latency: float = 20e-6
    per_byte: float = 2e-10
    copy: float = 1e-10


def measure_costs(group: Group) -> Costs:
    """Measure, and return what rank 0 found on all ranks. Collective over the group; 0.1 s.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> found = run_ranks(2, measure_costs)
    >>> found[0] == found[1], found[0].latency > 0
    (True, True)
    """
    small, large = np.zeros(1), np.zeros(_LARGE, np.uint8)
    copied, gathered = np.empty_like(large), np.empty(_LARGE * group.size, np.uint8)
    copy = _seconds(lambda: np.copyto(copied, large)) / _LARGE
    alone = _seconds(lambda: group.all_reduce(small, out=small))
    whole = _seconds(lambda: group.all_gather(large, sizes="equal", out=gathered))
    received = max(1, group.size - 1) * _LARGE
    doublings = max(1.0, math.log2(group.size))
    found = Costs(alone / doublings, max(whole - alone, copy * received) / received, copy)
    told = group.broadcast(np.array(astuple(found)))
    return Costs(*map(float, told))


def _seconds(do: Callable[[], object]) -> float:
    """Return the median time of a few runs."""
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        do()
        times.append(time.perf_counter() - start)
    return median(times)

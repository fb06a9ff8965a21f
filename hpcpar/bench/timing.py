"""The loop that times: contestants take turns in short rounds, so that drift hits all alike.

All contestants run through the same two loops, as callables without arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from .formulas import median, quantile

__all__ = ["ROUND_SECONDS", "Times", "compare", "time_all"]

#: Length of one contestant's turn in a round: above the scheduler's noise, below the patience of
#: a reader who waits for a hundred of them.
ROUND_SECONDS = 0.01
_MOST_CALLS = 10_000

Call = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """What was measured of one contestant; equal on all ranks. Seconds of one call.

    Attributes
    ----------
    calls : int
        Calls in one round.
    rounds : tuple of float
        Mean of each round on the rank that was slowest in it.
    p99 : float
        99th percentile of single calls on the rank where it is largest.
    """

    calls: int
    rounds: tuple[float, ...]
    p99: float

    @property
    def median(self) -> float:
        """The median round."""
        return median(self.rounds)

    @property
    def best(self) -> float:
        """The fastest round."""
        return min(self.rounds)


def time_all(
    group: Group,
    contestants: Mapping[str, Call],
    *,
    barrier: Call,
    rounds: int,
    warmup: int,
    seconds: float = ROUND_SECONDS,
) -> dict[str, Times]:
    """Time each contestant in `rounds` rounds. Collective over `group`.

    Parameters
    ----------
    group : Group
        Agrees on numbers of calls and on the slowest rank.
    contestants : mapping of str to callable
        The same names in the same order on all ranks.
    barrier : callable
        Runs before each turn.
    rounds : int
        Turns of each contestant; which one begins changes from round to round.
    warmup : int
        Calls before the clock runs, at least 1.
    seconds : float
        Length of a turn.
    """
    counts = {
        name: _choose_count(group, call, barrier, warmup, seconds)
        for name, call in contestants.items()
    }
    means = np.zeros((len(contestants), rounds))
    singles: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for turn in range(rounds):
        first = turn % len(order)
        for name in order[first:] + order[:first]:
            barrier()
            means[order.index(name), turn] = _mean_of(contestants[name], counts[name])
            barrier()
            singles[name] += _each_of(contestants[name], max(2, counts[name] // 8))
    tails = np.array([quantile(singles[name], 0.99) for name in order])
    slowest: Array = group.all_reduce(np.concatenate([means.ravel(), tails]), "max")
    by_round = slowest[: means.size].reshape(means.shape)
    return {
        name: Times(counts[name], tuple(by_round[i].tolist()), float(slowest[means.size + i]))
        for i, name in enumerate(order)
    }


def compare(ours: Times, peer: Times) -> tuple[float, float]:
    """Return the ratio peer / ours and the difference ours - peer, each the median of rounds.

    Local, pure. Rounds are paired: both halves of a pair were measured within milliseconds.

    Examples
    --------
    >>> compare(Times(1, (2.0, 4.0, 8.0), 8.0), Times(1, (4.0, 8.0, 8.0), 8.0))
    (2.0, -2.0)
    """
    pairs = list(zip(ours.rounds, peer.rounds, strict=True))
    return median([theirs / mine for mine, theirs in pairs]), median(
        [mine - theirs for mine, theirs in pairs]
    )


def _choose_count(group: Group, call: Call, barrier: Call, warmup: int, seconds: float) -> int:
    """Warm up, then find the calls that fill a turn; the slowest rank's estimate counts."""
    for _ in range(max(1, warmup)):
        call()
    calls, passed = 1, 0.0
    while True:
        barrier()
        passed = float(group.all_reduce(_mean_of(call, calls) * calls, "max"))
        if passed >= seconds / 8 or calls >= _MOST_CALLS:
            break
        calls = min(8 * calls, _MOST_CALLS)
    return min(max(1, round(seconds * calls / max(passed, 1e-9))), _MOST_CALLS)


def _mean_of(call: Call, calls: int) -> float:
    turns = range(calls)
    begin = perf_counter()
    for _ in turns:
        call()
    return (perf_counter() - begin) / calls


def _each_of(call: Call, calls: int) -> list[float]:
    stamps = [perf_counter()]
    note = stamps.append
    for _ in range(calls):
        call()
        note(perf_counter())
    return [end - begin for begin, end in pairwise(stamps)]

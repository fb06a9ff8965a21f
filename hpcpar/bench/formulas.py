"""Bandwidths and statistics of a benchmark. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..errors import ArgumentError

__all__ = [
    "BUS_FACTORS",
    "algbw",
    "busbw",
    "median",
    "parse_bytes",
    "quantile",
    "size_steps",
]


def _rest(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one(ranks: int) -> float:
    return 1.0


#: busbw / algbw by verb, a function of the number of ranks; as nccl-tests has them.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * _rest(ranks),
    "reduce_scatter": _rest,
    "all_gather": _rest,
    "all_to_all": _rest,
    "gather": _rest,
    "scatter": _rest,
    "broadcast": _one,
    "reduce": _one,
    "scan": _one,
    "sendrecv": _one,
    "send": float,
}

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def algbw(nbytes: int, seconds: float) -> float:
    """Return what the caller sees, GB/s of 10^9 bytes: S / time. Local, pure.

    Parameters
    ----------
    nbytes : int
        S: bytes of one rank's array; of the whole array for verbs that cut or join it.
    seconds : float
        Time of one operation.
    """
    return nbytes / seconds / 1e9


def busbw(verb: str, ranks: int, nbytes: int, seconds: float) -> float:
    """Return what the wire sees with a bandwidth-optimal algorithm, GB/s. Local, pure.

    Parameters
    ----------
    verb : str
        A key of `BUS_FACTORS`.
    ranks : int
        Size of the group.
    nbytes, seconds
        As for `algbw`.

    Examples
    --------
    >>> busbw("all_reduce", 4, 10**9, 0.5)
    3.0
    """
    return algbw(nbytes, seconds) * BUS_FACTORS[verb](ranks)


def median(values: Sequence[float]) -> float:
    """Return the median; of an even number of values the mean of the middle two. Local, pure."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], q: float) -> float:
    """Return the `q`-quantile, linear between order statistics as `numpy.quantile`. Local, pure.

    Examples
    --------
    >>> quantile([3.0, 1.0, 2.0, 5.0], 0.5)
    2.5
    """
    assert values
    assert 0 <= q <= 1
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def parse_bytes(text: str) -> int:
    """Return a number of bytes: digits, then perhaps K, M or G (powers of 1024). Local, pure.

    Raises
    ------
    ArgumentError
        It is something else, or 0.

    Examples
    --------
    >>> parse_bytes("25M")
    26214400
    """
    digits = text.upper().removesuffix("B").removesuffix("I")
    unit = digits[-1:] if digits[-1:] in _UNITS else ""
    number = digits.removesuffix(unit)
    if not (number.isascii() and number.isdigit()) or int(number) == 0:
        raise ArgumentError(f"{text!r} is no size: write bytes as 4, 64K, 25M or 1G.")
    return int(number) * _UNITS[unit]


def size_steps(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from `smallest` times `factor` while at most `largest`. Local, pure.

    `largest` itself is always the last, so that a range ends where it was said to.

    Raises
    ------
    ArgumentError
        A size below 1, an empty range, a factor below 2.

    Examples
    --------
    >>> size_steps(4, 100, 4)
    (4, 16, 64, 100)
    """
    if smallest < 1 or largest < smallest:
        raise ArgumentError(f"sizes from {smallest} to {largest} bytes: the range is empty.")
    if factor < 2:
        raise ArgumentError(f"factor {factor}: sizes are multiplied by it; it is at least 2.")
    steps = [smallest]
    while steps[-1] * factor <= largest:
        steps.append(steps[-1] * factor)
    return (*steps, *([largest] if steps[-1] != largest else []))

"""Reduction operations by name: parsing, the dtype x op table, neutral elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._core import reducible
from ..errors import ArgumentError, UnsupportedError

__all__ = ["OPS", "Portion", "PremulSum", "Reduction", "neutral", "parse", "premul_sum"]

OPS = ("sum", "mean", "prod", "min", "max", "band", "bor", "bxor")


@dataclass(frozen=True)
class PremulSum:
    """A sum of ``factor * x`` over the ranks, multiplied before anything is added."""

    factor: float


@dataclass(frozen=True)
class Portion:
    """A rank's weight where it may not multiply by it, and where all weights may be zero.

    The mean with Portions as weights is zero if all weights are: ranks without any samples.

    Parameters
    ----------
    weight : float
        Finite, not negative.
    multiplied : bool
        x is a sum of products already, which only lacks the division by all ranks' weights.
    """

    weight: float
    multiplied: bool = False


def premul_sum(factor: float) -> PremulSum:
    """Return the reduction that sums ``factor * x``, multiplied in the accumulator. Local.

    Parameters
    ----------
    factor : float
        Finite; the same on every rank of the group.

    Raises
    ------
    ArgumentError
        `factor` is no finite real number.

    Examples
    --------
    >>> import hpcpar as hp
    >>> float(hp.as_group().all_reduce(4.0, hp.premul_sum(0.5)))
    2.0
    """
    if isinstance(factor, bool) or not isinstance(factor, (int, float, np.integer, np.floating)):
        raise ArgumentError(f"premul_sum: factor {factor!r} must be a real number.")
    if not math.isfinite(factor):
        raise ArgumentError(f"premul_sum: factor {factor!r} must be finite.")
    return PremulSum(float(factor))


class Reduction(NamedTuple):
    """A parsed `op`: its name in the table, what the backend runs, the agreed factor."""

    name: str
    primitive: str
    factor: float | None

    def divisor(self, size: int) -> float | None:
        """Return what the accumulator is divided by for `size` ranks."""
        return float(size) if self.name == "mean" else None

    def factors(self, size: int) -> tuple[float, ...] | None:
        """Return each rank's factor, or None for plain sums."""
        return None if self.factor is None else (self.factor,) * size

    def __str__(self) -> str:
        return self.name if self.factor is None else f"{self.name}({self.factor!r})"


_PARSED = {name: Reduction(name, name, None) for name in OPS}
_PARSED["mean"] = _PARSED["avg"] = Reduction("mean", "sum", None)


def parse(op: Any, verb: str) -> Reduction:
    """Return the Reduction of `op`, a name or a PremulSum.

    Raises
    ------
    ArgumentError
        Unknown name.
    """
    if isinstance(op, PremulSum):
        return Reduction("premul_sum", "sum", op.factor)
    found = _PARSED.get(op) if isinstance(op, str) else None
    if found is None:
        names = ", ".join(OPS)
        raise ArgumentError(f"{verb}: op {op!r} is not one of {names} or hp.premul_sum(factor).")
    return found


def check_dtype(dtype: np.dtype[Any], reduction: Reduction, verb: str) -> None:
    """Raise UnsupportedError where the dtype x op table has no entry."""
    if not reducible(dtype, reduction.name):
        raise UnsupportedError(
            f"{verb}: op {reduction.name!r} has no meaning for dtype {dtype.name}; "
            "the dtype x op table of the guide lists what has. Convert x first."
        )


def neutral(op: str, dtype: np.dtype[Any]) -> Any:
    """Return the element that changes nothing under primitive `op`."""
    if op in ("sum", "bor", "bxor"):
        return np.zeros((), dtype)
    if op == "prod":
        return np.ones((), dtype)
    if op == "band":
        return ~np.zeros((), dtype)
    return np.array(_extreme(dtype, lowest=op == "max"), dtype)


def _extreme(dtype: np.dtype[Any], *, lowest: bool) -> Any:
    if dtype.kind == "b":
        return not lowest
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min if lowest else info.max
    if dtype.name == "float8_e4m3fn":  # has no infinity: its largest finite number
        return -448.0 if lowest else 448.0
    return -np.inf if lowest else np.inf

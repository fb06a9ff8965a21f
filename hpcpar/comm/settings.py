"""What `init` is told, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import ArgumentError

__all__ = ["Settings", "check_timeout"]

_BACKENDS = ("auto", "mpi", "node", "threads", "fake")
_CHECKS = ("auto", "full", "off")


@dataclass(frozen=True)
class Settings:
    """Settings of a world; equal on all its ranks.

    Attributes
    ----------
    backend : {"auto", "mpi", "node", "threads", "fake"}
    timeout : float or None
        Default deadline of a call in seconds; None = never.
    check : {"auto", "full", "off"}
        When the ranks compare their calls before data moves.
    deterministic : bool
        Whether bits are independent of the layout of ranks over nodes.
    """

    backend: str = "auto"
    timeout: float | None = 1800.0
    check: Literal["auto", "full", "off"] = "auto"
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("backend", self.backend, _BACKENDS),
            ("check", self.check, _CHECKS),
        ):
            if value not in known:
                raise ArgumentError(f"init: {name} {value!r} must be one of {', '.join(known)}.")
        check_timeout(self.timeout, "init", None)

    def describe(self) -> str:
        """Return the settings as text, equal on ranks that agree."""
        return (
            f"backend={self.backend} timeout={self.timeout} check={self.check} "
            f"deterministic={self.deterministic}"
        )


def check_timeout(timeout: Any, verb: str, default: float | None) -> float | None:
    """Return `timeout` in seconds, or `default` for None.

    Raises
    ------
    ArgumentError
        It is no positive number.
    """
    if timeout is None:
        return default
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.integer, np.floating)):
        raise ArgumentError(f"{verb}: timeout {timeout!r} must be a number of seconds or None.")
    if math.isnan(timeout) or timeout <= 0:
        raise ArgumentError(f"{verb}: timeout {timeout!r} must be > 0 seconds.")
    return None if math.isinf(timeout) else float(timeout)

"""Arrays that lie on a mesh, with NumPy's interface."""

from __future__ import annotations

from . import random
from .array import DTensor
from .dispatch import register_rule
from .factories import distribute, empty, from_local, full, ones, zeros
from .modes import CommCounts, comm_mode, fallback, implicit_replication
from .reductions import log_softmax, logsumexp, softmax

__all__ = [
    "CommCounts",
    "DTensor",
    "comm_mode",
    "distribute",
    "empty",
    "fallback",
    "from_local",
    "full",
    "implicit_replication",
    "log_softmax",
    "logsumexp",
    "ones",
    "random",
    "register_rule",
    "softmax",
    "zeros",
]

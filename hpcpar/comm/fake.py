"""A world of any size on one rank: calls are checked and recorded, no data moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import UnsupportedError
from .backend import Backend, Operation

__all__ = ["FakeBackend"]


class FakeBackend(Backend):
    """Every peer is taken to call as this rank does; results are stride-0 arrays of zeros.

    Parameters
    ----------
    rank, size : int
        The place to play, and how many ranks there are said to be.
    """

    name = "fake"

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def supports(self, op: Operation) -> str | None:
        """Messages from nobody cannot be received."""
        return "no peer ever sends" if op.verb in ("recv", "sendrecv") else None

    def start(self, op: Operation) -> None:
        """Answer an exchange with my own bytes for all."""
        if op.verb == "recv":
            raise UnsupportedError("recv: on the fake backend nobody sends.")
        if op.verb == "exchange" and op.send is not None:
            op.result = [op.send.tobytes()] * self.size
        elif op.recv is not None and op.recv.flags.writeable:
            op.recv[...] = np.zeros((), op.recv.dtype)  # out= given: as if all had sent zeros

    def test(self, op: Operation) -> bool:
        """Everything is done at once."""
        return True

    def missing(self, op: Operation) -> list[int] | None:
        """Nobody is ever missing."""
        return []

    def subgroup(self, ranks: Sequence[int]) -> FakeBackend:
        """Return the backend of these ranks."""
        return FakeBackend(list(ranks).index(self.rank), len(ranks))

    def close(self) -> None:
        """Nothing to free."""

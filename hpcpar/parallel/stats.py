"""What data parallel steps cost: seconds and bytes, from this rank's clock and record."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Stats", "StepTimes"]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where the time of synchronised steps went on this rank.

    Attributes
    ----------
    seconds
        Inside the block.
    forward
        From its begin to the first gradient.
    backward
        From the first gradient to the end of the block.
    packing
        Of the backward time: copying gradients that came as arrays, and starting reductions.
    waiting
        After it, until the last reduction was done.
    communicating
        At least one reduction was on its way.
    sent
        Bytes that this rank sent for them.
    """

    seconds: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    packing: float = 0.0
    waiting: float = 0.0
    communicating: float = 0.0
    sent: int = 0

    @property
    def wait_share(self) -> float:
        """Waiting as a share of all time, 0 to 1."""
        return self.waiting / self.seconds if self.seconds else 0.0

    @property
    def overlap(self) -> float:
        """Share of the communication that the backward pass hid, 0 to 1."""
        if not self.communicating:
            return 0.0
        return max(0.0, 1.0 - self.waiting / self.communicating)

    @property
    def busbw(self) -> float:
        """Bytes sent per second of communication."""
        return self.sent / self.communicating if self.communicating else 0.0

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(*(getattr(self, n) + getattr(other, n) for n in self.__slots__))


@dataclass(frozen=True, slots=True)
class Stats:
    """What the synchronised steps of a `DDP` cost on this rank.

    Attributes
    ----------
    bucket_nbytes
        Bytes of each bucket, in launch order.
    steps
        Synchronised steps so far.
    last
        The last one.
    total
        All of them.
    """

    bucket_nbytes: tuple[int, ...]
    steps: int
    last: StepTimes
    total: StepTimes

"""Split a job over ranks: data parallel training."""

from .ddp import DDP, Stats, Step

__all__ = ["DDP", "Stats", "Step"]

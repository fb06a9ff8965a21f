"""Split a job over ranks: data parallel training."""

from .ddp import DDP
from .hooks import Cast, CommHook, GradBucket
from .join import Join
from .local_sgd import LocalSGD
from .powersgd import PowerSGD
from .quantize import Int8
from .stats import Stats, StepTimes
from .step import Step
from .topk import TopK

__all__ = [
    "DDP",
    "Cast",
    "CommHook",
    "GradBucket",
    "Int8",
    "Join",
    "LocalSGD",
    "PowerSGD",
    "Stats",
    "Step",
    "StepTimes",
    "TopK",
]

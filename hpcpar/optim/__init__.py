"""UPDATE: optimizers, clipping and schedules over flat dicts of NumPy or CuPy arrays.

Settings are frozen values, state is a flat dict of arrays and numbers that the caller owns (so it
can be cut, moved and saved), updates are in place. Nothing here communicates: sums over ranks go
through the `reduce` callable that the caller passes.
"""

from .adamw import AdamW
from .clip import clip_grad_norm, grad_norm
from .optimizer import Optimizer, Reduce, State
from .schedules import Schedule, warmup_cosine
from .sgd import SGD

__all__ = [
    "SGD",
    "AdamW",
    "Optimizer",
    "Reduce",
    "Schedule",
    "State",
    "clip_grad_norm",
    "grad_norm",
    "warmup_cosine",
]

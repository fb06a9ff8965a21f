"""The memory of gradient buckets: shared by the ranks of a node where that can be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import Array
from ..comm import symmetric
from ..comm.group import Group
from .bucket import Bucket, plan_memory

__all__ = ["make_buffers"]


def make_buffers(buckets: Sequence[Bucket], group: Group) -> list[Array]:
    """Return a flat buffer of zeros for each bucket, all in one block. Collective over `group`."""
    spans, nbytes = plan_memory(buckets)
    memory = _new_memory(nbytes, group)
    return [
        memory[begin:end].view(bucket.dtype)
        for bucket, (begin, end) in zip(buckets, spans, strict=True)
    ]


def _new_memory(nbytes: int, group: Group) -> Array:
    try:
        return symmetric.zeros(nbytes, np.uint8, group=group)
    except MemoryError:  # on all ranks alike: there is less that ranks can share than there is
        return np.zeros(nbytes, np.uint8)

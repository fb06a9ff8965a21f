"""The memory of gradient buckets: shared by the ranks of a node where that can be."""

from __future__ import annotations

from collections.abc import Sequence

from .._arrays import Array
from ..comm.group import Group
from ..comm.symmetric import zeros_for_all
from .bucket import Bucket, plan_memory

__all__ = ["make_buffers"]


def make_buffers(buckets: Sequence[Bucket], group: Group) -> list[Array]:
    """Return a flat buffer of zeros for each bucket, all in one block. Collective over `group`."""
    spans, nbytes = plan_memory(buckets)
    memory = zeros_for_all(nbytes, group)
    return [
        memory[begin:end].view(bucket.dtype)
        for bucket, (begin, end) in zip(buckets, spans, strict=True)
    ]

"""Sums of sparse tensors: every rank gathers what the others have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..comm.group import Group
from ..errors import UnsupportedError
from .torch_tensors import array_of

__all__ = ["sum_sparse"]


def sum_sparse(group: Group, tensor: torch.Tensor, op: Any, how: dict[str, Any]) -> None:
    """Write the sum over all ranks into `tensor`, in COO layout. Collective; blocks.

    Raises
    ------
    UnsupportedError
        Another operation or layout; on the rank that asks for it.
    """
    if op != "sum" or tensor.layout != torch.sparse_coo:
        raise UnsupportedError(
            f"hpcpar: {op} of tensors in layout {tensor.layout}; of sparse tensors there is "
            "the sum, in layout torch.sparse_coo."
        )
    mine = tensor.detach().coalesce()
    places = _gathered(group.all_gather, mine.indices().t().contiguous(), how)
    values = _gathered(group.all_gather, mine.values(), how)
    total = torch.sparse_coo_tensor(places.t(), values, tensor.shape, check_invariants=False)
    with torch.no_grad():  # a detached one would have indices of its own
        tensor.copy_(total.coalesce())


def _gathered(gather: Callable[..., Any], rows: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
    """Return the rows of all ranks, one below the other."""
    flat = rows.clone(memory_format=torch.contiguous_format).view(-1, math.prod(rows.shape[1:]))
    seen = flat.view(torch.uint8)
    found = torch.from_numpy(gather(array_of(seen).reshape(seen.shape), **how))
    return found.view(rows.dtype).reshape(-1, *rows.shape[1:])

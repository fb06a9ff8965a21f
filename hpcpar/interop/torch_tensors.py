"""Tensors as arrays on the same memory, and torch's operations by our names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist

from .._arrays import Array
from ..comm.reductions import PremulSum, premul_sum
from ..errors import UnsupportedError

__all__ = ["Joined", "array_of", "op_of"]

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}
#: Types that NumPy has from elsewhere, and what of the same length torch shows as an array.
_EXTRA = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2)),
}


class Joined:
    """Arrays that go, or come, in one piece.

    Attributes
    ----------
    data : ndarray
        The piece.
    sizes : tuple of int
        Elements of each array.
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        self._parts = parts
        self.sizes = tuple(part.size for part in parts)
        self.data: Array = np.empty(sum(self.sizes), parts[0].dtype)

    def fill(self) -> Joined:
        """Copy the arrays into the piece; return this."""
        for part, piece in self._pairs():
            piece[...] = part
        return self

    def take(self) -> None:
        """Copy the piece into the arrays."""
        for part, piece in self._pairs():
            part[...] = piece

    def _pairs(self) -> Iterator[tuple[Array, Array]]:
        """Yield each array and its place in the piece."""
        pieces = np.split(self.data, np.cumsum(self.sizes)[:-1])
        for part, piece in zip(self._parts, pieces, strict=True):
            yield part, piece.reshape(part.shape)


def array_of(tensor: torch.Tensor) -> Array:
    """Return a tensor's elements as an array on the same memory, flat where it is contiguous."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise UnsupportedError(
            f"hpcpar: tensor on {tensor.device} with layout {tensor.layout}; it takes dense CPU "
            "tensors. Use another backend for this one."
        )
    seen = tensor.detach()
    if tensor.is_contiguous():
        seen = seen.view(-1)
    extra = _EXTRA.get(tensor.dtype)
    shown, kind = (None, None) if extra is None else extra
    found: Array = (seen if shown is None else seen.view(shown)).numpy()
    return found if kind is None else found.view(kind)


def op_of(op: Any) -> str | PremulSum:
    """Return our name of one of torch's operations."""
    kind, factor = op.__getstate__() if op.op == dist.ReduceOp.PREMUL_SUM else (op.op, None)
    return premul_sum(factor) if factor is not None else _OPS[kind]

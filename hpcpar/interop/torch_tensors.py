"""Tensors as arrays on the same memory, and torch's operations by our names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist

from .._arrays import Array
from ..comm.reductions import PremulSum, premul_sum
from ..errors import ArgumentError, UnsupportedError

__all__ = ["Flat", "Joined", "array_of", "array_on", "op_of", "tensor_on"]

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
    torch.float8_e4m3fnuz: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    torch.float8_e5m2fnuz: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2fnuz)),
    torch.float8_e8m0fnu: (torch.uint8, np.dtype(ml_dtypes.float8_e8m0fnu)),
}


class Flat:
    """A tensor's elements in the order of its indices, as a flat array.

    Attributes
    ----------
    data : ndarray
        On the tensor's memory where they lie so there; else a copy.
    take : callable or None
        Copies the data back into the tensor, where it is a copy.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise UnsupportedError(
                f"hpcpar: tensor on {tensor.device} with layout {tensor.layout}; it takes dense "
                "CPU tensors. Use another backend for this one."
            )
        seen = tensor.detach()
        if seen.is_conj() or seen.is_neg():
            seen = seen.resolve_conj().resolve_neg()
        flat = seen.contiguous().view(-1)
        self.data: Array = _seen(flat)
        self.take: Callable[[], None] | None = None
        if flat.data_ptr() != tensor.data_ptr():
            self.take = lambda: _copy_back(tensor.detach(), flat)


class Joined:
    """Tensors that go, or come, in one piece.

    Attributes
    ----------
    data : ndarray
        The piece.
    sizes : tuple of int
        Elements of each tensor.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._parts = [Flat(tensor) for tensor in tensors]
        self.sizes = tuple(part.data.size for part in self._parts)
        self.data: Array = np.empty(sum(self.sizes), self._parts[0].data.dtype)

    def fill(self) -> Joined:
        """Copy the tensors into the piece; return this."""
        for part, piece in self._pairs():
            piece[...] = part.data
        return self

    def take(self) -> None:
        """Copy the piece into the tensors."""
        for part, piece in self._pairs():
            part.data[...] = piece
            if part.take is not None:
                part.take()

    def _pairs(self) -> Iterator[tuple[Flat, Array]]:
        """Yield each tensor's elements and their place in the piece."""
        return zip(self._parts, np.split(self.data, np.cumsum(self.sizes)[:-1]), strict=True)


def _copy_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    tensor.copy_(flat.view(tensor.shape))


def _seen(flat: torch.Tensor) -> Array:
    """Return a flat tensor's memory as an array; a tensor that lends it to NumPy cannot grow."""
    extra = _EXTRA.get(flat.dtype)
    shown, kind = (None, None) if extra is None else extra
    found: Array = np.from_dlpack(flat if shown is None else flat.view(shown))
    return found if kind is None else found.view(kind)


def array_of(tensor: torch.Tensor) -> Array:
    """Return a tensor's elements as a flat array, to be read."""
    return Flat(tensor).data


def array_on(name: str, tensor: torch.Tensor) -> Array:
    """Return a tensor as an array on its memory; `name` is for messages."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ArgumentError(
            f"attach: tensor {name!r} is on {tensor.device}, with strides {tensor.stride()}; it "
            "must be contiguous, on the CPU. Call module.cpu(), or contiguous()."
        )
    return _seen(tensor.view(-1)).reshape(tensor.shape)


def tensor_on(array: Array) -> torch.Tensor:
    """Return an array as a tensor on its memory."""
    for dtype, (shown, kind) in _EXTRA.items():
        if array.dtype == kind:
            same_size = _seen(torch.empty(0, dtype=shown)).dtype
            return torch.from_numpy(array.view(same_size)).view(dtype)
    return torch.from_numpy(array)


def op_of(op: Any) -> str | PremulSum:
    """Return our name of one of torch's operations."""
    kind, factor = op.__getstate__() if op.op == dist.ReduceOp.PREMUL_SUM else (op.op, None)
    return premul_sum(float(factor)) if factor is not None else _OPS[kind]

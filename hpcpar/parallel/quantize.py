"""Int8: gradients travel as bytes with one scale per block."""

from __future__ import annotations

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..comm.sizes import uneven
from ..errors import ArgumentError
from .buffers import Buffers, Layout
from .hooks import CommHook, Flow, GradBucket, Onward

__all__ = ["Int8", "dequantize", "int8_nbytes", "quantize"]

_LARGEST = 127


def int8_nbytes(count: int, block: int, rank: int, size: int) -> int:
    """Return the bytes that `rank` of `size` sends for a bucket of `count` elements. Pure.

    Each rank sends the others their blocks, and then its own blocks' mean to everybody.

    Examples
    --------
    >>> int8_nbytes(1024, 256, 0, 2)
    1040
    """
    blocks = uneven(-(-count // block), size)
    return (sum(blocks) - blocks[rank] + (size - 1) * blocks[rank]) * (4 + block)


def quantize(x: Array, block: int) -> Array:
    """Return `x` as rows of ``4 + block`` bytes: a float32 scale, then one byte per element. Pure.

    Parameters
    ----------
    x
        Flat array of real floats; the last block is filled with zeros.
    block
        Elements per scale. The error of each element is at most half of it; where the largest
        magnitude is not finite the whole block is not either.

    Examples
    --------
    >>> import numpy as np
    >>> dequantize(quantize(np.array([127.0, -2.6, 0.0]), 4), 3).tolist()
    [127.0, -3.0, 0.0]
    """
    rows = np.zeros((-(-x.size // block), block), np.float32)
    rows.reshape(-1)[: x.size] = x
    largest = np.abs(rows).max(axis=1, initial=0)
    scales = (largest / _LARGEST).astype(np.float32)
    divisors = np.where((scales > 0) & np.isfinite(scales), scales, 1)
    rows /= divisors[:, None]
    np.nan_to_num(rows, copy=False, nan=1, posinf=1, neginf=-1)
    packed = np.empty((len(rows), 4 + block), np.uint8)
    packed[:, :4] = scales[:, None].view(np.uint8)
    packed[:, 4:] = np.rint(rows).clip(-_LARGEST, _LARGEST).astype(np.int8).view(np.uint8)
    return packed


def dequantize(packed: Array, count: int) -> Array:
    """Return the first `count` elements of what `quantize` made, in float32. Pure."""
    scales = np.ascontiguousarray(packed[:, :4]).view(np.float32)
    with np.errstate(invalid="ignore"):  # a scale that is not finite
        return (packed[:, 4:].view(np.int8) * scales).reshape(-1)[:count]


class Int8(CommHook):
    """Sends gradients as 8-bit integers with a float32 scale per block: a quarter of the bytes.

    Each rank sums its share of the blocks in float32 and sends their mean, quantized again, to all:
    two roundings, each of at most half a scale (the block's largest magnitude by 127), and the same
    bits everywhere. A block with an inf or a nan is not finite anywhere, so that a step that
    overflowed is seen. Ends the chain: nothing after it is called.

    Parameters
    ----------
    block
        Elements per scale, 8 or more; the scales add ``4 / block`` to the bytes.

    Raises
    ------
    ArgumentError
        A smaller block; in `DDP`: complex gradients.

    References
    ----------
    Wang et al., ZeRO++, arXiv 2306.10209, section 3.3 (quantized gradients, all-to-all).

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.parallel import DDP
    >>> ddp = DDP({"w": np.zeros(3)}, hooks=[Int8()])
    >>> with ddp.step() as step:
    ...     step.put("w", np.array([127.0, 63.4, -1.0]))
    >>> ddp.grads["w"].tolist()
    [127.0, 63.0, -1.0]
    """

    def __init__(self, block: int = 256) -> None:
        if block < 8:
            raise ArgumentError(f"Int8: block {block} must be at least 8 elements.")
        self._block = block

    def __repr__(self) -> str:
        return f"Int8({self._block})"

    def start(self, buffers: Buffers, layout: Layout, group: Group) -> None:
        """Refuse what has no such blocks."""
        for bucket in layout.buckets:
            if bucket.dtype.kind == "c":
                raise ArgumentError(
                    f"Int8: gradient {bucket.names[0]!r} is {bucket.dtype}, must be real. "
                    "Leave the hook out."
                )

    def reduce(self, x: Array, grad: GradBucket, onward: Onward) -> Flow:
        """Sum blocks where they belong, then gather the means."""
        group, size = grad.group, grad.group.size
        packed = quantize(grad.weight * x.astype(np.float32, copy=False), self._block)
        blocks = uneven(len(packed), size)
        parts = yield group.all_to_all(packed, sizes=blocks, async_op=True)
        mine = blocks[group.rank] * self._block
        total = np.zeros(mine, np.float32)
        for part in parts.reshape(size, -1, 4 + self._block):
            total += dequantize(part, mine)
        packed = quantize(grad.divide(total), self._block)
        packed = yield group.all_gather(packed, sizes=tuple(blocks), async_op=True)
        x[...] = dequantize(packed, x.size)
        return x

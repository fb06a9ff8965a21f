"""PowerSGD: gradients travel as products of two thin matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..errors import ArgumentError
from ..random import Key, normal
from .bucket import Bucket
from .buffers import Buffers, Layout
from .hooks import CommHook, Flow, GradBucket, Onward, State
from .residual import Residual

__all__ = ["PowerSGD", "powersgd_count"]


def powersgd_count(bucket: Bucket, rank: int, min_rate: float = 2.0) -> int:
    """Return how many elements are reduced for a bucket, instead of ``bucket.count``. Pure.

    A matrix of ``n`` rows and ``m`` columns takes ``rank * (n + m)``; what is not compressed takes
    all its elements.

    Examples
    --------
    >>> import numpy as np
    >>> powersgd_count(Bucket(np.dtype("f4"), ("w", "b"), ((100, 50), (50,))), 2)
    350
    """
    return sum(
        math.prod(shape) if matrix is None else rank * sum(matrix)
        for shape in bucket.shapes
        for matrix in [_matrix(shape, rank, min_rate)]
    )


def _matrix(shape: tuple[int, ...], rank: int, min_rate: float) -> tuple[int, int] | None:
    """Return rows and columns of a gradient that is worth compressing."""
    if len(shape) < 2:
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    return (rows, columns) if (rows + columns) * rank * min_rate < rows * columns else None


class PowerSGD(CommHook):
    """Sends a gradient matrix ``M`` as ``P Q'`` of low rank, by one step of power iteration.

    ``P = M Q`` is averaged and made orthonormal, ``Q = M' P`` is averaged, and all ranks take
    ``P Q'``. ``Q`` is where the next step begins, and what ``P Q'`` lacks is added to the next
    gradients. Axes after the first are columns; vectors and small matrices are not compressed. What
    travels goes through the rest of the chain, so `Cast` may follow. All ranks compute the products
    themselves: they end with the same bits where their processors are alike.

    Parameters
    ----------
    rank
        Of ``P`` and ``Q``; more is nearer, and costs more bytes.
    start_step
        Synchronised steps that are not compressed, while gradients change quickly.
    min_rate
        A matrix is compressed if that saves more than this factor.
    warm_start
        Begin with the last step's ``Q``; otherwise with new random numbers each step.
    error_feedback
        Add what was not sent to the next gradients.
    seed
        Of the first ``Q``, which is the same on all ranks.

    Raises
    ------
    ArgumentError
        A rank below 1, a negative step, a rate of 0 or less.

    References
    ----------
    Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization,
    NeurIPS 2019, algorithms 1 and 2.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.parallel import DDP
    >>> ddp = DDP({"w": np.zeros((8, 8))}, hooks=[PowerSGD(rank=1, start_step=0)])
    >>> with ddp.step() as step:
    ...     step.put("w", np.outer(np.arange(8.0), np.ones(8)))
    >>> ddp.grads["w"][:, 0].round(9).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """

    def __init__(
        self,
        rank: int = 1,
        *,
        start_step: int = 1000,
        min_rate: float = 2.0,
        warm_start: bool = True,
        error_feedback: bool = True,
        seed: int = 0,
    ) -> None:
        if rank < 1 or start_step < 0 or min_rate <= 0:
            raise ArgumentError(
                f"PowerSGD: rank {rank} must be at least 1, start_step {start_step} at least 0, "
                f"min_rate {min_rate} above 0."
            )
        self._rank, self._start_step, self._min_rate = rank, start_step, min_rate
        self._warm_start, self._error_feedback = warm_start, error_feedback
        self._key = Key(seed).child("PowerSGD")
        self._seed = seed
        self._q: dict[str, Array] = {}

    def __repr__(self) -> str:
        flags = f"warm_start={self._warm_start}, error_feedback={self._error_feedback}"
        return (
            f"PowerSGD({self._rank}, start_step={self._start_step}, min_rate={self._min_rate}, "
            f"{flags}, seed={self._seed})"
        )

    def start(self, buffers: Buffers, layout: Layout, group: Group) -> None:
        """Make room for what is not sent."""
        self._residual = Residual(layout, group)

    def rebuilt(self, layout: Layout) -> None:
        """Keep what is not sent."""
        self._residual.rebuilt(layout)

    def reduce(self, x: Array, grad: GradBucket, onward: Onward) -> Flow:
        """Reduce the thin matrices, P first."""
        matrices = self._matrices(grad.plan)
        if grad.step < self._start_step or not matrices:
            return (yield from onward(x))
        kept = self._residual.flat(grad.index)
        total = x + kept if self._error_feedback else x.astype(kept.dtype)
        views = grad.plan.views(total)
        ms = {name: views[name].reshape(shape) for name, shape in matrices.items()}
        rest = [view.reshape(-1) for name, view in views.items() if name not in matrices]
        first = yield from onward(
            _join([m @ self._begin(name, m, grad.step) for name, m in ms.items()] + rest)
        )
        ps = {name: _orthonormal(p) for name, p in self._cut(first, ms, 0)}
        second = yield from onward(_join([m.conj().T @ ps[name] for name, m in ms.items()]))
        mean = np.empty_like(total)
        means = grad.plan.views(mean)
        for name, q in self._cut(second, ms, 1):
            np.matmul(ps[name], q.conj().T, out=means[name].reshape(matrices[name]))
            if np.isfinite(q).all():
                self._q[name] = q.copy()
            else:  # a lost step must not begin the next
                self._q.pop(name, None)
        _scatter(first[first.size - sum(r.size for r in rest) :], rest)
        for name in means.keys() - ms.keys():
            means[name][...] = views[name]
        with np.errstate(invalid="ignore"):
            np.subtract(total, mean, out=kept)  # nothing for what is not compressed
        self._residual.keep_finite(grad.index)
        x[...] = mean
        return x

    def _matrices(self, bucket: Bucket) -> dict[str, tuple[int, int]]:
        """Return rows and columns of what is compressed, by name."""
        found = {}
        for name, shape in zip(bucket.names, bucket.shapes, strict=True):
            matrix = _matrix(shape, self._rank, self._min_rate)
            if matrix is not None:
                found[name] = matrix
        return found

    def _begin(self, name: str, m: Array, step: int) -> Array:
        """Return the Q from which this step's P is computed."""
        if self._warm_start and name in self._q:
            return self._q[name]
        key = self._key.child(name)
        real = np.float64 if m.dtype.itemsize // (1 + (m.dtype.kind == "c")) == 8 else np.float32
        drawn = normal(key if self._warm_start else key.child(step), (m.shape[1], self._rank), real)
        return drawn.astype(m.dtype, copy=False)

    def _cut(self, flat: Array, ms: Mapping[str, Array], axis: int) -> Iterator[tuple[str, Array]]:
        """Yield each P (axis 0) or Q (axis 1) out of what came back."""
        at = 0
        for name, m in ms.items():
            count = m.shape[axis] * self._rank
            yield name, flat[at : at + count].reshape(m.shape[axis], self._rank)
            at += count

    def state_dict(self) -> State:
        """Return every Q, and what is not sent yet."""
        return {f"q.{name}": q for name, q in self._q.items()} | self._residual.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with them."""
        self._residual.load_state_dict(state)
        start = "q."
        self._q = {k.removeprefix(start): q for k, q in state.items() if k.startswith(start)}


def _join(parts: Sequence[Array]) -> Array:
    return np.concatenate([part.reshape(-1) for part in parts])


def _scatter(flat: Array, parts: Sequence[Array]) -> None:
    """Write a flat array over the arrays that `_join` made it of."""
    for part in parts:
        part[...], flat = flat[: part.size], flat[part.size :]


def _orthonormal(p: Array) -> Array:
    """Return an orthonormal basis of the columns, the same on all ranks."""
    q: Array = np.linalg.qr(p)[0]
    return q

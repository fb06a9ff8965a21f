"""PowerSGD: gradients travel as products of two thin matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
        math.prod(shape) if cut is None else cut.rank * (cut.rows + cut.columns)
        for shape in bucket.shapes
        for cut in [_cut_of(shape, rank, min_rate)]
    )


class _Cut(NamedTuple):
    """A gradient as a matrix, and the rank of its thin ones."""

    rows: int
    columns: int
    rank: int


def _cut_of(shape: tuple[int, ...], rank: int, min_rate: float) -> _Cut | None:
    """Return how a gradient is compressed, if it is worth it."""
    if len(shape) < 2:
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    rank = min(rank, rows, columns)  # a matrix has no more
    is_worth = (rows + columns) * rank * min_rate < rows * columns
    return _Cut(rows, columns, rank) if is_worth else None


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

    has_state = True

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
        cuts = self._cuts(grad.plan)
        if grad.step < self._start_step or not cuts:
            return (yield from onward(x, grad))
        kept = self._residual.flat(grad.index)
        total = grad.weight * x.astype(kept.dtype, copy=False)
        if self._error_feedback:
            total += kept
        views = grad.plan.views(total)
        ms = {name: views[name].reshape(cut.rows, cut.columns) for name, cut in cuts.items()}
        rest = [view.reshape(-1) for name, view in views.items() if name not in cuts]
        qs = {
            name: self._begin(name, cut, views[name].dtype, grad.step) for name, cut in cuts.items()
        }
        thin = _join([m @ qs[name] for name, m in ms.items()] + rest)
        first = yield from onward(thin, grad.multiplied)
        ps = {name: _orthonormal(p) for name, p in _parts(first, cuts, "rows")}
        thin = _join([m.conj().T @ ps[name] for name, m in ms.items()])
        second = yield from onward(thin, grad.multiplied)
        mean = np.empty_like(total)
        means = grad.plan.views(mean)
        for name, q in _parts(second, cuts, "columns"):
            np.matmul(ps[name], q.conj().T, out=means[name].reshape(ms[name].shape))
            if np.isfinite(q).all():
                self._q[name] = q.copy()
            else:  # a lost step must not begin the next
                self._q.pop(name, None)
        plain = [means[name].reshape(-1) for name in views if name not in cuts]
        _scatter(first[first.size - sum(r.size for r in rest) :], plain)
        with np.errstate(invalid="ignore"):
            np.subtract(total, grad.weight * mean, out=kept)
        for name, view in grad.plan.views(kept).items():
            if name not in cuts:
                view[...] = 0  # was sent whole
        self._residual.keep_finite(grad.index)
        x[...] = mean
        return x

    def _cuts(self, bucket: Bucket) -> dict[str, _Cut]:
        """Return what is compressed, and how, by name."""
        pairs = zip(bucket.names, bucket.shapes, strict=True)
        found = {name: _cut_of(shape, self._rank, self._min_rate) for name, shape in pairs}
        return {name: cut for name, cut in found.items() if cut is not None}

    def _begin(self, name: str, cut: _Cut, dtype: np.dtype[Any], step: int) -> Array:
        """Return the Q from which this step's P is computed."""
        if self._warm_start and name in self._q:
            return self._q[name]
        key = self._key.child(name)
        wide = np.float64 if np.finfo(dtype).bits == 64 else np.float32
        drawn = normal(key if self._warm_start else key.child(step), (cut.columns, cut.rank), wide)
        return drawn.astype(dtype, copy=False)

    def state_dict(self) -> State:
        """Return every Q, and what is not sent yet."""
        return {f"q.{name}": q for name, q in self._q.items()} | self._residual.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with them."""
        found = {k.removeprefix("q."): q for k, q in state.items() if k.startswith("q.")}
        cuts = {n: c for b in self._residual.buckets for n, c in self._cuts(b).items()}
        for name, q in found.items():
            wanted = (cuts[name].columns, cuts[name].rank) if name in cuts else None
            if q.shape != wanted:
                raise ArgumentError(
                    f"PowerSGD: the state's Q of {name!r} has shape {q.shape}, must be {wanted}: "
                    "it is that of another rank or other parameters."
                )
        self._residual.load_state_dict(state)
        self._q = {name: np.array(q) for name, q in found.items()}


def _parts(flat: Array, cuts: Mapping[str, _Cut], axis: str) -> Iterator[tuple[str, Array]]:
    """Yield each P ("rows") or Q ("columns") out of what came back."""
    at = 0
    for name, cut in cuts.items():
        length = getattr(cut, axis)
        yield name, flat[at : at + length * cut.rank].reshape(length, cut.rank)
        at += length * cut.rank


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

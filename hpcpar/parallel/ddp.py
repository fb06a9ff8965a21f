"""Data parallel training: gradients are reduced bucket by bucket while the backward pass runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np

from .._arrays import Array
from .._core import reducible
from ..comm.attach import as_group
from ..comm.group import Group
from ..comm.work import Work
from ..errors import ArgumentError, HpcparError, MismatchError, RankFailed
from ..nn.layer import Fill
from .bucket import BUCKET_NBYTES, FIRST_BUCKET_NBYTES, plan_buckets
from .buffers import make_buffers
from .identity import agree_on_names, describe_params

__all__ = ["DDP", "Stats", "Step"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Stats:
    """What the synchronised steps of a `DDP` cost on this rank.

    Attributes
    ----------
    bucket_nbytes
        Bytes of each bucket, in launch order.
    steps
        Synchronised steps so far.
    wait_seconds
        Time spent at the end of steps waiting for reductions to end.
    step_seconds
        Time spent inside all step blocks.
    """

    bucket_nbytes: tuple[int, ...]
    steps: int
    wait_seconds: float
    step_seconds: float

    @property
    def wait_share(self) -> float:
        """Waiting as a share of the time in step blocks, 0 to 1."""
        return self.wait_seconds / self.step_seconds if self.step_seconds else 0.0


class DDP:
    """Keeps one copy of the parameters per rank in step. Collective over `group`.

    Each step averages the gradients of all ranks. They are computed straight into the buckets
    that travel, so there is no second copy; a bucket is sent as soon as it and all buckets
    before it are full, while the backward pass goes on. Gradients may become ready in another
    order on each rank; buckets leave in the same order on all.

    Parameters
    ----------
    params
        Name to array, the parameters to train; the same names, shapes and dtypes on every rank
        (their order may differ: rank 0's counts). Frozen parameters are those not in it. An
        array under two names is tied: it is one parameter under its first name.
    group
        Ranks that hold copies; None is the current group.
    first_bucket_nbytes, bucket_nbytes
        Size at which the first and the later buckets close.
    broadcast
        Overwrite the parameters with rank 0's. False promises that they are equal already.

    Attributes
    ----------
    group
        The group.
    params
        Name to array without the second names of tied parameters, in rank 0's order: what the
        optimizer takes.
    buckets
        The plan, in launch order.
    grads
        The averaged gradients of the last synchronised step, as views of the buckets, valid
        until the next step begins. Empty before the first step and after one that failed.

    Raises
    ------
    ArgumentError
        A parameter that is no writable array of a dtype with a mean; a size below 1 byte.
    MismatchError
        The ranks differ in names, shapes, dtypes, ties or bucket sizes; raised on all of them.

    References
    ----------
    Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training,
    VLDB 2020, section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     params = {"w": np.full(2, float(group.rank))}
    ...     ddp = DDP(params, group=group)
    ...     with ddp.step() as step:
    ...         step.put("w", np.array([1.0, 3.0]) * (group.rank + 1))
    ...     return params["w"].tolist(), ddp.grads["w"].tolist()
    >>> run_ranks(2, body)
    [([0.0, 0.0], [1.5, 4.5]), ([0.0, 0.0], [1.5, 4.5])]
    """

    def __init__(
        self,
        params: Mapping[str, Array],
        *,
        group: Group | None = None,
        first_bucket_nbytes: int = FIRST_BUCKET_NBYTES,
        bucket_nbytes: int = BUCKET_NBYTES,
        broadcast: bool = True,
    ) -> None:
        self.group = as_group(group)
        _check_params(params)
        caps = {"first_cap": first_bucket_nbytes, "cap": bucket_nbytes}
        plan_buckets({}, **caps)  # refuses bad sizes before any traffic
        order = agree_on_names("DDP", describe_params(params, caps), self.group)
        params = {name: params[name] for name in order if name in params}
        self._first_names = _first_names(params)
        self.params = {n: p for n, p in params.items() if self._first_names[n] == n}
        layouts = {n: (p.shape, p.dtype.newbyteorder("=")) for n, p in self.params.items()}
        self.buckets = plan_buckets(layouts, **caps)
        self.grads: dict[str, Array] = {}
        self._bucket_of = {n: i for i, bucket in enumerate(self.buckets) for n in bucket.names}
        self._flats = make_buffers(self.buckets, self.group)
        self._views: dict[str, Array] = {}
        for bucket, flat in zip(self.buckets, self._flats, strict=True):
            self._views.update(bucket.views(flat))
        self._window = _Window()
        self._syncing = True
        self._open: Step | None = None
        self._steps, self._wait_seconds, self._step_seconds = 0, 0.0, 0.0
        if broadcast:
            self._broadcast()

    def step(self, weight: float | None = None) -> Step:
        """Return the context of one forward and backward pass. Collective over the group.

        Its `on_grad` goes to ``Layer.backward``. Leaving the block waits for the reductions and
        sets `grads`.

        Parameters
        ----------
        weight
            None: the mean over ranks, of sums over micro-steps. A number >= 0, for instance
            this rank's tokens: every gradient is the mean over ranks and micro-steps weighted
            by it, ``sum(w * g) / sum(w)``, and zero if all weights are zero. A rank with weight
            0 need not have finite gradients; they are not computed.

        Raises
        ------
        ArgumentError
            On entry: a weight that is negative or not finite, a step inside a step, a weight
            in only some micro-steps. On leaving, on all ranks: a rank did not report all
            gradients, or reported one twice (there it is raised at once).
        MismatchError
            On leaving, on all ranks: only some of them gave a weight.
        RankFailed
            On leaving: another rank's block ended with an exception; the group works on.

        Notes
        -----
        A block that ends with an exception completes its reductions, so that no rank hangs, and
        all ranks learn of it when they leave theirs. If the ranks are not even in the same
        call, or the exception is no `Exception` (Ctrl-C), the group is aborted.

        The products ``w * g`` travel in the gradients' dtype: those of float16 must stay below
        65504, or the result is inf.
        """
        if weight is not None and not 0 <= weight < math.inf:
            raise ArgumentError(f"ddp.step: weight {weight} must be a finite number >= 0.")
        return Step(self, weight)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Make the steps inside add up locally. Local.

        The next step outside reduces all that was added, including parameters that only an
        earlier micro-step touched.

        Examples
        --------
        ``with ddp.no_sync(), ddp.step() as step: model.backward(..., step.on_grad)``
        """
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def stats(self) -> Stats:
        """Return bytes per bucket and the time waited so far. Local."""
        sizes = tuple(bucket.nbytes for bucket in self.buckets)
        return Stats(sizes, self._steps, self._wait_seconds, self._step_seconds)

    def _broadcast(self) -> None:
        """Send rank 0's parameters through the gradient buckets: few large messages."""
        for bucket, flat in zip(self.buckets, self._flats, strict=True):
            for name in bucket.names:
                self._views[name][...] = self.params[name]
            self.group.broadcast(flat, out=flat)
            for name in bucket.names:
                self.params[name][...] = self._views[name]


class _Window:
    """What has been added up since the last synchronised step."""

    def __init__(self) -> None:
        self.touched: set[str] = set()
        self.weights: list[float | None] = []
        self.error: str | None = None  # a micro-step that failed and left partial sums

    @property
    def weight(self) -> float:
        """Sum over the micro-steps."""
        return sum(weight or 0.0 for weight in self.weights)


class Step:
    """One forward and backward pass under a `DDP`; made by `DDP.step`.

    Attributes
    ----------
    grads
        The averaged gradients, once a synchronised block has ended without error.
    """

    def __init__(self, ddp: DDP, weight: float | None) -> None:
        self.grads: dict[str, Array] = {}
        self._ddp = ddp
        self._weight = weight
        self._sync = ddp._syncing
        self._ready: set[str] = set()
        self._pending = [len(bucket.names) for bucket in ddp.buckets]
        self._works: list[Work] = []
        self._began = 0.0

    def __enter__(self) -> Step:
        ddp = self._ddp
        if ddp._open is not None:
            raise ArgumentError("ddp.step: a step is open already. Leave its block first.")
        if any((self._weight is None) is not (w is None) for w in ddp._window.weights):
            raise ArgumentError(
                f"ddp.step: weight {self._weight} must be given in all micro-steps or in none."
            )
        ddp._open = self
        ddp.grads = {}
        ddp._window.weights.append(self._weight)
        self._began = time.perf_counter()
        return self

    def on_grad(self, name: str, fill: Fill) -> None:
        """Take the gradient of `name` from `fill`, into its bucket. Local, does not wait.

        A name that is not in the parameters is frozen: `fill` is not called.

        Raises
        ------
        ArgumentError
            `name` was reported before in this step, or outside the block; the other ranks raise
            when they leave their block.
        """
        first = self._ddp._first_names.get(name)
        if first is None:
            return
        if self._ddp._open is not self:
            raise ArgumentError(f"ddp.step: gradient {name!r} was reported outside its block.")
        if first in self._ready:
            raise ArgumentError(
                f"ddp.step: gradient {name!r} was reported twice in one step"
                f" {self._ddp.group.here()}. Report each once; accumulate with ddp.no_sync()."
            )
        self._take(first, fill)
        self._ready.add(first)
        self._pending[self._ddp._bucket_of[first]] -= 1
        if self._sync:
            self._launch()

    def put(self, name: str, grad: Array) -> None:
        """Take an array as the gradient of `name`; as `on_grad`, for gradients made elsewhere.

        Raises
        ------
        ArgumentError
            A shape that is not the parameter's, or as `on_grad`.
        """
        first = self._ddp._first_names.get(name)
        if first is not None and np.shape(grad) != self._ddp.params[first].shape:
            raise ArgumentError(
                f"ddp.step: gradient {name!r} has shape {np.shape(grad)}, must be "
                f"{self._ddp.params[first].shape} {self._ddp.group.here()}."
            )
        self.on_grad(name, _copier(grad))

    def _take(self, name: str, fill: Fill) -> None:
        """Put the weighted gradient into the view, onto earlier micro-steps' if there are any."""
        view, weight = self._ddp._views[name], self._weight
        add = name in self._ddp._window.touched
        self._ddp._window.touched.add(name)
        if weight == 0:
            if not add:
                view[...] = 0
        elif weight is None:
            fill(out=view, add=add)
        elif add:
            view += _scale(fill(), weight)
        else:
            _scale(fill(out=view), weight)

    def _launch(self) -> None:
        """Start the reduction of every full bucket whose predecessors were started."""
        ddp = self._ddp
        while len(self._works) < len(ddp.buckets) and self._pending[len(self._works)] == 0:
            flat = ddp._flats[len(self._works)]
            self._works.append(ddp.group.all_reduce(flat, "mean", out=flat, async_op=True))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        ddp = self._ddp
        ddp._open = None
        try:
            if exc is not None and not isinstance(exc, Exception):
                self._abort(exc)
            elif not self._sync:
                if exc is not None:
                    ddp._window.error = f"{type(exc).__name__}: {exc}"
            elif exc is None:
                self._synchronise()
            else:
                self._withdraw(exc)
        finally:
            ddp._step_seconds += time.perf_counter() - self._began
        return False

    def _synchronise(self) -> None:
        """End a block that went well here; raise if another rank's did not."""
        ddp, window = self._ddp, self._ddp._window
        began = time.perf_counter()
        missing = [name for name in ddp.params if name not in window.touched]
        error = window.error or (f"missing gradients: {', '.join(missing)}" if missing else None)
        total = self._complete(error)
        if self._weight is not None and total:  # all weights zero: all gradients are zero
            for flat in ddp._flats:
                _scale(flat, total / ddp.group.size, np.divide)
        ddp.grads = self.grads = dict(ddp._views)
        ddp._steps += 1
        ddp._wait_seconds += time.perf_counter() - began

    def _withdraw(self, exc: Exception) -> None:
        """End a block that failed here, so that the other ranks neither hang nor go on."""
        if self._ddp.group.state != "ok":
            self._disown()
            return
        kind = "" if isinstance(exc, ArgumentError) else f"{type(exc).__name__}: "
        try:
            self._complete(f"{kind}{exc}", own=exc)
        except HpcparError as other:
            exc.add_note(f"The group was aborted, the step could not be ended: {other}")

    def _complete(self, error: str | None, own: Exception | None = None) -> float:
        """Launch what is left, wait, agree on the outcome; return the sum of all weights.

        A rank that failed agrees before it waits: the others may be in a blocking verb, which
        then shows as a mismatch, where waiting for their buckets would never end.
        """
        ddp, window = self._ddp, self._ddp._window
        ddp._window = _Window()
        for name in ddp.params.keys() - window.touched:
            ddp._views[name][...] = 0  # nothing of an earlier step may travel
        self._pending = [0] * len(ddp.buckets)
        try:
            self._regardless(self._launch)
            lost = self._wait() if own is None else None
            text = f"{error or lost}" if error or lost else None
            weighted = self._weight is not None
            report = np.array([window.weight, weighted, text is not None], np.float64)
            total, given, failed = self._regardless(lambda: ddp.group.all_reduce(report, "sum"))
            self._wait()
            reports = ddp.group.all_gather_object([text, _is_mistake(own)]) if failed else []
        except HpcparError as exc:
            self._abort(exc)
            raise
        if failed and own is None:
            raise lost or _explanation(reports, ddp.group)
        if own is None and 0 < given < ddp.group.size:
            raise MismatchError(
                f"ddp.step: ranks disagree on weight: {int(given)} of {ddp.group.size} gave one"
                f" {ddp.group.here()}. Give it on all ranks or on none. No gradients were set."
            )
        return float(total)

    def _abort(self, exc: BaseException) -> None:
        """Give up for all ranks."""
        self._ddp.group.abort(exc)
        self._disown()

    def _disown(self) -> None:
        """Let nobody hear of the reductions on their way: the group has failed, and says why."""
        for work in self._works:
            work.on_done(Work.exception)

    def _wait(self) -> Exception | None:
        """Wait for all launched reductions; return the first error."""
        errors = []
        for work in self._works:
            try:
                work.wait()
            except MismatchError as exc:  # the ranks agree on it, and the group works on
                errors.append(exc)
        return errors[0] if errors else None

    def _regardless(self, call: Callable[[], _T]) -> _T:
        """Return ``call()``; not kept from it by errors of reductions that nobody saw yet."""
        while True:
            try:
                return call()
            except MismatchError as exc:
                if not any(work.done() and work.exception() is exc for work in self._works):
                    raise


def _is_mistake(own: Exception | None) -> bool:
    return own is None or isinstance(own, ArgumentError)


def _explanation(reports: Sequence[Any], group: Group) -> Exception:
    """Return the error that the ranks without an exception of their own raise alike."""
    texts = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(reports) if text]
    message = f"ddp.step: {'; '.join(texts)} {group.here()}. No gradients were set."
    return ArgumentError(message) if all(kind for _, kind in reports) else RankFailed(message)


def _scale(x: Array, factor: float, by: np.ufunc = np.multiply) -> Array:
    """Scale `x` in place; in float32 where the dtype has fewer bits than the factor."""
    if x.dtype.itemsize > 2:
        by(x, factor, out=x)
    else:
        x[...] = by(x.astype(np.float32), factor)
    return x


def _copier(grad: Array) -> Fill:
    def fill(out: Array | None = None, add: bool = False) -> Array:
        """Copy or add the array."""
        if out is None:
            return np.array(grad)
        if add:
            out += grad
        else:
            out[...] = grad
        return out

    return fill


def _check_params(params: Mapping[str, Array]) -> None:
    for name, array in params.items():
        if not isinstance(array, np.ndarray):
            raise ArgumentError(f"DDP: parameter {name!r} is a {type(array)}, must be an array.")
        if not reducible(array.dtype, "mean"):
            raise ArgumentError(
                f"DDP: parameter {name!r} has dtype {array.dtype}, which has no mean. "
                "Leave it out: it cannot be trained."
            )
        if not array.flags.writeable:
            raise ArgumentError(f"DDP: parameter {name!r} is read-only. Pass a writable copy.")


def _first_names(params: Mapping[str, Array]) -> dict[str, str]:
    """Map every name to the first one of the same array."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(array), name) for name, array in params.items()}

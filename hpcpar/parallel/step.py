"""One forward and backward pass under a DDP: gradients are taken, reduced, and agreed on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import numpy as np

from .._arrays import Array
from ..comm.home import Span
from ..comm.persistent import PersistentAllReduce
from ..comm.reductions import Portion
from ..errors import ArgumentError
from ..nn.layer import Fill
from .buffers import Layout
from .hooks import Flow, GradBucket, run_chain, scale
from .reducer import Reducer
from .replica import Replica
from .report import Report, Verdict, explanation
from .stats import StepTimes
from .window import FillAll, Window

if TYPE_CHECKING:
    from .join import Join

__all__ = ["OnBucket", "Step"]

_T = TypeVar("_T")
OnBucket: TypeAlias = Callable[[Mapping[str, Array]], object]


class Step:
    """One forward and backward pass under a `DDP`; made by `DDP.step`.

    Attributes
    ----------
    grads
        The averaged gradients, once a synchronised block has ended without error.
    """

    def __init__(
        self,
        replica: Replica,
        weight: float | None,
        on_bucket: OnBucket | None = None,
        shadows: Join | None = None,
    ) -> None:
        self.grads: dict[str, Array] = {}
        self._replica = replica
        self._weight = weight
        self._on_bucket = on_bucket
        self._sync = False
        self._join = shadows  # the block whose other ranks this rank only follows
        self._is_shadow = shadows is not None
        self._is_open = False
        self._reports: dict[str, int] = {}  # how often each gradient came, in order of the last
        self._agreed = [0.0]  # the sum of all ranks' weights, once it is known
        self._began = self._first = self._packing = 0.0

    def __enter__(self) -> Step:
        replica = self._replica
        if replica.is_open:
            raise ArgumentError("ddp.step: a step is open already. Leave its block first.")
        if any((self._weight is None) is not (w is None) for w in replica.window.weights):
            raise ArgumentError(
                f"ddp.step: weight {self._weight} must be given in all micro-steps or in none."
            )
        self._sync = replica.syncing or self._is_shadow
        self._began = time.monotonic()
        replica.lay_out()
        if self._sync:
            if not self._is_shadow and replica.join is not None:
                self._join = replica.join
                self._join.begin_step(self._weight is not None)
            replica.broadcast_buffers(0 if self._join is None else self._join.root)
            replica.claim_group()
        replica.is_open = self._is_open = True
        replica.grads = {}
        replica.window.begin(self._weight, is_last=self._sync)
        self._reducer = Reducer(replica.layout.buckets, self._flow, replica.groups)
        if self._sync:
            self._give_up_unused()
        return self

    def _give_up_unused(self) -> None:
        """Do not wait for what a static step does not use."""
        replica = self._replica
        for name in replica.usage.unused:
            if name not in replica.window.touched:
                replica.layout.views[name][...] = 0
            self._reducer.arrived(replica.layout.bucket_of[name])

    @property
    def layout(self) -> Layout:
        """Where gradients lie."""
        return self._replica.layout

    def begin_sums(self, stretches: Iterable[Array]) -> bool:
        """Return whether gradients may be added up in their buckets before they are reported.

        They may in a first micro-step, and where they travel as they are.

        Parameters
        ----------
        stretches
            Parts of buckets, as `Layout.stretches` has them, that become zero for it.
        """
        window = self._replica.window
        if window.factor is not None or len(window.weights) > 1:
            return False
        for stretch in stretches:
            stretch[...] = 0
        return True

    def on_grad(self, name: str, fill: Fill) -> None:
        """Take the gradient of `name` from `fill`, into its bucket. Local, does not wait.

        A name that is not in the parameters is frozen: `fill` is not called.

        Raises
        ------
        ArgumentError
            `name` was reported before in this step (in a static one: more often than in the
            first), or outside the block; the other ranks raise when they leave their block.
        """
        replica = self._replica
        first = replica.first_names.get(name)
        if first is None:
            return
        if not self._is_open:
            raise ArgumentError(f"ddp.step: gradient {name!r} was reported outside its block.")
        reports = self._reports
        count = reports.get(first, 0) + 1
        replica.usage.check(first, name, count, replica.group)
        self._first = self._first or time.monotonic()
        replica.window.take(first, replica.layout.views[first], fill)
        reports.pop(first, None)
        reports[first] = count
        if self._sync and replica.usage.is_complete(first, count):
            self._reducer.arrived(replica.layout.bucket_of[first])

    def on_grads(self, names: Sequence[str], fill: FillAll) -> None:
        """Take several gradients at once; as `on_grad` for each. Local, does not wait.

        Parameters
        ----------
        names
            Names in `DDP.params`, each once.
        fill
            ``fill(names, outs, add)`` writes or adds the gradients of some of them.
        """
        replica, layout = self._replica, self._replica.layout
        if not self._is_open:
            raise ArgumentError(f"ddp.step: gradient {names[0]!r} was reported outside its block.")
        usage, reports = replica.usage, self._reports
        counts = dict.fromkeys(names, 1)
        again = reports.keys() & counts.keys()
        for name in again:
            counts[name] += reports[name]
        usage.check_all(counts, replica.group)
        self._first = self._first or time.monotonic()
        replica.window.take_all(names, layout.views, fill)
        for name in again:
            del reports[name]  # its place is that of the last
        reports.update(counts)
        if self._sync:
            complete = Counter(map(layout.bucket_of.__getitem__, usage.complete_ones(counts)))
            for index in sorted(complete):
                self._reducer.arrived(index, complete[index])

    def put(self, name: str, grad: Array) -> None:
        """Take an array as the gradient of `name`; as `on_grad`, for gradients made elsewhere.

        Raises
        ------
        ArgumentError
            A shape that is not the parameter's, or as `on_grad`.
        """
        replica = self._replica
        first = replica.first_names.get(name)
        if first is not None and np.shape(grad) != replica.params[first].shape:
            raise ArgumentError(
                f"ddp.step: gradient {name!r} has shape {np.shape(grad)}, must be "
                f"{replica.params[first].shape} {replica.group.here()}."
            )
        self.on_grad(name, partial(self._copy, grad))

    def _copy(self, grad: Array, out: Array | None = None, add: bool = False) -> Array:
        """Copy or add the array: a fill for gradients that are there already."""
        if out is None:
            return np.array(grad)
        began = time.monotonic()
        if add:
            out += grad
        else:
            out[...] = grad
        self._packing += time.monotonic() - began
        return out

    def _flow(self, index: int) -> Flow:
        """Return the flow of a full bucket."""
        replica, window = self._replica, self._replica.window
        mean = replica.means[index]
        if mean is not None and self._weight is None:
            return _taking(mean)
        bucket, flat = replica.layout.buckets[index], replica.layout.flats[index]
        portion = None
        if self._weight is not None:
            multiplied = window.multiplied
            if multiplied and (replica.hooks or bucket.group) and window.weight:
                scale(flat, window.weight, np.divide)  # these want gradients, not products
                multiplied = False
            portion = Portion(window.weight, multiplied)
        group = replica.groups[bucket.group]
        grad = GradBucket(
            index, bucket, group, replica.group.size, replica.steps, portion, self._agreed
        )
        return run_chain(replica.hooks, flat, grad)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        replica = self._replica
        replica.is_open = self._is_open = False
        if self._sync:
            replica.release_group()
        if exc is not None and not isinstance(exc, Exception):
            replica.group.abort(exc)
        elif not self._sync:
            if exc is not None:
                replica.window.error = f"{type(exc).__name__}: {exc}"
        elif exc is None:
            self._synchronise()
        else:
            self._withdraw(exc)
        return False

    def _synchronise(self) -> None:
        """End a block that went well here; raise if another rank's did not."""
        replica, left = self._replica, time.monotonic()
        missing = [] if self._is_shadow else replica.missing(self._reports)
        error = replica.window.error
        if missing and not error:
            error = f"missing gradients: {', '.join(missing)}"
        verdict = self._guarded(lambda: self._agree(error))
        if verdict.failed:
            raise self._guarded(lambda: self._settled(error, is_mistake=True))
        self._guarded(lambda: self._finish(verdict))
        verdict.check_weights(replica.group)
        if self._reducer.error is not None:
            raise self._reducer.error
        replica.grads = self.grads = replica.agreed_grads(verdict)
        self._guarded(lambda: replica.end_synchronised(self._reports, verdict, not self._is_shadow))
        self._count(left, time.monotonic())

    def _withdraw(self, exc: Exception) -> None:
        """End a block that failed here, so that the other ranks neither hang nor go on."""
        if self._replica.group.state != "ok":
            return
        if self._reducer.is_broken:
            exc.add_note("The group was aborted: others may wait for what a hook did not begin.")
            self._replica.group.abort(exc)
            return
        is_mistake = isinstance(exc, ArgumentError)
        text = f"{exc}" if is_mistake else f"{type(exc).__name__}: {exc}"
        try:
            self._guarded(lambda: self._agree(text))
            self._guarded(lambda: self._settled(text, is_mistake))
        except Exception as other:
            exc.add_note(f"The group was aborted, the step could not be ended: {other}")

    def _agree(self, error: str | None) -> Verdict:
        """Start what is left, and agree on how it went.

        Nobody waits for buckets before: where a rank failed the others may be in a blocking verb,
        which then shows as a mismatch, and never bring theirs.
        """
        replica, window = self._replica, self._replica.window
        window.clear_untouched(replica.layout.views, replica.usage.unused)
        self._reducer.start_all()
        ordered = not self._is_shadow and replica.observed(self._reports) is not None
        asked = replica.params if replica.unused == "skip" else ()
        used = [name in window.touched for name in asked]
        replica.window = Window()
        report = Report(window.weight, self._weight is not None, error, ordered, used)
        return report.agree(replica.group)

    def _settled(self, error: str | None, is_mistake: bool) -> Exception:
        """Wait for what has begun; return the error of a step that failed on some rank."""
        self._reducer.settle()
        return explanation(error, is_mistake, self._replica.group)

    def _finish(self, verdict: Verdict) -> None:
        """Carry every bucket to its end, and hand it on."""
        replica, layout = self._replica, self._replica.layout
        if verdict.is_split(replica.group.size):
            self._reducer.settle()
            return
        self._agreed[0] = verdict.weight
        unused = replica.unused_by_all(verdict)
        for index in self._reducer.finish():
            bucket, flat = layout.buckets[index], layout.flats[index]
            if self._weight is not None and not verdict.weight:
                flat[...] = 0  # nobody had samples; what hooks keep stays for later
            if self._join is not None and self._join.share != 1:
                scale(flat, self._join.share, np.divide)
            if self._on_bucket is not None and self._reducer.error is None:
                grads = bucket.views(flat)
                self._on_bucket({n: grad for n, grad in grads.items() if n not in unused})

    def _guarded(self, call: Callable[[], _T]) -> _T:
        """Return ``call()``; if it raises, the group is aborted: ranks are not in one place."""
        try:
            return call()
        except BaseException as exc:
            self._replica.group.abort(exc)
            raise

    def _count(self, left: float, done: float) -> None:
        """Add this step to the statistics, and its parts to the spans of traces."""
        first = self._first or left
        communicating, sent = self._reducer.traffic()
        times = StepTimes(
            seconds=done - self._began,
            forward=first - self._began,
            backward=left - first,
            packing=self._packing + self._reducer.seconds,
            waiting=done - left,
            communicating=communicating,
            sent=sent,
        )
        self._replica.count(times)
        marks = {"forward": self._began, "backward": first, "wait": left}
        spans = self._replica.group.home.spans
        for (name, start), end in zip(marks.items(), (first, left, done), strict=True):
            spans.append(Span("ddp", name, int(start * 1e9), int(end * 1e9)))


def _taking(mean: PersistentAllReduce) -> Flow:
    """Return the flow of a bucket whose mean is all that is wanted."""
    yield mean.start()
    return mean.x

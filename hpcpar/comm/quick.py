"""The hot path of a blocking all_reduce: two plain arrays, a call seen before, nothing to compare.

The first calls of a kind take the long way, which checks everything; what it found is kept here as
a plan, and the next equal call needs one dictionary look-up, one look at the arrays, the record and
the backend's own call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from .. import _core
from .._arrays import Array, dtype_code
from . import record
from .reduce_requests import AllReduce

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ["QuickAllReduce"]

_PLANS = 4096


class QuickAllReduce:
    """Plans of calls that may take the hot path of one group.

    Attributes
    ----------
    run : callable
        ``run(x, op, out)``: True if it did the all_reduce, False if the call needs the long way.
        Both must be ndarrays.
    """

    def __init__(self, runner: Runner, slot: int) -> None:
        self._plans: dict[Hashable, tuple[Any, ...]] = {}
        self._runner = runner
        self.run = _bind(runner, slot, self._plans)

    def learn(self, request: AllReduce) -> None:
        """Keep a plan for calls like `request`, which ended well, if they may take this path."""
        leaf = request.leaves[0]
        if request.structure is not None or leaf.out is None or request.weighted:
            return
        if not _core.plain_pair(leaf.array, leaf.out) or not self._runner.settled(request):
            return
        reduction, array, view = request.reduction, leaf.array, self._runner.view
        direct = self._runner.backend.direct_all_reduce(reduction.primitive, array.dtype)
        if direct is None or reduction.factor is not None:
            return
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        moved = record.traffic(
            "all_reduce", view.rank, view.size, nbytes=array.nbytes, itemsize=array.itemsize
        )
        code, divisor = dtype_code(array.dtype), reduction.divisor(view.size)
        plan = (*direct, code, array.size, array.itemsize, moved, divisor)
        self._plans[reduction.name, array.dtype, array.shape] = plan


def _bind(
    runner: Runner, slot: int, plans: dict[Hashable, tuple[Any, ...]]
) -> Callable[[Array, Any, Array], bool]:
    """Return the hot path as one closure: attribute look-ups cost more than the record."""
    recorder, verb = runner.home.recorder, record.verb_code("all_reduce")
    begin, done, end = recorder.begin, recorder.done, recorder.end
    acquire, release = runner.busy.acquire, runner.busy.release
    plain_pair, reduce = _core.plain_pair, _core.reduce

    def run(x: Array, op: Any, out: Array) -> bool:
        pair = plain_pair(x, out)
        if pair == 0 or runner.noisy:
            return False
        try:
            plan = plans[op, x.dtype, x.shape]
        except (KeyError, TypeError):  # not seen before, or an op that cannot be a key
            return False
        if not acquire(False):
            return False
        call, handle, in_place, code, count, itemsize, moved, divisor = plan
        try:
            ticket = begin(slot, verb, code, count, itemsize, -1)
            try:
                call(x if pair == 1 else in_place, out, handle)
                if divisor is not None:
                    reduce(out, [out], "sum", None, divisor)
            except BaseException:
                end(ticket, 1)
                raise
            done(ticket, *moved)
        finally:
            release()
        return True

    return run

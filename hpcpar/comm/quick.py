"""The hot path of blocking verbs: plain arrays, a call seen before, nothing to compare.

The first calls of a kind take the long way, which checks everything; what it found is kept here as
a plan, and the next equal call needs one look at the arrays, one dictionary look-up, the record and
the backend's own call. Only verbs whose long way ends in the very same call of the backend are
here, so that ranks may take different ways.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

from .._arrays import Array, dtype_code
from .._core import plain_pair, reduce
from . import record
from .backend import Operation
from .layout import rows_before
from .move_requests import AllGather
from .reduce_requests import AllReduce, ReduceScatter
from .request import Operand, Request

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ["Quick"]

_Plans: TypeAlias = dict[Hashable, tuple[Any, ...]]
_PLANS = 4096


class Quick:
    """Plans of calls that may take the hot path of one group.

    Attributes
    ----------
    all_reduce : callable
        ``all_reduce(x, op, out)``: True if it did it, False if the call needs the long way.
    other : callable
        ``other(key, x, out)``: the same for `all_gather` and `reduce_scatter`; the key holds the
        verb and its further arguments.
    """

    def __init__(self, runner: Runner, slot: int) -> None:
        self._runner = runner
        self._reductions: _Plans = {}
        self._others: _Plans = {}
        self.all_reduce = _bind_all_reduce(runner, slot, self._reductions)
        self.other = _bind_other(runner, slot, self._others)

    def learn(self, request: Request) -> None:
        """Keep a plan for calls like `request`, which ended well, if they may take this path."""
        if not self._runner.settled(request):
            return
        if len(self._reductions) + len(self._others) >= _PLANS:
            self.forget()
        if isinstance(request, AllReduce):
            self._learn_all_reduce(request)
        elif isinstance(request, ReduceScatter):
            self._learn_reduce_scatter(request)
        elif isinstance(request, AllGather):
            self._learn_all_gather(request)

    def forget(self) -> None:
        """Drop all plans: the next calls take the long way."""
        self._reductions.clear()
        self._others.clear()

    def _learn_all_reduce(self, request: AllReduce) -> None:
        leaf, reduction = request.leaves[0], request.reduction
        plain = leaf.out is not None and plain_pair(leaf.array, leaf.out)
        if request.structure is not None or request.weighted or not plain:
            return
        array = leaf.array
        operation = Operation("all_reduce", array, op=reduction.primitive)
        direct = self._runner.backend.direct(operation)
        if direct is not None and reduction.factor is None:
            divisor = reduction.divisor(self._runner.view.size)
            plan = (direct, *self._recorded(operation), divisor)
            self._reductions[reduction.name, array.dtype, array.shape] = plan

    def _learn_reduce_scatter(self, request: ReduceScatter) -> None:
        operand, reduction = request.operand, request.reduction
        row = operand.array.size // max(1, operand.array.shape[request.axis])
        operation = Operation(
            "reduce_scatter",
            operand.array,
            op=reduction.primitive,
            send_counts=[n * row for n in request.sizes],
        )
        if reduction.name == reduction.primitive:
            key = ("reduce_scatter", reduction.name, request.axis, request.given_sizes)
            self._learn_other(key, operand, request.axis, operation)

    def _learn_all_gather(self, request: AllGather) -> None:
        if request.sizes is None or request.scalar:
            return
        nbytes = request.block.nbytes // max(1, request.length)
        operation = Operation(
            "all_gather",
            request.block,
            recv_counts=[n * nbytes for n in request.sizes],
        )
        key = ("all_gather", request.axis, request.given_sizes)
        self._learn_other(key, request.operand, request.axis, operation)

    def _learn_other(
        self, key: Hashable, operand: Operand, axis: int, operation: Operation
    ) -> None:
        array, out = operand.array, operand.out
        if out is None or plain_pair(array, out, False) != 1:
            return
        direct = self._runner.backend.direct(operation)
        if direct is not None and rows_before(array.shape, axis) == 1:
            plan = (direct, record.verb_code(operation.verb), *self._recorded(operation))
            self._others[key, array.dtype, array.shape, out.shape] = plan

    def _recorded(self, operation: Operation) -> tuple[Any, ...]:
        """Return what the record says of such a call: dtype, elements, itemsize, traffic."""
        array, view = operation.send, self._runner.view
        assert array is not None
        moved = record.traffic_of(operation, view.rank, view.size)
        return dtype_code(array.dtype), array.size, array.itemsize, moved


def _bind_all_reduce(runner: Runner, slot: int, plans: _Plans) -> Callable[[Any, Any, Any], bool]:
    """Return the hot path as one closure: attribute look-ups cost more than the record."""
    recorder, verb = runner.home.recorder, record.verb_code("all_reduce")
    begin, done, end = recorder.begin, recorder.done, recorder.end
    acquire, release = runner.busy.acquire, runner.busy.release

    def run(x: Any, op: Any, out: Any) -> bool:
        pair = plain_pair(x, out)
        if pair == 0 or runner.noisy:
            return False
        try:
            plan = plans[op, x.dtype, x.shape]
        except (KeyError, TypeError):  # not seen before, or an op that cannot be a key
            return False
        if not acquire(False):
            return False
        direct, code, count, itemsize, moved, divisor = plan
        try:
            ticket = begin(slot, verb, code, count, itemsize, -1)
            try:
                direct(x, out, pair == 2)
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


def _bind_other(runner: Runner, slot: int, plans: _Plans) -> Callable[[Hashable, Any, Any], bool]:
    recorder = runner.home.recorder

    def run(key: Hashable, x: Array, out: Array) -> bool:
        if plain_pair(x, out, False) != 1 or runner.noisy:
            return False
        try:
            plan = plans[key, x.dtype, x.shape, out.shape]
        except (KeyError, TypeError):
            return False
        if not runner.busy.acquire(False):
            return False
        direct, verb, code, count, itemsize, moved = plan
        try:
            ticket = recorder.begin(slot, verb, code, count, itemsize, -1)
            try:
                direct(x, out, False)
            except BaseException:
                recorder.end(ticket, 1)
                raise
            recorder.done(ticket, *moved)
        finally:
            runner.busy.release()
        return True

    return run

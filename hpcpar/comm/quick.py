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
        ``all_reduce(x, op, out)``: True if it did it, False if the call needs the long way. One
        call into the core, which also keeps the record.
    other : callable
        ``other(key, x, out)``: the same for `all_gather` and `reduce_scatter`; the key holds the
        verb and its further arguments.
    """

    def __init__(self, runner: Runner, slot: int) -> None:
        self._runner = runner
        self._others: _Plans = {}
        self.all_reduce = runner.hot.run
        self.other = _bind_other(runner, slot, self._others)

    def learn(self, request: Request) -> None:
        """Keep a plan for calls like `request`, which ended well, if they may take this path."""
        if not self._runner.settled(request):
            return
        if len(self._others) >= _PLANS:
            self.forget()
        if isinstance(request, AllReduce):
            self._learn_all_reduce(request)
        elif isinstance(request, ReduceScatter):
            self._learn_reduce_scatter(request)
        elif isinstance(request, AllGather):
            self._learn_all_gather(request)

    def forget(self) -> None:
        """Drop all plans: the next calls take the long way."""
        self._runner.hot.forget()
        self._others.clear()

    def _learn_all_reduce(self, request: AllReduce) -> None:
        leaf, reduction = request.leaves[0], request.reduction
        plain = leaf.out is not None and plain_pair(leaf.array, leaf.out)
        if request.structure is not None or request.weighted or not plain:
            return
        array = leaf.array
        operation = Operation("all_reduce", array, op=reduction.primitive)
        parts = self._runner.backend.hot(operation)
        if parts is not None and reduction.factor is None:
            after = _divider(reduction.divisor(self._runner.view.size))
            code, _, _, moved = self._recorded(operation)
            self._runner.hot.add(reduction.name, array, *parts, after, code, *moved)

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


def _divider(divisor: float | None) -> Callable[[Array], None] | None:
    """Return what turns a sum into a mean."""
    if divisor is None:
        return None
    return lambda out: reduce(out, [out], "sum", None, divisor)


def _bind_other(runner: Runner, slot: int, plans: _Plans) -> Callable[[Hashable, Any, Any], bool]:
    recorder = runner.home.recorder

    def run(key: Hashable, x: Array, out: Array) -> bool:
        if plain_pair(x, out, False) != 1 or runner.noisy:
            return False
        try:
            plan = plans[key, x.dtype, x.shape, out.shape]
        except (KeyError, TypeError):
            return False
        if not runner.hot.acquire():
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
            runner.hot.release()
        return True

    return run

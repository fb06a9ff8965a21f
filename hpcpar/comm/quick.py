"""The hot path of blocking verbs: plain arrays, a call seen before, nothing to compare.

The first calls of a kind take the long way, which checks everything; what it found is kept here as
a plan, and the next equal call needs one look at the arrays, one dictionary look-up, the record and
the backend's own call. Only verbs whose long way ends in the very same call of the backend are
here, so that ranks may take different ways.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from .._arrays import Array, dtype_code
from .._core import plain_pair, reduce
from . import record
from .backend import Operation
from .broadcast_request import Broadcast
from .layout import rows_before
from .move_requests import AllGather
from .reduce_requests import AllReduce, ReduceScatter
from .request import Operand, Request

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ["Quick"]


class Quick:
    """Teaches the core which calls of one group may take the hot path.

    Attributes
    ----------
    run : callable
        ``run(x, key, out)``: True if it did the call, False if the call needs the long way. The
        key is an all_reduce's op, or a tuple of the verb and its further arguments.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.run = runner.hot.run

    def learn(self, request: Request) -> None:
        """Keep a plan for calls like `request`, which ended well, if they may take this path."""
        if not self._runner.settled(request):
            return
        if isinstance(request, AllReduce):
            self._learn_all_reduce(request)
        elif isinstance(request, ReduceScatter):
            self._learn_reduce_scatter(request)
        elif isinstance(request, AllGather):
            self._learn_all_gather(request)
        elif isinstance(request, Broadcast):
            self._learn_broadcast(request)

    def forget(self) -> None:
        """Drop all plans: the next calls take the long way."""
        self._runner.hot.forget()

    def _learn_all_reduce(self, request: AllReduce) -> None:
        reduction = request.reduction
        if request.structure is None and not request.weighted and reduction.factor is None:
            leaf = request.leaves[0]
            operation = Operation("all_reduce", leaf.array, op=reduction.primitive)
            after = _divider(reduction.divisor(self._runner.view.size))
            self._add(reduction.name, leaf, operation, after)

    def _learn_reduce_scatter(self, request: ReduceScatter) -> None:
        operand, reduction = request.operand, request.reduction
        row = operand.array.size // max(1, operand.array.shape[request.axis])
        operation = Operation(
            "reduce_scatter",
            operand.array,
            op=reduction.primitive,
            send_counts=[n * row for n in request.sizes],
        )
        whole = rows_before(operand.array.shape, request.axis) == 1
        if reduction.name == reduction.primitive and whole:
            key = ("reduce_scatter", reduction.name, request.axis, request.given_sizes)
            self._add(key, operand, operation)

    def _learn_all_gather(self, request: AllGather) -> None:
        if request.sizes is None or request.scalar:
            return
        if rows_before(request.block.shape, request.axis) != 1:
            return
        nbytes = request.block.nbytes // max(1, request.length)
        operation = Operation(
            "all_gather",
            request.block,
            recv_counts=[n * nbytes for n in request.sizes],
        )
        key = ("all_gather", request.axis, request.given_sizes)
        self._add(key, request.operand, operation)

    def _learn_broadcast(self, request: Broadcast) -> None:
        if request.leaves is None or request.structure is not None:
            return
        leaf = request.leaves[0]
        operation = Operation("broadcast", leaf.array, root=request.root)
        self._add(("broadcast", request.root), leaf, operation)

    def _add(
        self,
        key: Hashable,
        operand: Operand,
        operation: Operation,
        after: Callable[[Array], object] | None = None,
    ) -> None:
        """Teach the core, where both arrays are plain and the backend has one call for it."""
        array, out, view = operand.array, operand.out, self._runner.view
        if out is None or not plain_pair(array, out, False) or not _is_key(key):
            return
        direct = self._runner.backend.direct(operation)
        if direct is not None:
            verb, code = record.verb_code(operation.verb), dtype_code(array.dtype)
            moved = record.traffic_of(operation, view.rank, view.size)
            self._runner.hot.add(key, array, out, (*direct, after), (verb, code, *moved))


def _is_key(key: Hashable) -> bool:
    try:
        hash(key)
    except TypeError:  # sizes as a list
        return False
    return True


def _divider(divisor: float | None) -> Callable[[Array], None] | None:
    """Return what turns a sum into a mean."""
    if divisor is None:
        return None
    return lambda out: reduce(out, [out], "sum", None, divisor)

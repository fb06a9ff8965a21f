"""The hot path of blocking verbs: plain arrays, a call seen before, nothing to compare.

The first calls of a kind take the long way, which checks everything; what it found is kept here as
a plan, and the next equal call needs one look at the arrays, one dictionary look-up, the record and
the backend's own call. Only verbs whose long way ends in the very same call of the backend are
here, so that ranks may take different ways; or the backend compares by itself, and sends a call
back to the long way where a rank means something else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from .._arrays import Array, as_bytes, dtype_code
from .._core import plain_pair, reduce
from . import record
from .agree import HEADER_NBYTES, UNKNOWN_SEQ, Header
from .all_to_all_request import AllToAll
from .backend import Agreement, Direct, Operation
from .broadcast_request import Broadcast
from .describe import kind_text
from .layout import rows_before
from .message_requests import Incoming, Recv, Send, SendRecv
from .move_requests import AllGather, Gather, Scatter
from .reduce_requests import AllReduce, Reduce, ReduceScatter, Scan
from .request import Operand, Request, View

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ["Quick"]


class Quick:
    """Teaches the core which calls of one group may take the hot path."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def learn(self, request: Request) -> None:
        """Keep a plan for calls like `request`, which ended well, if they may take this path."""
        make = _MAKERS.get(type(request))
        if make is None or not self._runner.comparison.is_settled(request):
            return
        plan = make(request, self._runner.view)
        if plan is not None and plan.is_plain() and _is_key(plan.key):
            self._add(request, plan)

    def forget(self) -> None:
        """Drop all plans: the next calls take the long way."""
        self._runner.hot.forget()

    def _add(self, request: Request, plan: _Plan) -> None:
        operation, view = plan.operation, self._runner.view
        agreement = self.agreement(request) if self._runner.backend.compares_itself else None
        direct = self._direct(plan, agreement)
        array = plan.x if plan.x is not None else plan.out
        if direct is not None and array is not None:
            verb, code = record.verb_code(request.verb), dtype_code(array.dtype)
            moved = record.traffic_of(operation, view.rank, view.size)
            if plan.second is not None:
                more = record.traffic_of(plan.second, view.rank, view.size)
                moved = record.Traffic(*map(sum, zip(moved, more, strict=True)))
            after = None if direct.divides else _divider(operation.divisor)
            # The core keeps the other way if it has learned it: ranks compare each by itself.
            ways = (None, direct.in_place) if plan.is_in_place() else (direct.apart, None)
            calls = (*ways, after)
            recorded = (verb, code, *moved, request.root)
            self._runner.hot.add(plan.key, plan.x, plan.out, plan.place, calls, recorded)

    def _direct(self, plan: _Plan, agreement: Agreement | None) -> Direct | None:
        backend = self._runner.backend
        if plan.second is None:
            return backend.direct(plan.operation, agreement)
        return (
            None
            if agreement is None
            else backend.direct_pair(plan.operation, plan.second, agreement)
        )

    def agreement(self, request: Request) -> Agreement | None:
        """Return what the ranks compare in the call itself; None: they know too little."""
        same, runner = request.fingerprint(), self._runner
        if not request.collective:  # nothing is compared
            return Agreement(0, bytes(HEADER_NBYTES), runner.message_error)
        if same is None:
            return None
        if runner.view.size == 1:  # there is nobody to compare with
            return Agreement(0, bytes(HEADER_NBYTES), runner.hot_error)
        said = Header.make(
            request.agreed(), request.local(), request.length, request.weight, UNKNOWN_SEQ
        )
        whole = Header.make(same, [], -1, 1.0, 0)
        number = int.from_bytes(whole.digest[:8], "little")
        return Agreement(number, said.pack(), runner.hot_error, (runner.home.recorder, runner.slot))


class _Plan(NamedTuple):
    """How calls are told from others, their arrays, what the backend is asked, what follows.

    The key is an all_reduce's op, or a tuple of the verb and its further arguments. In place, x
    begins `place` bytes into out.
    """

    key: Hashable
    x: Array | None
    out: Array | None
    operation: Operation
    second: Operation | None = None  # at the same time
    place: int = 0

    def is_plain(self) -> bool:
        """Whether both arrays, as far as there are some with elements, go as they are."""
        arrays = [a for a in (self.x, self.out) if a is not None and a.size]
        place = self.place if len(arrays) == 2 else 0
        return bool(arrays) and plain_pair(arrays[0], arrays[-1], False, place) > 0

    def is_in_place(self) -> bool:
        """Whether the result goes to where the operand is."""
        both = self.x is not None and self.out is not None
        return both and plain_pair(self.x, self.out, False, self.place) == 2


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


def _only_leaf(request: AllReduce | Broadcast | Reduce | Scan) -> Operand | None:
    """Return the operand of a call with one array; a tree may have no leaves at all."""
    return request.leaves[0] if request.structure is None and request.leaves else None


def _all_reduce(request: AllReduce, view: View) -> _Plan | None:
    reduction, leaf = request.reduction, _only_leaf(request)
    if leaf is None or leaf.out is None or request.weighted or reduction.factor is not None:
        return None
    divisor = reduction.divisor(view.size)
    operation = Operation("all_reduce", leaf.array, op=reduction.primitive, divisor=divisor)
    return _Plan(reduction.name, leaf.array, leaf.out, operation)


def _reduce(request: Reduce, view: View) -> _Plan | None:
    reduction, leaf, at_root = request.reduction, _only_leaf(request), view.rank == request.root
    if leaf is None or reduction.factor is not None or at_root != (leaf.out is not None):
        return None
    divisor = reduction.divisor(view.size) if at_root else None
    operation = Operation(
        "reduce", leaf.array, op=reduction.primitive, root=request.root, divisor=divisor
    )
    return _Plan(("reduce", reduction.name, request.root), leaf.array, leaf.out, operation)


def _scan(request: Scan, view: View) -> _Plan | None:
    reduction, leaf = request.reduction, _only_leaf(request)
    exclusive = request.primitive_verb == "exscan"
    if leaf is None or leaf.out is None or reduction.factor is not None:
        return None
    if exclusive and view.rank == 0:  # gets the neutral element, from nobody
        return None
    operation = Operation(request.primitive_verb, leaf.array, op=reduction.primitive)
    return _Plan(("scan", reduction.name, exclusive), leaf.array, leaf.out, operation)


def _reduce_scatter(request: ReduceScatter, view: View) -> _Plan | None:
    operand, reduction = request.operand, request.reduction
    if operand.out is None or reduction.name != reduction.primitive:
        return None
    if rows_before(operand.array.shape, request.axis) != 1:
        return None
    row = operand.array.size // max(1, operand.array.shape[request.axis])
    operation = Operation(
        "reduce_scatter",
        operand.array,
        op=reduction.primitive,
        send_counts=[n * row for n in request.sizes],
    )
    key = ("reduce_scatter", reduction.name, request.axis, request.given_sizes)
    return _Plan(key, operand.array, operand.out, operation)


def _gathering(request: AllGather | Gather, root: int | None, receives: bool) -> _Plan | None:
    if request.sizes is None or request.scalar or receives != (request.operand.out is not None):
        return None
    if rows_before(request.block.shape, request.axis) != 1:
        return None
    counts = [n * request.unit for n in request.sizes]
    operation = Operation(request.verb, request.block, root=root, recv_counts=counts)
    place = () if root is None else (root,)
    key = (request.verb, *place, request.axis, request.given_sizes)
    before = sum(counts[: request.view.rank])
    return _Plan(key, request.block, request.operand.out, operation, place=before)


def _all_gather(request: AllGather, view: View) -> _Plan | None:
    return _gathering(request, None, True)


def _gather(request: Gather, view: View) -> _Plan | None:
    return _gathering(request, request.root, view.rank == request.root)


def _all_to_all(request: AllToAll, view: View) -> _Plan | None:
    operand = request.operand
    array, out = operand.array, operand.out
    lengths = request.promised
    is_one = rows_before(array.shape, request.axis) == 1 and array.flags.c_contiguous
    if lengths is None or out is None or not is_one:
        return None
    operation = Operation(
        "all_to_all",
        as_bytes(array),
        send_counts=[n * request.unit for n in request.sizes],
        recv_counts=[n * request.unit for n in lengths],
        equal=request.promised_equal,
    )
    return _Plan(("all_to_all", request.axis, request.given_sizes), array, out, operation)


def _scatter(request: Scatter, view: View) -> _Plan | None:
    array, out = request.array, request.out_array
    if out is None or (array is not None and rows_before(array.shape, request.axis) != 1):
        return None
    operation = Operation("scatter", array, out, root=request.root, send_counts=request.counts())
    key = ("scatter", request.root, request.given_axis, request.given_sizes)
    return _Plan(key, array, out, operation)


def _broadcast(request: Broadcast, view: View) -> _Plan | None:
    leaf = _only_leaf(request)
    if leaf is None or leaf.out is None:
        return None
    operation = Operation("broadcast", leaf.array, root=request.root)
    return _Plan(("broadcast", request.root), leaf.array, leaf.out, operation)


def _send(request: Send, view: View) -> _Plan:
    array, dst, tag = request.half.array, request.half.dst, request.half.tag
    operation = Operation("send", array, root=dst, tag=tag, kind=kind_text(array))
    return _Plan(("send", dst, tag), array, None, operation)


def _recv(request: Recv, view: View) -> _Plan | None:
    half = request.half
    if half.out is None:
        return None
    return _Plan(("recv", half.src, half.tag), None, half.out, _receiving(half.out, half))


def _sendrecv(request: SendRecv, view: View) -> _Plan | None:
    going, coming = request.outgoing, request.incoming
    array, out = going.array, coming.out
    if out is None:
        return None
    send = Operation("send", array, root=going.dst, tag=going.tag, kind=kind_text(array))
    key = ("sendrecv", going.dst, coming.src, going.tag)
    return _Plan(key, array, out, send, _receiving(out, coming))


def _receiving(out: Array, half: Incoming) -> Operation:
    return Operation("recv", None, out, root=half.src, tag=half.tag, kind=kind_text(out))


_MAKERS: dict[type[Request], Callable[[Any, View], _Plan | None]] = {
    AllReduce: _all_reduce,
    Reduce: _reduce,
    Scan: _scan,
    ReduceScatter: _reduce_scatter,
    AllGather: _all_gather,
    Gather: _gather,
    AllToAll: _all_to_all,
    Scatter: _scatter,
    Broadcast: _broadcast,
    Send: _send,
    Recv: _recv,
    SendRecv: _sendrecv,
}

"""The reducing verbs: all_reduce, reduce, scan, reduce_scatter; and barrier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import Array, adopt, check_axis
from ..errors import ArgumentError, UnsupportedError
from . import describe, tree
from . import sizes as cuts
from .agree import Header
from .backend import Operation
from .layout import block_shape
from .reductions import Portion, Reduction, check_dtype, neutral, parse
from .request import Operand, Request, Steps, View, operands

__all__ = ["AllReduce", "Barrier", "Reduce", "ReduceScatter", "Scan"]


_BUCKET_NBYTES = 25 * 2**20  # of a tree's leaves that are packed into one operation


class Barrier(Request):
    """Wait until every rank is here."""

    verb = "barrier"

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        return ["verb=barrier"]

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        yield Operation("barrier")
        return None


class _TreeReduction(Request):
    """What all_reduce, reduce and scan share: leaves in buckets, one operation each."""

    primitive_verb: str

    def __init__(self, view: View, x: Any, op: Any, out: Any) -> None:
        super().__init__(view)
        self.reduction: Reduction = parse(op, self.verb)
        self.leaves, self.structure, _ = operands(x, out, self.verb)
        for leaf in self.leaves:
            check_dtype(leaf.array.dtype, self.reduction, self.verb)
            leaf.check(leaf.array.shape, self.verb)
        self.groups = _buckets(self.leaves)
        self.count = sum(leaf.array.size for leaf in self.leaves)
        kinds = {leaf.array.dtype.newbyteorder("=") for leaf in self.leaves}
        self.dtype = kinds.pop() if len(kinds) == 1 else None

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        fields = [f"verb={self.verb}", f"op={self.reduction}", *self._place()]
        arrays = [leaf.array for leaf in self.leaves]
        if self.structure is None:
            return [*fields, f"dtype={arrays[0].dtype.name}", f"shape={arrays[0].shape}"]
        kinds = ", ".join(f"{a.dtype.name}{a.shape}" for a in arrays)
        return [*fields, f"tree={self.structure.digest().hex()[:8]}", f"leaves=[{kinds}]"]

    def _place(self) -> list[str]:
        """Say whether the call is in place: MPI wants that of all ranks, or of none."""
        one_for_all = self.structure is None and self.root < 0
        return ["place=in"] if one_for_all and self.leaves[0].in_place else []

    def agreed_nbytes(self) -> int:
        """Return the bytes by which ranks decide alike."""
        return sum(leaf.array.nbytes for leaf in self.leaves)

    def factors(self, headers: Sequence[Header] | None) -> tuple[float, ...] | None:
        """Return each rank's factor."""
        return self.reduction.factors(self.view.size)

    def divisor(self, headers: Sequence[Header] | None) -> float | None:
        """Return what sums are divided by."""
        return self.reduction.divisor(self.view.size)

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        results: list[Any] = [None] * len(self.leaves)
        for members in self.groups:
            chosen = [self.leaves[i] for i in members]
            send = _joined(chosen, self.view)
            recv = self.receive(chosen, send)
            yield Operation(
                self.primitive_verb,
                send,
                recv,
                op=self.reduction.primitive,
                root=self.root if self.root >= 0 else None,
                factors=self.factors(headers),
                divisor=self.divisor(headers),
            )
            if recv is not None:
                for i, result in zip(members, self.split(chosen, recv), strict=True):
                    results[i] = self.leaves[i].hand_back(result)
        return self.rebuild(results)

    def receive(self, chosen: list[Operand], send: Array) -> Array | None:
        """Return the buffer for the result of `chosen`; None where there is none."""
        if len(chosen) == 1 and chosen[0].in_place:
            return send  # on every rank, whatever its layout: MPI wants all in place, or none
        if len(chosen) == 1:
            return chosen[0].target(self.view.memory, chosen[0].array.shape)
        return self.view.memory.empty((send.size,), send.dtype)

    def split(self, chosen: list[Operand], flat: Array) -> list[Array]:
        """Return one array per leaf out of the joined result."""
        if len(chosen) == 1:
            return [flat.reshape(chosen[0].array.shape)]
        ends = np.cumsum([leaf.array.size for leaf in chosen])[:-1]
        parts = np.split(flat, ends)
        return [p.reshape(leaf.array.shape) for p, leaf in zip(parts, chosen, strict=True)]

    def rebuild(self, results: list[Any]) -> Any:
        """Return the results in the structure of the input."""
        return results[0] if self.structure is None else tree.unflatten(self.structure, results)


def _buckets(leaves: Sequence[Operand]) -> list[list[int]]:
    """Return which leaves travel together: of one dtype, up to about 25 MiB that are packed."""
    done: list[list[int]] = []
    filling: dict[np.dtype[Any], list[int]] = {}
    nbytes: dict[np.dtype[Any], int] = {}
    for i, leaf in enumerate(leaves):
        dtype = leaf.array.dtype.newbyteorder("=")
        if leaf.array.nbytes >= _BUCKET_NBYTES:  # goes as it lies
            done.append([i])
            continue
        filling.setdefault(dtype, []).append(i)
        nbytes[dtype] = nbytes.get(dtype, 0) + leaf.array.nbytes
        if nbytes[dtype] >= _BUCKET_NBYTES:
            done.append(filling.pop(dtype))
            nbytes[dtype] = 0
    return done + list(filling.values())


def _joined(chosen: list[Operand], view: View) -> Array:
    return view.memory.pack_all([leaf.array for leaf in chosen])


_MULTIPLIED = 1  # the length that a header carries where x is multiplied by its weight already


class AllReduce(_TreeReduction):
    """Every rank gets the reduction over all ranks."""

    verb = "all_reduce"
    primitive_verb = "all_reduce"

    def __init__(self, view: View, x: Any, op: Any, weight: Any, out: Any) -> None:
        super().__init__(view, x, op, out)
        self.weighted = weight is not None
        self.portioned = isinstance(weight, Portion)
        if weight is not None:
            portion = weight if isinstance(weight, Portion) else Portion(weight)
            self.weight = _check_weight(portion.weight, self.reduction)
            self.length = _MULTIPLIED if portion.multiplied else -1
            self.exchanges = True

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        kind = "portion" if self.portioned else "yes"
        return [*super().agreed(), *([f"weighted={kind}"] if self.weighted else [])]

    def objection(self, headers: Sequence[Header]) -> str | None:
        """Say what the headers break, the same on every rank."""
        if self.weighted and not self.portioned and _total(headers) == 0:
            return "all_reduce: the weights of all ranks sum to 0, a weighted mean needs more"
        return None

    def factors(self, headers: Sequence[Header] | None) -> tuple[float, ...] | None:
        """Return each rank's factor."""
        if self.weighted and headers is not None:
            return tuple(1.0 if h.length == _MULTIPLIED else h.weight for h in headers)
        return super().factors(headers)

    def divisor(self, headers: Sequence[Header] | None) -> float | None:
        """Return what sums are divided by."""
        if self.weighted and headers is not None:
            return _total(headers) or 1.0
        return super().divisor(headers)


def _total(headers: Sequence[Header]) -> float:
    return math.fsum(h.weight for h in headers)


def _check_weight(weight: Any, reduction: Reduction) -> float:
    if reduction.name != "mean":
        raise ArgumentError(f"all_reduce: weight goes with op 'mean', not {reduction.name!r}.")
    if isinstance(weight, bool) or not isinstance(weight, (int, float, np.integer, np.floating)):
        raise ArgumentError(f"all_reduce: weight {weight!r} must be a real number.")
    if not (math.isfinite(weight) and weight >= 0):
        raise ArgumentError(f"all_reduce: weight {weight!r} must be finite and >= 0.")
    return float(weight)


class Reduce(_TreeReduction):
    """The root gets the reduction over all ranks, the others None."""

    verb = "reduce"
    primitive_verb = "reduce"

    def __init__(self, view: View, x: Any, op: Any, root: int, out: Any) -> None:
        super().__init__(view, x, op, out)
        self.root = self.check_root(root)

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        return [*super().agreed(), f"root={self.root}"]

    def receive(self, chosen: list[Operand], send: Array) -> Array | None:
        """Return the buffer for the result, None where there is none."""
        return super().receive(chosen, send) if self.view.rank == self.root else None

    def rebuild(self, results: list[Any]) -> Any:
        """Return the results in the structure of the input."""
        return super().rebuild(results) if self.view.rank == self.root else None


class Scan(_TreeReduction):
    """Rank r gets the reduction over ranks 0..r, or 0..r-1 where exclusive."""

    verb = "scan"

    def __init__(self, view: View, x: Any, op: Any, exclusive: bool, out: Any) -> None:
        super().__init__(view, x, op, out)
        if self.reduction.name == "mean":
            raise UnsupportedError("scan: op 'mean' has no meaning for a prefix. Use 'sum'.")
        self.primitive_verb = "exscan" if exclusive else "scan"

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        return [*super().agreed(), f"exclusive={self.primitive_verb == 'exscan'}"]

    def split(self, chosen: list[Operand], flat: Array) -> list[Array]:
        """Return one array per leaf."""
        if self.primitive_verb == "exscan" and self.view.rank == 0 and flat.flags.writeable:
            flat[...] = neutral(self.reduction.primitive, flat.dtype)
        return super().split(chosen, flat)


class ReduceScatter(Request):
    """Each rank gets its part, along an axis, of the reduction over all ranks."""

    verb = "reduce_scatter"

    def __init__(self, view: View, x: Any, op: Any, axis: int, sizes: Any, out: Any) -> None:
        super().__init__(view)
        self.reduction = parse(op, self.verb)
        array, restore = adopt(x, self.verb)
        check_dtype(array.dtype, self.reduction, self.verb)
        if array.ndim == 0:
            raise ArgumentError("reduce_scatter: x is 0-d, it needs an axis to cut.")
        self.axis = check_axis(axis, array.ndim, self.verb)
        length = array.shape[self.axis]
        self.given_sizes = sizes
        self.sizes = (
            cuts.uneven(length, view.size)
            if sizes is None
            else cuts.check_sizes(sizes, view.size, length, self.verb)
        )
        self.shape = block_shape(array.shape, self.axis, self.sizes[view.rank])
        self.operand = Operand(array, restore, out, self.verb)
        self._check_out()
        self.count, self.dtype = array.size, array.dtype

    def _check_out(self) -> None:
        operand = self.operand
        if operand.in_place and self.view.size > 1:
            raise ArgumentError("reduce_scatter: out is x, but the result has another shape.")
        operand.check(self.shape, self.verb)

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        array = self.operand.array
        return [
            "verb=reduce_scatter",
            f"op={self.reduction}",
            f"dtype={array.dtype.name}",
            f"shape={array.shape}",
            f"axis={self.axis}",
            f"sizes={describe.sizes_text(self.sizes, array.shape[self.axis])}",
        ]

    def agreed_nbytes(self) -> int:
        """Return the bytes by which ranks decide alike."""
        return self.operand.array.nbytes

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        array, memory = self.operand.array, self.view.memory
        row = array.size // max(1, array.shape[self.axis])
        recv = self.operand.target(memory, self.shape)
        yield Operation(
            "reduce_scatter",
            memory.cut(array, self.sizes, self.axis),
            recv,
            op=self.reduction.primitive,
            send_counts=[n * row for n in self.sizes],
            factors=self.reduction.factors(self.view.size),
            divisor=self.reduction.divisor(self.view.size),
        )
        return self.operand.hand_back(recv.reshape(self.shape))

"""broadcast: the root's array, scalar or tree on every rank, in one operation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from .._arrays import Array, as_bytes, contiguous
from ..errors import ArgumentError, HpcparError, UnsupportedError
from . import codec, describe, tree
from .agree import Header
from .backend import Operation
from .request import Operand, Request, Steps, View, operands

__all__ = ["Broadcast"]

_MARKS = {"py": lambda a: a.item(), "np": lambda a: a[()]}


class Broadcast(Request):
    """Copy the root's array to every rank; what is given elsewhere must match it."""

    verb = "broadcast"
    exchanges = True

    def __init__(self, view: View, x: Any, root: int, out: Any) -> None:
        super().__init__(view)
        self.root = self.check_root(root)
        self.is_root = view.rank == self.root
        self.leaves: list[Operand] | None = None
        self.structure: tree.Structure | None = None
        self.given: list[str] = []
        try:
            self._take(x if x is not None or self.is_root else out, out)
        except HpcparError as error:
            self.refused = error
        # Without checks, out= on one rank promises it on all: then everybody knows what comes.
        self.exchanges = not (view.trusting and out is not None)
        if self.refused is not None and not self.exchanges:
            raise self.refused

    def _take(self, given: Any, out: Any) -> None:
        if given is None:
            if self.is_root:
                raise ArgumentError(f"broadcast: x is None on rank {self.root}, which is the root.")
            return
        leaves, self.structure, _ = operands(given, out, self.verb)
        for leaf in leaves:
            leaf.check(leaf.array.shape, self.verb)
        self.given = self._describe(leaves)
        self.leaves = leaves
        arrays = [leaf.array for leaf in self.leaves]
        self.count = sum(a.size for a in arrays)
        self.dtype = arrays[0].dtype if len({a.dtype for a in arrays}) == 1 else None

    def _describe(self, leaves: Sequence[Operand]) -> list[str]:
        kinds = [f"{_mark(leaf)}:{describe.kind_text(leaf.array)}" for leaf in leaves]
        if self.structure is None:
            return [f"kind={kinds[0]}"]
        skeleton = tree.unflatten(self.structure, list(range(len(kinds))))
        try:
            data = codec.join(codec.encode((skeleton, kinds)))
        except UnsupportedError as error:
            raise UnsupportedError(
                "broadcast: x holds a class that other ranks cannot build, such as a namedtuple: "
                f"{error} Use dict, list and tuple, or broadcast_object."
            ) from error
        return [f"tree={data.hex()}"]

    def agreed(self) -> list[str]:
        """Name what every rank must pass alike."""
        return ["verb=broadcast", f"root={self.root}"]

    def fingerprint(self) -> list[str] | None:
        """Add what comes to what must agree."""
        return [*self.agreed(), *self.given]

    def local(self) -> list[str]:
        """Name what only this rank knows."""
        return self.given if self.refused is None else [f"refused={self.refused}"]

    def objection(self, headers: Sequence[Header]) -> str | None:
        """Say what the headers break, the same on every rank."""
        root = _described(headers[self.root])
        for rank, header in enumerate(headers):
            mine = _described(header)
            if mine is not None and root is not None and _unmarked(mine) != _unmarked(root):
                shown, needed = _shown(mine), _shown(root)
                return f"broadcast: rank {rank} gave {shown}, root {self.root} sends {needed}"
        return None

    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations; return the result."""
        described = self._own() if headers is None else _described(headers[self.root])
        if described is None:  # every peer is a copy of this rank
            raise UnsupportedError(
                "broadcast: x is None, and on the fake backend no root sends. Pass x on every rank."
            )
        kinds, structure = described
        layouts = [describe.read_kind(kind) for _, kind in kinds]
        nbytes = [describe.nbytes_of(*layout) for layout in layouts]
        buffer = self._buffer(nbytes)
        yield Operation("broadcast", buffer if self.is_root else None, buffer, root=self.root)
        ends = list(accumulate(nbytes, initial=0))
        results = []
        for i, (dtype, shape) in enumerate(layouts):
            flat = buffer[ends[i] : ends[i + 1]]
            results.append(self._result(i, flat, dtype, shape, kinds[i][0]))
        return results[0] if structure is None else tree.unflatten(structure, results)

    def _own(self) -> _Described:
        assert self.leaves is not None
        kinds = [(_mark(leaf), describe.kind_text(leaf.array)) for leaf in self.leaves]
        return kinds, self.structure

    def _buffer(self, nbytes: Sequence[int]) -> Array:
        """Return the bytes to send or to receive into: `out` itself where it can be."""
        memory = self.view.memory
        if self.is_root and self.leaves is not None:
            parts = [_bytes_of(memory.pack(leaf.array)) for leaf in self.leaves]
            return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
        if self.leaves is not None and len(self.leaves) == 1 and self.leaves[0].out is not None:
            leaf = self.leaves[0]
            return _bytes_of(leaf.target(memory, leaf.array.shape))
        return memory.empty((sum(nbytes),), np.dtype(np.uint8))

    def _result(
        self, i: int, flat: Array, dtype: np.dtype[Any], shape: tuple[int, ...], mark: str
    ) -> Any:
        array = _typed(flat, dtype, shape)
        if self.leaves is None:
            return _MARKS[mark](array) if mark in _MARKS else array
        leaf = self.leaves[i]
        if self.is_root and leaf.out is None:
            array = np.array(array)  # a new array here too, as on every other rank
        return leaf.hand_back(array)


def _mark(leaf: Operand) -> str:
    if leaf.restore is None or leaf.array.ndim:
        return ""
    return "py" if leaf.restore.__name__ == "_python_scalar" else "np"


def _bytes_of(flat: Array) -> Array:
    return flat if flat.dtype == np.uint8 else as_bytes(contiguous(flat))


def _typed(flat: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if flat.size == 0:
        return np.empty(shape, dtype)
    if flat.strides == (0,):  # no data: one element seen as any shape
        return np.broadcast_to(np.zeros((), dtype), shape)
    whole = flat if flat.ctypes.data % dtype.alignment == 0 else flat.copy()
    return whole.view(dtype).reshape(shape)


_Described = tuple[list[tuple[str, str]], "tree.Structure | None"]


def _described(header: Header) -> _Described | None:
    """Return the (mark, kind) of each leaf and the tree, or None where nothing was given."""
    fields = header.fields()
    if "tree" in fields:
        skeleton, kinds = codec.decode(bytes.fromhex(fields["tree"]))
        return [_split(kind) for kind in kinds], tree.flatten(skeleton)[1]
    return ([_split(fields["kind"])], None) if "kind" in fields else None


def _split(text: str) -> tuple[str, str]:
    mark, _, kind = text.partition(":")
    return mark, kind


def _unmarked(described: _Described) -> object:
    """Return what must match: a float and a 0-d array do."""
    return [kind for _, kind in described[0]], described[1]


def _shown(described: _Described) -> str:
    kinds, structure = described
    if structure is None:
        return kinds[0][1]
    return "a tree of " + ", ".join(kind for _, kind in kinds)

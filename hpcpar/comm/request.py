"""A verb's call on one rank, normalised: what it is, what must agree, which operations it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from .._arrays import (
    Array,
    Restore,
    adopt,
    count_of,
    dtype_code,
    is_array,
    memory_overlaps,
    same_memory,
)
from ..errors import ArgumentError, HpcparError
from . import tree
from .agree import Header
from .backend import Operation
from .layout import Memory, check_out
from .record import verb_code

__all__ = ["Operand", "Request", "Steps", "View", "is_plain", "operands"]

#: Operations to run (a list runs together), then the verb's result.
Steps: TypeAlias = Generator["Operation | list[Operation]", None, Any]


class View(NamedTuple):
    """What a request knows of its group."""

    rank: int
    size: int
    memory: Memory
    trusting: bool = False  # check="off": what is promised is not compared


class Request(ABC):
    """One call of one verb; subclasses are the verbs.

    Attributes
    ----------
    verb : str
    exchanges : bool
        Whether headers must travel whatever `check` says: some rank lacks a size.
    compares : bool
        Whether headers travel unless `check` is "off": something was promised.
    collective : bool
        Whether all ranks of the group take part, in one order of calls.
    length : int
        Local length that headers carry.
    weight : float
        Weight that headers carry.
    site : str or None
        Line of the program that makes the call, where ranks compare that too.
    counted : bool
        Whether it was counted among the calls that look alike.
    refused : HpcparError or None
        What is wrong with this rank's arguments, where the others must hear of it.
    dtype, count : numpy dtype or None, int
        For the record.
    """

    verb: ClassVar[str]
    collective: ClassVar[bool] = True
    exchanges: bool = False
    compares: bool = False
    length: int = -1
    weight: float = 1.0
    dtype: np.dtype[Any] | None = None
    count: int = 0
    root: int = -1
    site: str | None = None
    counted: bool = False
    refused: HpcparError | None = None

    def __init__(self, view: View) -> None:
        self.view = view

    @cached_property
    def entry(self) -> tuple[int, int, int, int, int]:
        """What the record has of it: verb, dtype, elements, bytes of each, root."""
        kind = self.dtype
        code, itemsize = (0, 1) if kind is None else (dtype_code(kind), kind.itemsize)
        return verb_code(self.verb), code, self.count, itemsize, self.root

    @abstractmethod
    def agreed(self) -> list[str]:
        """Return the "field=value" texts that must be the same on every rank."""

    def local(self) -> list[str]:
        """Return further "field=value" texts that other ranks may need."""
        return []

    def refusal(self, headers: Sequence[Header]) -> str | None:
        """Return which rank refuses its own arguments and why; that rank itself raises."""
        if self.refused is not None:
            raise self.refused
        for rank, header in enumerate(headers):
            reason = header.field("refused")
            if reason is not None:
                who = "root" if rank == self.root else "rank"
                reason = reason.removeprefix(f"{self.verb}: ").removesuffix(".")
                return f"{self.verb}: {who} {rank} refused: {reason}"
        return None

    def objection(self, headers: Sequence[Header]) -> str | None:
        """Return what the headers break beyond plain equality, the same on every rank."""
        return None

    @abstractmethod
    def steps(self, headers: Sequence[Header] | None) -> Steps:
        """Yield the operations to run and return the verb's result."""

    def signature(self) -> object:
        """Return a hashable value equal for calls that look alike."""
        return (self.verb, *self.agreed())

    def fingerprint(self) -> list[str] | None:
        """Return all that every rank must know alike to go on without headers; None: too much."""
        return self.agreed()

    def agreed_nbytes(self) -> int:
        """Return the size by which every rank decides alike whether to compare; 0 = small."""
        return 0

    def check_root(self, root: int) -> int:
        """Return `root` as an int in ``0..size-1``, or raise ArgumentError."""
        return check_rank(root, self.view.size, self.verb, "root")


def check_rank(rank: Any, size: int, verb: str, name: str) -> int:
    """Return `rank` as an int in ``0..size-1``, or raise ArgumentError."""
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
        raise ArgumentError(f"{verb}: {name} {rank!r} must be an integer rank in the group.")
    if not 0 <= rank < size:
        raise ArgumentError(f"{verb}: {name} {rank} must be in 0..{size - 1}, a rank in the group.")
    return int(rank)


_IN_PLACE = "Pass out=x to work in place."


class Operand:
    """One array of a call: the input, where the result goes, how it is handed back."""

    __slots__ = ("array", "given", "out", "restore")

    def __init__(self, array: Array, restore: Restore | None, out: Any, verb: str) -> None:
        self.array = array.view()  # stays writable while the caller's array is locked
        self.restore = restore
        self.give(out, verb)

    def give(self, out: Any, verb: str) -> None:
        """Take `out`, or None."""
        self.given = out
        self.out: Array | None = None if out is None else adopt_out(out, verb).view()

    def check(
        self,
        shape: tuple[int, ...] | None,
        verb: str,
        place: tuple[Any, ...] = (...,),
        how: str = _IN_PLACE,
    ) -> None:
        """Refuse an `out` that cannot take a result of `shape` or overlaps the input.

        With shape None it is not known yet, and only the rest is checked. The input may be what
        lies at `place` in `out`, by default all of it; `how` says so.
        """
        if self.out is not None:
            shape = self.out.shape if shape is None else shape
            check_out(self.out, shape, self.array.dtype, verb)
            self.check_memory(verb, place, how)

    def check_memory(
        self, verb: str, place: tuple[Any, ...] = (...,), how: str = _IN_PLACE
    ) -> None:
        """Refuse an `out` that is read-only, or overlaps an input that is not at its `place`."""
        if self.out is None:
            return
        check_out(self.out, self.out.shape, self.out.dtype, verb)
        if not same_memory(self.out[place], self.array) and memory_overlaps(self.out, self.array):
            raise ArgumentError(f"{verb}: out overlaps x without being x. {how}")

    @property
    def in_place(self) -> bool:
        """Whether `out` is the input itself."""
        return self.out is not None and same_memory(self.out, self.array)

    def target(self, memory: Memory, shape: tuple[int, ...], direct: bool = True) -> Array:
        """Return the flat buffer that receives a result of `shape`: `out` itself if it can."""
        out = self.out
        if direct and out is not None and is_plain(out):
            return out.reshape(-1)
        return memory.empty((count_of(shape),), self.array.dtype)

    def hand_back(self, result: Array) -> Any:
        """Return `result` in the caller's kind, written to `out` if there is one."""
        if self.out is None:
            return result if self.restore is None else self.restore(result)
        if not same_memory(self.out, result):
            self.out[...] = result
        return self.given


def adopt_out(out: Any, verb: str) -> Array:
    """Return `out` as a NumPy array on the same memory; numbers cannot be written to."""
    if isinstance(out, (np.generic, bool, int, float, complex)):
        raise ArgumentError(f"{verb}: out is a {type(out).__name__}, which cannot be written to.")
    return adopt(out, verb, "out")[0]


def is_plain(x: Array) -> bool:
    """Whether the bytes of `x` are those of a flat native array."""
    return x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative


def operands(
    x: Any, out: Any, verb: str
) -> tuple[list[Operand], tree.Structure | None, Sequence[str]]:
    """Return the leaves of `x` with their outs, the tree's structure (None: no tree), names."""
    if is_array(x):
        array, restore = adopt(x, verb)
        return [Operand(array, restore, out, verb)], None, ("x",)
    leaves, structure = _flat(x, verb, "x")
    names = [f"x{path}" for path in structure.paths()]
    outs = _out_leaves(out, structure, verb) if out is not None else [None] * len(leaves)
    found = []
    for leaf, name, leaf_out in zip(leaves, names, outs, strict=True):
        array, restore = adopt(leaf, verb, name)
        found.append(Operand(array, restore, leaf_out, verb))
    return found, structure, names


def _flat(x: Any, verb: str, name: str) -> tuple[list[Any], tree.Structure]:
    try:
        return tree.flatten(x)
    except HpcparError as error:  # say which argument of which verb it is
        error.args = (str(error).replace("tree: x", f"{verb}: {name}", 1),)
        raise


def _out_leaves(out: Any, structure: tree.Structure, verb: str) -> list[Any]:
    leaves, given = ([], None) if is_array(out) else _flat(out, verb, "out")
    if given != structure:
        raise ArgumentError(f"{verb}: out must be a tree of the same structure as x.")
    return leaves

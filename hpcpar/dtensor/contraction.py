"""Sums of products: which letters the mesh axes split, by what moving takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, UnsupportedError
from ..mesh.costs import Costs
from ..mesh.partition import Cuts, Partition, rule_cuts
from ..mesh.redistribute_plan import seconds_of
from .base import Distributed, relaid
from .elementwise import arguments

__all__ = ["contract", "einsum", "matmul", "tensordot"]

#: For each operand and the result, a name for each axis; axes of one name have one length.
Letters = tuple[str, ...]
_STRETCHED = "*"  # the first character of names that nobody splits
_FLOP = 1e-10  # seconds of a multiplication with an addition, to compare with moving


class Way(NamedTuple):
    """How the operands must lie, and how the result does."""

    operands: tuple[Partition, ...]
    result: Partition


def contract(
    function: Callable[..., Any],
    operands: Sequence[Any],
    letters: Sequence[Letters],
    into: Letters,
    verb: str,
) -> Any:
    """Multiply the operands' parts and sum over letters that the result does not have.

    Operands that lie otherwise than the cheapest way wants are moved, which `comm_mode` counts.
    Mesh axes that split a letter which is summed over leave the result Partial.

    Parameters
    ----------
    function
        Computes with parts.
    operands
        Distributed arrays.
    letters
        For each operand the names of its axes.
    into
        Those of the result.
    verb
        For messages.
    """
    given, first = arguments(operands, verb)
    if not all(isinstance(x, Distributed) for x in given):
        raise ArgumentError(f"{verb}: all operands must be arrays.")
    _check_lengths(given, letters, verb)
    held = tuple(x.layout.partition for x in given)
    sizes = tuple(x.itemsize for x in given)
    way = _way(held, tuple(letters), into, sizes, first.mesh.costs)
    parts = [x.moved_to(at, verb) for x, at in zip(given, way.operands, strict=True)]
    return type(first).wrap(function(*parts), relaid(first.layout, way.result))


def _check_lengths(given: Sequence[Distributed], letters: Sequence[Letters], verb: str) -> None:
    known: dict[str, int] = {}
    for x, names in zip(given, letters, strict=True):
        for name, n in zip(names, x.shape, strict=True):
            if known.setdefault(name, n) != n:
                shapes = ", ".join(str(each.shape) for each in given)
                raise ArgumentError(
                    f"{verb}: shapes {shapes} do not fit: {n} is not {known[name]}."
                )


@lru_cache(1024)
def _way(
    held: tuple[Partition, ...],
    letters: tuple[Letters, ...],
    into: Letters,
    itemsizes: tuple[int, ...],
    costs: tuple[Costs, ...],
) -> Way:
    """Return the cheapest way: what is moved, what is computed, what is left to reduce."""
    lengths = {
        letter: n
        for each, names in zip(held, letters, strict=True)
        for letter, n in zip(names, each.shape, strict=True)
    }
    ways = []
    for choice in product(*_choices(held, letters)):
        way = _laid(held, letters, into, lengths, choice)
        moved = sum(
            seconds_of(a, b, n, costs)
            for a, b, n in zip(held, way.operands, itemsizes, strict=True)
        )
        after = _after(way, max(itemsizes), costs) + _work(lengths, choice, held[0].grid)
        ways.append((moved + after, way))
    return min(ways, key=_seconds)[1]


def _seconds(found: tuple[float, Way]) -> float:
    return found[0]


def _choices(
    held: tuple[Partition, ...], letters: tuple[Letters, ...]
) -> Iterator[list[str | None]]:
    """Yield for each mesh axis the letters that it may split: those that it does somewhere."""
    for m in range(len(held[0].grid)):
        found = {
            names[axis]
            for each, names in zip(held, letters, strict=True)
            for axis, split in enumerate(each.splits)
            if m in split and names.count(names[axis]) == 1 and names[axis][0] != _STRETCHED
        }
        choices: list[str | None] = [*sorted(found)]
        yield choices or [None]


def _laid(
    held: tuple[Partition, ...],
    letters: tuple[Letters, ...],
    into: Letters,
    lengths: dict[str, int],
    choice: tuple[str | None, ...],
) -> Way:
    """Return how all lies where each mesh axis splits the letter chosen for it."""
    grid = held[0].grid
    cut = {
        letter: _cut(held, letters, letter, [m for m, c in enumerate(choice) if c == letter], n)
        for letter, n in lengths.items()
    }

    def lay(names: Letters, partial: tuple[tuple[int, str], ...]) -> Partition:
        splits, cuts = zip(*(cut[name] for name in names), strict=True) if names else ((), ())
        shape = tuple(lengths[name] for name in names)
        return Partition(grid, shape, tuple(splits), tuple(cuts), partial)

    summed = [(m, "sum") for m, letter in enumerate(choice) if letter and letter not in into]
    return Way(tuple(lay(names, ()) for names in letters), lay(into, tuple(summed)))


def _cut(
    held: tuple[Partition, ...],
    letters: tuple[Letters, ...],
    letter: str,
    mesh_axes: list[int],
    length: int,
) -> tuple[tuple[int, ...], Cuts]:
    """Return how a letter is split by mesh axes: as an operand has it, else by the rule."""
    for each, names in zip(held, letters, strict=True):
        for axis, name in enumerate(names):
            if name == letter and sorted(each.splits[axis]) == mesh_axes and mesh_axes:
                return each.splits[axis], each.cuts[axis]
    grid = held[0].grid
    return tuple(mesh_axes), rule_cuts(length, grid, mesh_axes)


def _after(way: Way, itemsize: int, costs: tuple[Costs, ...]) -> float:
    """Return what reducing the result will take, scattered."""
    nbytes = way.result.most * itemsize
    grid = way.result.grid
    return sum(
        costs[m].latency * math.log2(grid[m]) + costs[m].per_byte * nbytes * (1 - 1 / grid[m])
        for m, _ in way.result.partial
    )


def _work(lengths: dict[str, int], choice: tuple[str | None, ...], grid: tuple[int, ...]) -> float:
    """Return what a rank's share of the multiplications takes."""
    split = math.prod(n for n, letter in zip(grid, choice, strict=True) if letter)
    return math.prod(lengths.values()) / split * _FLOP


# -- by NumPy's names ------------------------------------------------------------------------------


def matmul(x1: Any, x2: Any) -> Any:
    """Return the matrix product, over leading axes as NumPy's. The way is chosen by its costs."""
    (x, y), _ = arguments((x1, x2), "matmul")
    if not (isinstance(x, Distributed) and isinstance(y, Distributed)) or not x.ndim * y.ndim:
        raise ArgumentError("matmul: both must be arrays with axes.")
    first = ("i", "k") if x.ndim > 1 else ("k",)
    second = ("k", "j") if y.ndim > 1 else ("k",)
    inner = x.shape[-1], y.shape[-2 if y.ndim > 1 else 0]
    if inner[0] != inner[1]:
        raise ArgumentError(f"matmul: shapes {x.shape} and {y.shape} do not fit.")
    batch = x.shape[: -len(first)], y.shape[: -len(second)]
    try:
        shape = np.broadcast_shapes(*batch)
    except ValueError as error:
        raise ArgumentError(f"matmul: shapes {x.shape} and {y.shape} do not fit.") from error
    over = [_batch(each, shape, mark) for each, mark in zip(batch, "xy", strict=True)]
    names = tuple(f"b{n}" for n in range(-len(shape), 0))
    into = (*names, *(n for n in (*first, *second) if n != "k"))
    return contract(np.matmul, (x, y), ((*over[0], *first), (*over[1], *second)), into, "matmul")


def _batch(shape: tuple[int, ...], whole: tuple[int, ...], mark: str) -> list[str]:
    """Return the letters of leading axes; one that is stretched has its own."""
    numbers = range(-len(shape), 0)
    return [f"b{n}" if shape[n] == whole[n] else f"{_STRETCHED}{mark}{n}" for n in numbers]


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the sum of products over pairs of axes, as NumPy's."""
    (x, y), _ = arguments((a, b), "tensordot")
    if isinstance(axes, int):
        pairs = (range(x.ndim - axes, x.ndim), range(axes))
    else:
        pairs = tuple(np.atleast_1d(each).tolist() for each in axes)
    over = [[int(n) % each.ndim for n in some] for each, some in zip((x, y), pairs, strict=True)]
    if [x.shape[n] for n in over[0]] != [y.shape[n] for n in over[1]]:
        raise ArgumentError(f"tensordot: shapes {x.shape} and {y.shape} do not fit over {axes}.")
    first = tuple(f"k{over[0].index(n)}" if n in over[0] else f"x{n}" for n in range(x.ndim))
    second = tuple(f"k{over[1].index(n)}" if n in over[1] else f"y{n}" for n in range(y.ndim))
    into = tuple(name for name in (*first, *second) if name[0] != "k")

    def local(p: Any, q: Any) -> Any:
        return np.tensordot(p, q, (over[0], over[1]))

    return contract(local, (x, y), (first, second), into, "tensordot")


def einsum(subscripts: str, *operands: Any, **options: Any) -> Any:
    """Return a sum of products by subscripts, as NumPy's, without ``...``."""
    if set(options) - {"optimize"}:
        raise UnsupportedError(f"einsum: {', '.join(options)} have no rule.")
    spec = subscripts.replace(" ", "")
    source, arrow, target = spec.partition("->")
    letters = tuple(tuple(each) for each in source.split(","))
    if "." in spec or not set("".join(map("".join, letters)) + target) <= set(_ALPHABET):
        raise ArgumentError(f"einsum: subscripts {subscripts!r} must be letters, ',' and '->'.")
    every = [letter for each in letters for letter in each]
    once = sorted({letter for letter in every if every.count(letter) == 1})
    into = tuple(target) if arrow else tuple(once)
    given, _ = arguments(operands, "einsum")
    num_axes = [np.ndim(x) for x in given]
    if num_axes != [len(names) for names in letters]:
        raise ArgumentError(f"einsum: {subscripts!r} does not fit arrays of {num_axes} axes.")
    if len(set(into)) < len(into) or not set(into) <= set(every):
        raise ArgumentError(f"einsum: {subscripts!r} must name each axis of the result once.")

    def local(*parts: Any) -> Any:
        options.setdefault("optimize", True)
        return np.einsum(f"{source}->{''.join(into)}", *parts, **options)

    return contract(local, given, letters, into, "einsum")


_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

"""The planner of ``hpcpar selftest``: from (seed, number, ranks) to a case. Pure functions.

Every rank draws the same plan by itself; nothing is sent to agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from .._core import reducible
from ..comm.reductions import OPS
from ..comm.sizes import uneven
from ..random import Key, bits
from .selftest_case import BLOCK, VERBS, Case
from .selftest_layout import layouts_for

__all__ = ["DTYPES", "draw", "subgroup_of"]

#: The dtypes of the house's table.
DTYPES: tuple[np.dtype[Any], ...] = (
    np.dtype(bool),
    *(np.dtype(f"{sign}int{width}") for sign in ("", "u") for width in (8, 16, 32, 64)),
    np.dtype(np.float16),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(np.float32),
    np.dtype(np.float64),
    np.dtype(np.complex64),
    np.dtype(np.complex128),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
)
_ALL_OPS = (*OPS, "premul_sum")
_FACTORS = (0.5, 2.0, -1.0, 0.25)
# all_reduce is what programs call most; its many paths get a larger share.
_DECK = (*VERBS, "all_reduce", "all_reduce")
_SMALL_NBYTES = 4096
#: A call has been compared 16 times when it may take the hot path.
_HOT_CALLS = 20
_FEWEST_BIG = 1 << 20
_WORDS = 128

_T = TypeVar("_T")


class _Dice:
    """Draws from one key, word after word."""

    def __init__(self, key: Key) -> None:
        self._key, self._drawn = key, 0
        self._words: list[int] = []

    def below(self, limit: int) -> int:
        """Return a number in ``0..limit-1``."""
        if not self._words:
            self._words = bits(self._key, _WORDS, start=self._drawn).tolist()
            self._drawn += _WORDS
        return self._words.pop() * limit >> 32

    def chance(self, percent: float) -> bool:
        """Return True in `percent` of all draws."""
        return self.below(1000) < 10 * percent

    def pick(self, among: Sequence[_T]) -> _T:
        """Return one of them."""
        return among[self.below(len(among))]

    def shuffled(self, among: Sequence[_T]) -> list[_T]:
        """Return them in another order."""
        left = list(among)
        return [left.pop(self.below(len(left))) for _ in among]


def draw(seed: int, number: int, size: int) -> Case:
    """Return case `number` of a world of `size` ranks. Local, pure.

    Examples
    --------
    >>> draw(1, 5, 4) == draw(1, 5, 4)
    True
    """
    dice = _Dice(_key(seed, size).child(number))
    world = tuple(range(size))
    members = subgroup_of(seed, number // BLOCK, size) if dice.chance(30) else world
    verb = dice.pick(_DECK)
    case = Case(seed, number, size, members, verb, np.dtype(np.uint8))
    ranks = len(members)
    if verb == "barrier":
        case = replace(case, table=((0,),) * ranks, shape=(0,))
    else:
        case = _with_op(dice, case)
        case = _with_peers(dice, case)
        case = _with_shape(dice, case)
    case = _with_calls(dice, case)
    case = replace(case, delays=_delays(dice, ranks))
    return replace(case, symmetric=_symmetric(dice, ranks))


def subgroup_of(seed: int, block: int, size: int) -> tuple[int, ...]:
    """Return the ranks, in their order, of the sub-group of a block of cases. Local, pure."""
    dice = _Dice(_key(seed, size).child("block").child(block))
    return tuple(dice.shuffled(range(size))[: 1 + dice.below(size)])


def _key(seed: int, size: int) -> Key:
    return Key(seed).child("selftest").child(size)


@cache
def _dtypes_of(op: str) -> tuple[np.dtype[Any], ...]:
    return tuple(dtype for dtype in DTYPES if reducible(dtype, op))


def _with_op(dice: _Dice, case: Case) -> Case:
    if not case.kind.reduces:
        return replace(case, dtype=dice.pick(DTYPES))
    op = dice.pick(_ALL_OPS)
    if op == "mean" and case.verb == "scan":  # has no meaning
        op = "sum"
    case = replace(case, op=op, dtype=dice.pick(_dtypes_of(op)), data="whole")
    if op == "premul_sum":
        return replace(case, factor=dice.pick(_FACTORS))
    if op == "mean" and case.verb == "all_reduce" and dice.chance(30):
        weights = [dice.below(4) for _ in case.members]
        weights[dice.below(len(weights))] = 1  # they may not all be 0
        return replace(case, weights=tuple(weights))
    rough = op in ("sum", "mean") and case.dtype in _dtypes_of("mean") and case.dtype.kind != "c"
    return replace(case, data="rough") if rough and dice.chance(20) else case


def _with_peers(dice: _Dice, case: Case) -> Case:
    ranks = len(case.members)
    if case.kind.rooted:
        return replace(case, root=dice.below(ranks))
    if case.verb == "scan":
        return replace(case, exclusive=dice.chance(50))
    if case.verb == "sendrecv":
        shift = dice.below(ranks)
        return replace(case, pairs=tuple((r, (r + shift) % ranks) for r in range(ranks)))
    if case.verb == "permute":
        targets = dice.shuffled(range(ranks))
        pairs = [(source, target) for source, target in enumerate(targets) if dice.chance(80)]
        return replace(case, pairs=tuple(dice.shuffled(pairs)))
    return case


def _with_shape(dice: _Dice, case: Case) -> Case:
    """Draw the shapes, the lengths of all parts, and where arrays lie."""
    count = _count(dice, case.dtype.itemsize, len(case.members))
    sizes = dice.pick(case.kind.promises)
    others = [1 + dice.below(4) for _ in range(dice.pick((0, 0, 0, 1, 1, 2)))]
    axis = dice.below(len(others) + 1)
    shape = (*others[:axis], 0, *others[axis:])
    if count == 1 and not (case.kind.cuts or case.kind.joins) and dice.chance(40):
        shape, others, axis = (), [], 0
    table = _table(dice, case, sizes, count // math.prod(others))
    if not shape:
        table = ((1,),) * len(case.members)
    place = dice.pick(case.kind.places)
    case = replace(case, shape=shape, axis=axis, sizes=sizes, table=table, place=place)
    if place == "in" and not _fits_in_place(case):
        case = replace(case, place="out")
    return _with_layouts(dice, case)


def _count(dice: _Dice, itemsize: int, ranks: int) -> int:
    """Draw the elements of what a rank passes: few as a rule, and those around borders."""
    drawn = dice.below(1000)
    if drawn < 60:
        return 0
    if drawn < 130:
        return 1
    if drawn < 480:
        return 2 + dice.below(62)
    if drawn < 730:
        return int(2 ** (1 + dice.below(12))) + dice.below(3) - 1
    if drawn >= 995:
        return (_FEWEST_BIG * (1 + dice.below(4)) // itemsize + dice.below(9)) // ranks
    border = 1024 if drawn < 900 else 65536 if drawn < 975 else 262144
    parts = ranks if dice.chance(50) else 1
    return max(1, border // itemsize // parts + dice.below(5) - 2)


def _table(dice: _Dice, case: Case, sizes: str, length: int) -> tuple[tuple[int, ...], ...]:
    ranks = len(case.members)
    if case.verb == "all_to_all":
        return tuple(_row(dice, sizes, _around(dice, length), ranks, length) for _ in range(ranks))
    if case.kind.cuts:
        return (_row(dice, sizes, length, ranks, length),) * ranks
    if sizes in ("found", "told"):
        return tuple((_around(dice, length),) for _ in range(ranks))
    return ((length,),) * ranks


def _around(dice: _Dice, length: int) -> int:
    return dice.pick((length, dice.below(length + 1), dice.below(2 * length + 1)))


def _row(dice: _Dice, sizes: str, mine: int, ranks: int, common: int) -> tuple[int, ...]:
    """Return the parts of one rank: by the uneven rule, all alike, or as it likes."""
    if sizes == "rule":
        return uneven(mine, ranks)
    if sizes == "equal":
        return (common // ranks,) * ranks
    borders = [0, *sorted(dice.below(mine + 1) for _ in range(ranks - 1)), mine]
    return tuple(borders[i + 1] - borders[i] for i in range(ranks))


def _fits_in_place(case: Case) -> bool:
    """Whether what every rank gets has the shape of what it passes."""
    if case.verb == "all_to_all":
        return case.sizes == "equal"
    if case.verb == "sendrecv":
        return all(case.table[source] == case.table[target] for source, target in case.pairs)
    return True


def _with_layouts(dice: _Dice, case: Case) -> Case:
    allowed = layouts_for(case.dtype, len(case.shape))
    writable = [name for name in allowed if name != "read-only"]
    given = writable if case.place == "in" else allowed
    return replace(
        case,
        layouts=tuple(_layout(dice, given) for _ in case.members),
        out_layouts=tuple(_layout(dice, writable) for _ in case.members),
    )


def _layout(dice: _Dice, allowed: Sequence[str]) -> str:
    return "C" if dice.chance(40) else dice.pick(allowed)


def _with_calls(dice: _Dice, case: Case) -> Case:
    """Draw how often it is called, and whether asynchronously."""
    ranks = len(case.members)
    longest = max(math.prod(case.shape_of(m)) for m in range(ranks))
    small = longest * case.dtype.itemsize <= _SMALL_NBYTES
    if small and dice.chance(4) and case.verb != "barrier":
        place = case.place if case.place != "new" else "out"
        plain = ("C",) * ranks
        return replace(case, calls=_HOT_CALLS, place=place, layouts=plain, out_layouts=plain)
    calls = 2 + dice.below(3) if small and dice.chance(10) else 1
    return replace(case, calls=calls, async_op=dice.chance(15))


def _symmetric(dice: _Dice, ranks: int) -> tuple[bool, ...]:
    """Draw whose arrays are symmetric: as a rule nobody's, else all, seldom only some."""
    if not dice.chance(30):
        return ()
    return tuple([dice.chance(50) for _ in range(ranks)] if dice.chance(20) else [True] * ranks)


def _delays(dice: _Dice, ranks: int) -> tuple[float, ...]:
    """Draw what each rank waits: as a rule nothing, else 2 microseconds to 2 milliseconds."""
    if not dice.chance(30):
        return (0.0,) * ranks
    return tuple(2e-6 * 2 ** dice.below(11) if dice.chance(50) else 0.0 for _ in range(ranks))

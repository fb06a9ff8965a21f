"""What one line of the table runs: a verb, its arrays, and the values that must come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .._arrays import Array
from ..random import Key, bits

__all__ = [
    "MODES",
    "UFUNCS",
    "VERBS",
    "Case",
    "Mode",
    "Verb",
    "expected",
    "operand",
    "result_count",
]

Mode = Literal["out", "in", "shared"]
#: "out": out of place, "in": in place, "shared": so in one symmetric array for all ranks.
MODES: tuple[Mode, ...] = ("out", "in", "shared")
_OWN = MODES[:2]


@dataclass(frozen=True, slots=True)
class Verb:
    """Shapes and kinds of a verb.

    Attributes
    ----------
    joined_in, joined_out : bool
        Whether a rank passes, or gets, one part for each rank; else one part.
    reduces, rooted : bool
        Whether `op`, or `root`, matters.
    modes : tuple of {"out", "in", "shared"}
        In place means ``out=x``, and where the verb joins, that `x` is the rank's part of `out`.
    """

    joined_in: bool = False
    joined_out: bool = False
    reduces: bool = False
    rooted: bool = False
    modes: tuple[Mode, ...] = ("out",)


#: The verbs that the benchmark knows.
VERBS = {
    "all_reduce": Verb(reduces=True, modes=_OWN),
    "reduce_scatter": Verb(joined_in=True, reduces=True),
    "all_gather": Verb(joined_out=True, modes=MODES),
    "all_to_all": Verb(joined_in=True, joined_out=True),
    "broadcast": Verb(rooted=True, modes=("in",)),
    "reduce": Verb(reduces=True, rooted=True, modes=_OWN),
    "gather": Verb(joined_out=True, rooted=True),
    "scatter": Verb(joined_in=True, rooted=True),
    "scan": Verb(reduces=True, modes=_OWN),
    "sendrecv": Verb(),
    "send": Verb(),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One verb on arrays of one size.

    Attributes
    ----------
    verb : str
        A key of `VERBS`.
    ranks : int
        Size of the group.
    count : int
        Elements of one part: of a rank's array, or of what one rank contributes to or gets of the
        whole where the verb joins or cuts.
    dtype : dtype
    op : str
        "" for verbs that do not reduce.
    root : int
        -1 for verbs without.
    mode : {"out", "in", "shared"}
    """

    verb: str
    ranks: int
    count: int
    dtype: np.dtype[Any]
    op: str = ""
    root: int = -1
    mode: Mode = "out"

    @classmethod
    def of_bytes(
        cls,
        verb: str,
        ranks: int,
        nbytes: int,
        dtype: np.dtype[Any],
        op: str,
        root: int,
        mode: Mode,
    ) -> Case:
        """Return the largest case of at most `nbytes`, but of at least one element. Local.

        `op` and `root` are dropped where the verb has none.
        """
        kind = VERBS[verb]
        parts = ranks if kind.joined_in or kind.joined_out else 1
        count = max(1, nbytes // dtype.itemsize // parts)
        op, root = op if kind.reduces else "", root if kind.rooted else -1
        return cls(verb, ranks, count, dtype, op, root, mode)

    @property
    def kind(self) -> Verb:
        """What all cases of the verb share."""
        return VERBS[self.verb]

    @property
    def in_place(self) -> bool:
        """Whether the result goes where the operand is."""
        return self.mode != "out"

    @property
    def nbytes(self) -> int:
        """S of the bandwidth formulas."""
        parts = self.ranks if self.kind.joined_in or self.kind.joined_out else 1
        return parts * self.count * self.dtype.itemsize


def operand(case: Case, rank: int) -> Array:
    """Return what `rank` passes: small whole numbers of its own. Local, pure.

    Sums and products of them are exact in every accumulator, so results are compared with ``==``.
    Shape ``(count,)``, or ``(ranks * count,)`` where the verb cuts.
    """
    length = case.count * (case.ranks if case.kind.joined_in else 1)
    drawn = bits(Key(1, rank), length)
    if case.op == "prod":
        drawn = 1 + (drawn & 1)
    else:
        drawn &= 1 if case.dtype.itemsize == 1 else 7
    return drawn.astype(case.dtype)


def result_count(case: Case) -> int:
    """Return the elements of what a rank gets. Local, pure."""
    return case.count * (case.ranks if case.kind.joined_out else 1)


def expected(case: Case, rank: int) -> Array | None:
    """Return what `rank` must get; None where it gets nothing. Local, pure."""
    if case.verb in ("reduce", "gather") and rank != case.root:
        return None
    own = slice(rank * case.count, (rank + 1) * case.count)
    if case.kind.reduces:
        upto = rank + 1 if case.verb == "scan" else case.ranks
        whole = _reduced(case, upto)
        return whole[own] if case.verb == "reduce_scatter" else whole
    if case.verb in ("broadcast", "scatter"):
        whole = operand(case, case.root)
        return whole[own] if case.verb == "scatter" else whole
    if case.verb in ("send", "sendrecv"):
        return operand(case, (rank - 1) % case.ranks)
    parts = _operands(case, case.ranks)
    return np.concatenate([part[own] if case.kind.joined_in else part for part in parts])


def _operands(case: Case, upto: int) -> Iterator[Array]:
    return (operand(case, rank) for rank in range(upto))


#: NumPy's function for an op; a mean is divided afterwards.
UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def _reduced(case: Case, upto: int) -> Array:
    # The accumulator of types below 32 bits is float32, as the verbs promise.
    short = case.dtype.itemsize < 4 and case.dtype.kind not in "biu"
    wide = np.dtype(np.float32) if short else case.dtype
    total: Array | None = None
    for part in _operands(case, upto):
        part = part.astype(wide)
        total = part if total is None else UFUNCS[case.op](total, part, out=total)
    assert total is not None
    if case.op == "mean":
        total /= wide.type(upto)
    with np.errstate(over="ignore"):
        return total.astype(case.dtype)

"""What ``hpcpar selftest`` says: counts of what was run, and the report of a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .selftest_case import BLOCK, VERBS, Case
from .table import Table

__all__ = ["Failure", "Tally", "tables"]


@dataclass
class Tally:
    """What a world has run.

    Attributes
    ----------
    ranks : int
    backend : str
    cases, calls : int
        `calls` counts what rank 0 took part in.
    seconds : float
    verbs, dtypes : Counter
        Cases by name.
    """

    ranks: int
    backend: str
    cases: int = 0
    calls: int = 0
    seconds: float = 0.0
    verbs: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)

    def count(self, case: Case) -> None:
        """Count a case."""
        self.cases += 1
        self.verbs[case.verb] += 1
        if case.verb != "barrier":
            self.dtypes[case.dtype.name] += 1

    @property
    def rate(self) -> float:
        """Cases per second."""
        return self.cases / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "verbs": dict(self.verbs), "dtypes": dict(self.dtypes)}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Tally:
        """Return what `to_dict` told."""
        counted = {name: Counter(told[name]) for name in ("verbs", "dtypes")}
        return cls(**{**told, **counted})


@dataclass(frozen=True)
class Failure:
    """One case that went wrong, as one rank saw it.

    Attributes
    ----------
    seed, case, ranks, rank : int
        `rank` in the world of `ranks`; -1 where it is not known.
    problem : str
    parameters : dict of str to str
        The case, but for what it leaves at its default.
    index : tuple of int or None
        Of the first element that differs.
    got, want : str
    consequence : bool
        Whether another rank's failure led to this one.
    words : tuple of str
        Further words of the command that repeats it.
    """

    seed: int
    case: int
    ranks: int
    rank: int
    problem: str
    parameters: dict[str, str]
    index: tuple[int, ...] | None = None
    got: str = ""
    want: str = ""
    consequence: bool = False
    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, case: Case, rank: int, problem: str, **more: Any) -> Failure:
        """Return the failure of `case` on `rank` of its world."""
        return cls(case.seed, case.number, case.size, rank, problem, case.describe(), **more)

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Failure:
        """Return what ``dataclasses.asdict`` told, by way of JSON."""
        index = None if told["index"] is None else tuple(told["index"])
        return cls(**{**told, "index": index, "words": tuple(told["words"])})

    def repeat(self, first: int | None = None) -> str:
        """Return the command that repeats the case, or all cases from `first` to it."""
        first = self.case if first is None else first
        told = f"--seed {self.seed} --first {first} --cases {self.case - first + 1}"
        return " ".join(["hpcpar selftest", told, f"-n {self.ranks}", *self.words])

    def text(self) -> str:
        """Return the report, a few lines."""
        where = f"rank {self.rank} of {self.ranks}" if self.rank >= 0 else f"{self.ranks} ranks"
        lines = [f"case {self.case} with seed {self.seed} failed on {where}: {self.problem}"]
        if self.index is not None:
            lines.append(f"  at {self.index}: got {self.got}, expected {self.want}")
        width = max(len(name) for name in self.parameters)
        lines += [f"  {name:{width}}  {value}" for name, value in self.parameters.items()]
        lines.append(f"Repeat it: {self.repeat()}")
        block = self.case // BLOCK * BLOCK
        if block < self.case:
            lines.append(f"With those before it: {self.repeat(block)}")
        return "\n".join(lines)


def tables(tallies: Sequence[Tally]) -> list[Table]:
    """Return cases by verb, by dtype, and the times, a column for each world. Local, pure."""
    worlds = [f"{tally.ranks} ranks" for tally in tallies]
    found = []
    for title, names, counts in (
        ("cases by verb", list(VERBS), [tally.verbs for tally in tallies]),
        ("cases by dtype", _dtypes(tallies), [tally.dtypes for tally in tallies]),
    ):
        rows = [[name, *(str(c[name]) for c in counts), str(_sum(counts, name))] for name in names]
        found.append(Table(title, ["", *worlds, "all"], rows))
    rows = [
        ["cases", *(str(tally.cases) for tally in tallies)],
        ["calls of rank 0", *(str(tally.calls) for tally in tallies)],
        ["seconds", *(f"{tally.seconds:.1f}" for tally in tallies)],
        ["cases/s", *(f"{tally.rate:.0f}" for tally in tallies)],
        ["backend", *(tally.backend for tally in tallies)],
    ]
    return [*found, Table("in all", ["", *worlds], rows)]


def _dtypes(tallies: Sequence[Tally]) -> list[str]:
    return sorted({name for tally in tallies for name in tally.dtypes})


def _sum(counts: Sequence[Counter[str]], name: str) -> int:
    return sum(count[name] for count in counts)

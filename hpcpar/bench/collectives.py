"""``hpcpar bench collectives``: our verbs beside their peers, checked, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..comm.reductions import check_dtype, parse
from ..errors import ArgumentError
from .buffers import TARGET, can_share, placed, placed_shared, placed_symmetric
from .cases import MODES, VERBS, Case, Mode, expected, operand, result_count
from .contestants import Contestant, Ours, check_peers, copy_call, open_peers
from .environment import environment
from .formulas import algbw, busbw
from .timing import ROUND_SECONDS, Times, compare, time_all

__all__ = ["Options", "run"]

Row = dict[str, Any]
_OPS = ("sum", "mean", "prod", "min", "max", "band", "bor", "bxor")


@dataclass(frozen=True)
class Options:
    """What to measure; equal on all ranks.

    Attributes
    ----------
    verbs : tuple of str
        Keys of `hpcpar.bench.cases.VERBS`.
    sizes : tuple of int
        Bytes, S of the bandwidth formulas.
    dtype, op : str
        Of the elements and of the reducing verbs.
    root : int
        Of the verbs that have one.
    modes : tuple of {"out", "in", "shared"}
        Out of place, in place, in place in one array for all ranks (where `symmetric`).
    rounds : int
        Turns of each contestant.
    warmup : int
        Calls before the clock runs.
    peers : tuple of str
        ``("auto",)``, ``("none",)`` or names of peers.
    seconds : float
        Length of a turn.
    symmetric : bool
        Whether our verbs get symmetric arrays; the peers never do.

    Raises
    ------
    ArgumentError
        An unknown verb, op, dtype or peer; a number out of range.
    UnsupportedError
        `op` has no meaning for `dtype`.
    """

    verbs: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = (4,)
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    modes: tuple[Mode, ...] = MODES
    rounds: int = 9
    warmup: int = 5
    peers: tuple[str, ...] = ("auto",)
    seconds: float = ROUND_SECONDS
    symmetric: bool = False

    def __post_init__(self) -> None:
        for verb in self.verbs:
            if verb not in VERBS:
                raise ArgumentError(f"verbs {verb!r}: known are {', '.join(VERBS)}.")
        if self.op not in _OPS:
            raise ArgumentError(f"op {self.op!r}: known are {', '.join(_OPS)}.")
        for name, value, least in (
            ("rounds", self.rounds, 1),
            ("warmup", self.warmup, 1),
            ("root", self.root, 0),
        ):
            if value < least:
                raise ArgumentError(f"{name} {value}: it is at least {least}.")
        check_peers(self.peers)
        element = self.element()
        if any(VERBS[verb].reduces for verb in self.verbs):
            check_dtype(element, parse(self.op, "op"), "dtype")
        if "scan" in self.verbs and self.op == "mean":
            raise ArgumentError("op 'mean': has no meaning for scan. Leave scan out of --verbs.")

    def element(self) -> np.dtype[Any]:
        """Return the dtype; importing ml_dtypes makes its names known to NumPy."""
        import ml_dtypes  # noqa: F401

        try:
            found: np.dtype[Any] = np.dtype(self.dtype)
        except TypeError:
            found = np.dtype(object)
        if found.hasobject or found.kind in "SUMm" or not found.isnative:
            raise ArgumentError(f"dtype {self.dtype!r}: write float32, bfloat16, int64 or alike.")
        return found

    def cases(self, ranks: int) -> list[Case]:
        """Return what is run on `ranks` ranks, in order."""
        made = [
            Case.of_bytes(verb, ranks, nbytes, self.element(), self.op, self.root, mode)
            for verb in self.verbs
            for nbytes in self.sizes
            for mode in VERBS[verb].modes
            if mode in self.modes and (self.symmetric or mode != "shared")
        ]
        return list(dict.fromkeys(made))  # small sizes may come to the same case


def run(group: Group, options: Options, progress: Callable[[str], None] | None = None) -> Row:
    """Measure and check. Collective over `group`.

    Parameters
    ----------
    group : Group
    options : Options
        The same on all ranks.
    progress : callable, optional
        Gets a line before each case.

    Returns
    -------
    dict
        bench, schema, environment, options, results; times are in microseconds, bandwidths in
        GB/s. The same on every rank.

    Raises
    ------
    ArgumentError
        The root is no rank of the group; no case is left.
    BackendUnavailable
        A peer's library is not there.
    """
    cases = options.cases(group.size)
    if options.symmetric and not can_share(group):
        cases = [case for case in cases if case.mode != "shared"]
    if options.root >= group.size:
        raise ArgumentError(f"root {options.root}: ranks are 0 to {group.size - 1}.")
    if not cases:
        raise ArgumentError(f"verbs {','.join(options.verbs)}: none of them works in this mode.")
    where = environment() | {"ranks": group.size, "backend": group.backend}
    peers = open_peers(group, options.peers)
    results = []
    try:
        for number, case in enumerate(cases, 1):
            if progress is not None:
                place = "in place" if case.in_place else "out of place"
                progress(f"{number}/{len(cases)} {case.verb} {case.nbytes} bytes {place}")
            results.append(_Bench(group, case, peers, options.symmetric).measure(options))
    finally:
        for peer in peers:
            peer.close()
    return {
        "bench": "collectives",
        "schema": 1,
        "environment": where,
        "options": asdict(options) | {"check": group.settings.check},
        "results": results,
    }


class _Bench:
    """One case: the arrays of the contestants, and what must come out."""

    def __init__(
        self, group: Group, case: Case, peers: Sequence[Contestant], symmetric: bool
    ) -> None:
        self.group, self.case = group, case
        self.given = operand(case, group.rank)
        self.want = expected(case, group.rank)
        plain = self._arrays(lambda count, start: placed(count, case.dtype, start))
        # Peers keep plain memory: they know nothing of the other, and it has small pages.
        new = self._shared if case.mode == "shared" else self._symmetric
        ours = self._arrays(new) if symmetric else plain
        self.arrays = {"hpcpar": ours} | {peer.name: plain for peer in peers}
        bound = {who.name: who.bind(case, *self.arrays[who.name]) for who in (Ours(group), *peers)}
        self.calls = {name: call for name, call in bound.items() if call is not None}

    def _arrays(self, new: Callable[[int, int], Array]) -> tuple[Array | None, Array | None]:
        """Return the operand and the result; None where the verb wants none on this rank."""
        case = self.case
        # Made on all ranks, also where nobody needs them: symmetric ones are made together.
        if case.in_place:
            x = out = new(result_count(case), 0)
            if case.kind.joined_out:
                x = np.split(out, case.ranks)[self.group.rank]
        else:
            x, out = new(self.given.size, 0), new(result_count(case), TARGET)
        sends = case.verb != "scatter" or self.group.rank == case.root
        return x if sends else None, out if self.want is not None else None

    def _symmetric(self, count: int, start: int) -> Array:
        return placed_symmetric(count, self.case.dtype, self.group, start)

    def _shared(self, count: int, start: int) -> Array:
        return placed_shared(count, self.case.dtype, self.group)

    def measure(self, options: Options) -> Row:
        """Check, time, check again. Collective."""
        wrong = np.array([self._wrong(name) for name in self.calls])
        for x, _ in self.arrays.values():
            if self.case.in_place and x is not None:
                x[...] = 0  # repeated sums in place stay finite
        times = time_all(
            self.group,
            {**self.calls, "copyto": copy_call(self.case.nbytes)},
            barrier=self.group.barrier,
            rounds=options.rounds,
            warmup=options.warmup,
            seconds=options.seconds,
        )
        wrong += [self._wrong(name) for name in self.calls]
        total = self.group.all_reduce(wrong).tolist()
        return self._row(times, dict(zip(self.calls, total, strict=True)))

    def _wrong(self, name: str) -> int:
        """Run once on fresh data and count the elements that are not as expected."""
        x, out = self.arrays[name]
        if out is not None:
            out.view(np.uint8)[...] = 0x5A
        self.group.barrier()  # a result may be shared
        if x is not None:
            x[...] = self._fresh()
        self.calls[name]()
        wrong = 0 if self.want is None else int(np.count_nonzero(out != self.want))
        self.group.barrier()
        return wrong

    def _fresh(self) -> Array:
        """Return what I pass; who only receives in place begins with something else."""
        receives = self.case.verb == "broadcast" and self.group.rank != self.case.root
        return self.given * 0 if receives else self.given

    def _row(self, times: dict[str, Times], wrong: dict[str, int]) -> Row:
        case = self.case
        row: Row = {
            "verb": case.verb,
            "mode": case.mode,
            "nbytes": case.nbytes,
            "count": case.count,
            "dtype": case.dtype.name,
            "op": case.op or None,
            "root": case.root if case.root >= 0 else None,
            "contestants": {},
        }
        for name, measured in times.items():
            row["contestants"][name] = dict(self._figures(name, times["hpcpar"], measured))
            if name in wrong:
                row["contestants"][name]["wrong"] = wrong[name]
        return row

    def _figures(self, name: str, ours: Times, measured: Times) -> Iterator[tuple[str, float]]:
        case = self.case
        yield "calls", measured.calls
        yield "min_us", measured.best * 1e6
        yield "median_us", measured.median * 1e6
        yield "p99_us", measured.p99 * 1e6
        yield "algbw", algbw(case.nbytes, measured.median)
        if name != "copyto":
            yield "busbw", busbw(case.verb, case.ranks, case.nbytes, measured.median)
        if name != "hpcpar":
            ratio, behind = compare(ours, measured)
            yield "ratio", ratio
            yield "ours_minus_this_us", behind * 1e6

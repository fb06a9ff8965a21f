"""``hpcpar selftest`` on one rank: run the cases, compare with NumPy, stop at what differs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from .._arrays import Array, as_bytes, contiguous
from ..comm.group import Group
from ..comm.reductions import premul_sum
from ..comm.symmetric import zeros_for_all
from ..errors import ArgumentError, GroupFailed, RankFailed
from .selftest_case import BLOCK, Case
from .selftest_draw import draw, subgroup_of
from .selftest_layout import Arena, Laid, lay
from .selftest_report import Failure, Tally
from .selftest_values import differing, expected, operands

__all__ = ["TIMEOUT", "CaseFailed", "Options", "run"]

#: Deadline of each call in seconds: a hang is a failure like any other.
TIMEOUT = 60.0
# Below this sleep() is too coarse, and the delay is spun.
_SPUN_SECONDS = 2e-4
_ARENA_NBYTES = 16 << 20


@dataclass(frozen=True)
class Options:
    """Which cases; equal on all ranks.

    Attributes
    ----------
    seed : int
    first : int
        Number of the first case.
    cases : int or None
        How many; None = until the time is over.
    seconds : float or None
        How long; None = until the cases are done.

    Raises
    ------
    ArgumentError
        A number is out of range.
    """

    seed: int = 0
    first: int = 0
    cases: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:
            raise ArgumentError(f"--seed {self.seed}: it is at least 0 and below 2**64.")
        if self.first < 0:
            raise ArgumentError(f"--first {self.first}: it is at least 0.")
        if self.cases is not None and self.cases < 1:
            raise ArgumentError(f"--cases {self.cases}: it is at least 1.")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ArgumentError(f"--minutes {self.seconds / 60:g}: it is above 0.")

    def blocks(self) -> Iterator[range]:
        """Yield the numbers of the cases, block by block; without end where there is none."""
        at, end = self.first, None if self.cases is None else self.first + self.cases
        while end is None or at < end:
            stop = at // BLOCK * BLOCK + BLOCK
            stop = stop if end is None else min(stop, end)
            yield range(at, stop)
            at = stop


class CaseFailed(Exception):  # noqa: N818 - the result of a test, no error of the library
    """A case gave something else than NumPy, or an error.

    Attributes
    ----------
    failure : Failure
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text())
        self.failure = failure


def run(
    group: Group,
    options: Options,
    *,
    at: Array | None = None,
    say: Callable[[int], None] | None = None,
) -> Tally:
    """Run cases until the options end them. Collective over `group`, a world.

    Parameters
    ----------
    group : Group
    options : Options
        The same on all ranks.
    at : ndarray of int64, optional
        Shape (size,): each rank keeps the number of its case there, for who looks from outside.
    say : callable, optional
        Gets the number of finished cases after each block.

    Returns
    -------
    Tally
        What was run.

    Raises
    ------
    CaseFailed
        On the ranks that see it first; the others may see its consequences.
    """
    runner = _Runner(group, options, at)
    begin = time.perf_counter()
    runner.one_host = group.node.size == group.size
    for numbers in options.blocks():
        passed = time.perf_counter() - begin
        over = options.seconds is not None and passed >= options.seconds
        if runner.block(numbers, over):
            break
        if say is not None:
            say(runner.tally.cases)
    runner.tally.seconds = time.perf_counter() - begin
    return runner.tally


class _Runner:
    """Runs blocks of cases on one rank."""

    def __init__(self, world: Group, options: Options, at: Array | None) -> None:
        self.world, self.options, self.at = world, options, at
        self.tally = Tally(world.size, world.backend)
        self.one_host = True
        self.arena = Arena(zeros_for_all(_ARENA_NBYTES, world))
        self._seen: dict[int, tuple[Case, tuple[int, int]]] = {}

    def block(self, numbers: range, over: bool) -> bool:
        """Run a block, then meet; return whether rank 0's time was over before it."""
        self._seen.clear()
        seed, size = self.options.seed, self.world.size
        members = subgroup_of(seed, numbers[0] // BLOCK, size)
        part = self._guarded(None, lambda: self.world.subgroup(members))
        for number in numbers:
            case = draw(seed, number, size)
            self._case(case, self.world if case.members == self.world.ranks else part)
        self._guarded(None, part.close)
        return self._meet(numbers, over)

    def _case(self, case: Case, group: Group) -> None:
        if self.at is not None:
            self.at[self.world.rank] = case.number
        seen = (0, 0)
        if group.rank >= 0:
            seen = self._guarded(case, lambda: self._run(group, case))
            self.tally.calls += case.calls
        self._seen[case.number] = (case, seen)
        self.tally.count(case)

    def _run(self, group: Group, case: Case) -> tuple[int, int]:
        self.arena.clear()
        mine = case.symmetric and case.symmetric[group.rank]
        return _run_case(group, case, self.world.rank, self.arena if mine else None)

    def _guarded(self, case: Case | None, do: Callable[[], Any]) -> Any:
        """Call; an error of the library is a failure of the case."""
        try:
            return do()
        except CaseFailed:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise CaseFailed(
                self._failure(case, text, consequence=isinstance(error, GroupFailed | RankFailed))
            ) from error

    def _failure(self, case: Case | None, problem: str, consequence: bool = False) -> Failure:
        if case is None:
            last = max(self._seen, default=self.options.first)
            case = draw(self.options.seed, last, self.world.size)
            problem = f"between the cases, after this one: {problem}"
        return Failure.of(case, self.world.rank, problem, consequence=consequence)

    def _meet(self, numbers: range, over: bool) -> bool:
        """Compare what only all ranks together can see; rank 0 says whether to go on."""
        mine = np.zeros((1, 1 + 2 * BLOCK), np.int64)
        mine[0, 0] = over
        for i, number in enumerate(numbers):
            mine[0, 1 + 2 * i : 3 + 2 * i] = self._seen[number][1]
        rows = self._guarded(
            None, lambda: self.world.all_gather(mine, sizes=(1,) * self.world.size)
        )
        for i, number in enumerate(numbers):
            self._judge(self._seen[number][0], rows[:, 1 + 2 * i : 3 + 2 * i])
        return bool(rows[0, 0])

    def _judge(self, case: Case, seen: Array) -> None:
        of_members = seen[list(case.members)]
        first, second = of_members[:, 0], of_members[:, 1]
        if case.verb == "barrier":
            early = np.flatnonzero(second < first.max())
            if self.one_host and early.size:
                problem = f"rank {case.members[early[0]]} left before the last rank had come"
                raise CaseFailed(self._failure(case, problem))
        elif case.kind.alike and (first != first[0]).any():
            other = case.members[int(np.argmax(first != first[0]))]
            problem = f"the results of ranks {case.members[0]} and {other} are not the same bits"
            raise CaseFailed(self._failure(case, problem))


def _run_case(group: Group, case: Case, rank: int, arena: Arena | None) -> tuple[int, int]:
    """Run a case as a member; return a digest of the results, or the times of a barrier."""
    trials = [_Trial(group, case, rank, call, arena) for call in range(case.calls)]
    _pause(case.delays[group.rank])
    came = time.monotonic_ns()
    if case.async_op:
        works = [trial.call(async_op=True) for trial in trials]
        results = [work.wait() for work in works]
    else:
        results = [trial.call() for trial in trials]
    left = time.monotonic_ns()
    digest = 0
    for trial, result in zip(trials, results, strict=True):
        digest = trial.check(result, digest)
    return (came, left) if case.verb == "barrier" else (digest, 0)


def _pause(seconds: float) -> None:
    if seconds >= _SPUN_SECONDS:
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    while seconds and time.perf_counter() < end:
        pass


class _Trial:
    """One call of a case on one rank: its arrays, and what must come out."""

    def __init__(
        self, group: Group, case: Case, rank: int, number: int, arena: Arena | None
    ) -> None:
        self.group, self.case, self.rank, self.number = group, case, rank, number
        self.arena = arena
        self.x: Laid | None = None
        self.out: Laid | None = None
        self.want: Array | None = None
        if case.verb != "barrier":
            self._prepare()

    def _prepare(self) -> None:
        case, me = self.case, self.group.rank
        self.given = operands(case, self.number)
        self.want = expected(case, me, self.given)
        sends = case.verb not in ("scatter", "broadcast") or me == case.root
        if sends or case.place == "in":
            self.x = self._laid(me)
            self.kept = self.x.base.copy()
        if case.place == "in":
            self.out = self.x
        elif case.place == "out" and self.want is not None:
            self.out = lay(self.want.shape, case.dtype, case.out_layouts[me], self.arena)

    def _laid(self, me: int) -> Laid:
        case = self.case
        made = lay(case.shape_of(me), case.dtype, case.layouts[me], self.arena)
        if case.verb != "broadcast" or me == case.root:  # the others' comes out of the call
            made.view[...] = self.given[me]
        made.view.flags.writeable = case.layouts[me] != "read-only"
        return made

    def call(self, **how: Any) -> Any:
        """Call the verb."""
        case = self.case
        if self.out is not None:
            how["out"] = self.out.view
        x = None if self.x is None else self.x.view
        return _CALLS[case.verb](self.group, case, x, how)

    def check(self, result: Any, digest: int) -> int:
        """Compare everything with what must be; return the digest with this result's bits."""
        if self.want is None:
            if result is not None:
                self._fail(f"got {type(result).__name__}, must get None")
        else:
            digest = self._check_values(result, digest)
        self._check_memory()
        return digest

    def _check_values(self, result: Any, digest: int) -> int:
        want, case = self.want, self.case
        assert want is not None
        if self.out is not None and result is not self.out.view:
            self._fail("the result is not out")
        if not isinstance(result, np.ndarray) or result.shape != want.shape:
            self._fail(f"got {type(result).__name__}{np.shape(result)}, must get {want.shape}")
        if self.out is None and (result.dtype != case.dtype or not result.flags.writeable):
            self._fail(f"got dtype {result.dtype}, writable: {result.flags.writeable}")
        wrong = differing(case, result, want, self.given)
        if wrong.size:
            first = tuple(int(i) for i in np.unravel_index(wrong[0], want.shape))
            self._fail(
                f"{wrong.size} of {want.size} elements differ",
                index=first,
                got=_shown(result[first]),
                want=_shown(want[first]),
            )
        return crc32(as_bytes(contiguous(result)).data, digest)

    def _check_memory(self) -> None:
        """See that the input is as it was, and that nothing beside the output was written."""
        if self.x is not None and self.x is not self.out and (self.x.base != self.kept).any():
            self._fail("x was changed")
        if self.out is not None and self.out.strays():
            self._fail("bytes beside the elements of out were written")

    def _fail(self, problem: str, **where: Any) -> None:
        if self.case.calls > 1:
            problem = f"call {self.number + 1} of {self.case.calls}: {problem}"
        raise CaseFailed(Failure.of(self.case, self.rank, problem, **where))


def _shown(element: Any) -> str:
    value = np.asarray(element)
    return f"{value.item()!r} (bytes {contiguous(value).tobytes().hex()})"


def _op(case: Case) -> Any:
    return premul_sum(case.factor) if case.op == "premul_sum" else case.op


def _cut_sizes(case: Case, member: int) -> Any:
    """Return the ``sizes`` of a verb that cuts."""
    return {"rule": None, "equal": "equal"}.get(case.sizes, case.table[member])


def _joined_sizes(case: Case) -> Any:
    """Return the ``sizes`` of a verb that joins."""
    told = tuple(row[0] for row in case.table)
    return {"found": None, "equal": "equal"}.get(case.sizes, told)


def _all_reduce(group: Group, case: Case, x: Any, how: dict[str, Any]) -> Any:
    weight = float(case.weights[group.rank]) if case.weights else None
    return group.all_reduce(x, _op(case), weight=weight, **how)


def _sendrecv(group: Group, case: Case, x: Any, how: dict[str, Any]) -> Any:
    target, source = dict(case.pairs), {t: s for s, t in case.pairs}
    me = group.rank
    return group.sendrecv(x, target[me], source[me], tag=case.number % 1000, **how)


_CALLS: dict[str, Callable[[Group, Case, Any, dict[str, Any]], Any]] = {
    "all_reduce": _all_reduce,
    "reduce": lambda g, c, x, how: g.reduce(x, _op(c), root=c.root, **how),
    "scan": lambda g, c, x, how: g.scan(x, _op(c), exclusive=c.exclusive, **how),
    "reduce_scatter": lambda g, c, x, how: g.reduce_scatter(
        x, _op(c), axis=c.axis, sizes=_cut_sizes(c, g.rank), **how
    ),
    "broadcast": lambda g, c, x, how: g.broadcast(x, root=c.root, **how),
    "all_gather": lambda g, c, x, how: g.all_gather(x, axis=c.axis, sizes=_joined_sizes(c), **how),
    "gather": lambda g, c, x, how: g.gather(
        x, root=c.root, axis=c.axis, sizes=_joined_sizes(c), **how
    ),
    "scatter": lambda g, c, x, how: g.scatter(
        x, root=c.root, axis=c.axis, sizes=_cut_sizes(c, c.root), **how
    ),
    "all_to_all": lambda g, c, x, how: g.all_to_all(
        x, axis=c.axis, sizes=_cut_sizes(c, g.rank), **how
    ),
    "permute": lambda g, c, x, how: g.permute(x, c.pairs, **how),
    "sendrecv": _sendrecv,
    "barrier": lambda g, c, x, how: g.barrier(**how),
}

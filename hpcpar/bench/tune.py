"""Find the switch points of the node engine that are fastest on this machine, one by one.

Every candidate takes turns with what is built in, on the same arrays; a candidate replaces it only
where it is faster by more than noise, and every result is compared bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..comm.tuning import Tuning, apply, built_in
from ..comm.tuning_file import cpu_name
from ..errors import ArgumentError, GroupFailed
from .buffers import placed
from .environment import environment
from .timing import compare, time_all

__all__ = ["Options", "choose", "run"]

_KIB, _MIB = 1 << 10, 1 << 20
_GAIN = 1.03  # less is noise
_NEVER = 1 << 62
#: Parameter, its candidates, and the verbs and sizes that it decides on.
_PLAN: tuple[tuple[str, tuple[int, ...], str, tuple[int, ...]], ...] = (
    ("chunk", (128 * _KIB, 256 * _KIB, 512 * _KIB), "all_reduce", (_MIB, 4 * _MIB, 25 * _MIB)),
    (
        "copy_chunk",
        (32 * _KIB, 64 * _KIB, 128 * _KIB, 256 * _KIB),
        "all_gather",
        (_MIB, 4 * _MIB, 25 * _MIB),
    ),
    (
        "stream",
        (_MIB // 2, _MIB, 2 * _MIB, 4 * _MIB, 16 * _MIB, 1 << 40),
        "all_reduce",
        (_MIB, 2 * _MIB, 4 * _MIB, 25 * _MIB),
    ),
)


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes
    ----------
    rounds : int
        Turns of each candidate.
    """

    rounds: int = 9

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ArgumentError(f"rounds {self.rounds} must be >= 1.")


def run(
    group: Group, options: Options, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure and choose. Collective over `group`, whose ranks share a machine.

    Returns
    -------
    dict
        "tuning" (what was chosen), "cpu", "environment", "options" and "results": a row for each
        parameter and candidate.

    Raises
    ------
    ArgumentError
        The group is not carried by the node engine, or has one rank.
    GroupFailed
        A candidate changed the result.
    """
    if group.backend not in ("node", "threads") or group.size < 2:
        raise ArgumentError(
            f"tune: {group.size} rank(s) on the backend {group.backend!r}. Take two or more ranks "
            "of one machine: hpcpar tune -n 2."
        )
    best, rows = built_in(), []
    for name, values, verb, sizes in _PLAN:
        tunings = _candidates(best, name, values)
        if progress is not None:
            progress(f"{name}: {len(tunings)} candidates at {len(sizes)} sizes of {verb}")
        gains = _gains(group, verb, sizes, tunings, options.rounds)
        chosen = choose(gains, getattr(best, name))
        rows += [_row(name, value, gain, chosen) for value, gain in gains.items()]
        best = tunings[chosen]
    apply(group, best)
    told = {"cpu": cpu_name(), "tuning": asdict(best), "environment": environment()}
    return {"bench": "tune", "schema": 1, **told, "options": asdict(options), "results": rows}


def choose(gains: Mapping[int, float], current: int) -> int:
    """Return the candidate that is fastest, or `current` if that is as good. Local, pure.

    Examples
    --------
    >>> choose({1: 1.0, 2: 1.2, 4: 1.1}, 1), choose({1: 1.0, 2: 1.01}, 1)
    (2, 1)
    """
    fastest = max(gains, key=lambda value: gains[value])
    return fastest if gains[fastest] > _GAIN * gains[current] else current


def _candidates(best: Tuning, name: str, values: Sequence[int]) -> dict[int, Tuning]:
    """Return the tunings to compare, the best so far first."""
    made = {getattr(best, name): best}
    for value in values:
        changed = {name: value}
        if name == "chunk":
            changed["copy_chunk"] = min(best.copy_chunk, value)
        if name != "copy_chunk" or value <= best.chunk:
            made.setdefault(value, replace(best, **changed))
    return made


def _gains(
    group: Group, verb: str, sizes: Sequence[int], tunings: Mapping[int, Tuning], rounds: int
) -> dict[int, float]:
    """Return how many times as fast each is as the first: the geometric mean over sizes."""
    logs = dict.fromkeys(tunings, 0.0)
    first = next(iter(tunings))
    for nbytes in sizes:
        calls, out = _calls(group, verb, nbytes, tunings)
        _check_bits(group, calls, out)
        named = {str(value): call for value, call in calls.items()}
        times = time_all(group, named, barrier=group.barrier, rounds=rounds, warmup=2)
        for value in tunings:
            logs[value] += math.log(compare(times[str(value)], times[str(first)])[0])
    return {value: math.exp(total / len(sizes)) for value, total in logs.items()}


def _calls(
    group: Group, verb: str, nbytes: int, tunings: Mapping[int, Tuning]
) -> tuple[dict[int, Callable[[], object]], Array]:
    dtype = np.dtype(np.float32)
    count = nbytes // dtype.itemsize
    part = count // group.size if verb == "all_gather" else count
    x, out = placed(part, dtype), placed(part * (count // part), dtype, 128)
    x[:] = np.random.default_rng(group.rank).standard_normal(part, np.float32)

    def call_with(tuning: Tuning) -> Callable[[], object]:
        def call() -> object:
            # Before each call: other candidates were there in between. In chunks, for arrays that
            # are read where they lie have none.
            apply(group, replace(tuning, lend=_NEVER))
            if verb == "all_gather":
                return group.all_gather(x, sizes="equal", out=out)
            return group.all_reduce(x, out=out)

        return call

    return {value: call_with(tuning) for value, tuning in tunings.items()}, out


def _check_bits(group: Group, calls: Mapping[int, Callable[[], object]], out: Array) -> None:
    wanted: Array | None = None
    for value, call in calls.items():
        out.fill(0)
        group.barrier()
        call()
        wanted = out.copy() if wanted is None else wanted
        differs = not np.array_equal(wanted.view(np.uint32), out.view(np.uint32))
        if group.all_reduce(int(differs), "max"):
            raise GroupFailed(f"tune: with {value} the result has other bits. Report this.")


def _row(name: str, value: int, gain: float, chosen: int) -> dict[str, Any]:
    return {"parameter": name, "value": value, "gain": gain, "chosen": value == chosen}

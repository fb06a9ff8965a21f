"""``hpcpar bench dtensor``: what distributed arrays add to NumPy, and how they move and scale."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..dtensor.factories import distribute
from ..errors import ArgumentError
from ..mesh.device_mesh import DeviceMesh, init_device_mesh
from ..mesh.placement import Replicate, Shard
from .environment import environment
from .timing import Times, compare, time_all

__all__ = ["CASES", "Options", "run", "stencil"]

Progress = Callable[[str], None] | None
Row = dict[str, Any]
Calls = dict[str, Callable[[], object]]
_SIDE, _STEPS, _LONG = 2048, 100, 1 << 24


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes
    ----------
    cases : tuple of str
    rounds : int
        Turns of each contestant.
    torch : bool
        Whether torch's DTensor over Gloo takes part.
    """

    cases: tuple[str, ...]
    rounds: int
    torch: bool


def run(group: Group, options: Options, progress: Progress = None) -> Row:
    """Measure the cases. Collective over `group`.

    Returns
    -------
    dict
        bench, schema, environment, options, ranks, results: one row per measurement, with the
        microseconds of ours and of who it is compared with, and a figure with its target.

    Raises
    ------
    ArgumentError
        A case that there is not, fewer than one round, no torch where it was asked for.
    """
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        raise ArgumentError(f"cases {unknown[0]!r}: it is one of {', '.join(CASES)}.")
    if options.rounds < 1:
        raise ArgumentError(f"rounds {options.rounds}: it is at least 1.")
    if options.torch and importlib.util.find_spec("torch") is None:
        raise ArgumentError("torch is not installed. Install it, or leave --torch out.")
    mesh = init_device_mesh((group.size,), ("x",), group=group)
    results: list[Row] = []
    for case in options.cases:
        results += CASES[case](mesh, options)
        if progress is not None:
            progress(case)
    return {
        "bench": "dtensor",
        "schema": 1,
        "environment": environment(),
        "options": asdict(options),
        "ranks": group.size,
        "results": results,
    }


def _times(mesh: DeviceMesh, calls: Calls, options: Options, seconds: float) -> dict[str, Times]:
    group = mesh.group
    return time_all(
        group, calls, barrier=group.barrier, rounds=options.rounds, warmup=2, seconds=seconds
    )


def _row(what: str, times: dict[str, Times], figure: float, target: str, of: str) -> Row:
    micros = {f"{name}_us": 1e6 * each.median for name, each in times.items()}
    return {"what": what, "figure": figure, "target": target, "of": of, **micros}


def _with_torch(name: str, mesh: DeviceMesh, options: Options) -> Calls:
    """Return torch's contestants of a case, if it takes part."""
    if not options.torch:
        return {}
    from .dtensor_torch import contestants

    return contestants(name, mesh.group)


# -- what an operation adds ------------------------------------------------------------------------


def _overheads(mesh: DeviceMesh, options: Options) -> list[Row]:
    a = np.ones((8 * mesh.size, 64))
    x, y = (distribute(a, mesh, Shard(0)) for _ in range(2))
    here = x.to_local()
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object], float]] = {
        "x + y": (lambda: x + y, lambda: here + here, 3.0),
        "np.add(x, y)": (lambda: np.add(x, y), lambda: np.add(here, here), 5.0),
        "x[0]": (lambda: x[0], lambda: here[0], 5.0),
        "x[0] = 1.0": (lambda: x.__setitem__(0, 1.0), lambda: here.__setitem__(0, 1.0), 5.0),
        "x[1:-1, 1:-1]": (lambda: x[1:-1, 1:-1], lambda: here[1:-1, 1:-1], 5.0),
    }
    rows = []
    for what, (ours, plain, target) in pairs.items():
        calls: Calls = {"hpcpar": ours, "numpy": plain}
        if what == "x + y":
            calls |= _with_torch("add", mesh, options)
        times = _times(mesh, calls, options, 0.005)
        added = 1e6 * compare(times["hpcpar"], times["numpy"])[1]
        rows.append(_row(what, times, added, f"<= {target:.0f}", "us more than NumPy"))
        if "torch" in times:
            theirs = 1e6 * compare(times["torch"], times["torch plain"])[1]
            rows.append(_row(what, times, added / theirs, "<= 0.5", "more / torch's more"))
    return rows


# -- moving ----------------------------------------------------------------------------------------


def _moves(mesh: DeviceMesh, options: Options) -> list[Row]:
    x = distribute(np.ones((1024, 1024), np.float32), mesh, Shard(0))
    rows = []
    for what, placement in (("S0 -> S1", Shard(1)), ("S0 -> R", Replicate())):
        calls: Calls = {
            "hpcpar": partial(x.redistribute, placement),
            "copyto": partial(np.copyto, np.empty_like(x.to_local()), x.to_local()),
        }
        calls |= _with_torch(what, mesh, options)
        times = _times(mesh, calls, options, 0.02)
        peer = "torch" if "torch" in times else "copyto"
        figure = 1 / compare(times["hpcpar"], times[peer])[0]
        target = "<= 0.25" if peer == "torch" else "-"
        rows.append(_row(f"{what}, 4 MiB", times, figure, target, f"ours / {peer}"))
    return rows


# -- scaling ---------------------------------------------------------------------------------------


def stencil(u: Any, steps: int) -> Any:
    """Return a grid after steps of a five-point stencil, as NumPy programs have it."""
    for _ in range(steps):
        inner = u[1:-1, 1:-1]
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u[1:-1, 1:-1] = inner + 0.1 * (around - 4 * inner)
    return u


def _stencil(mesh: DeviceMesh, options: Options) -> list[Row]:
    u = distribute(np.random.default_rng(0).random((_SIDE, _SIDE)), mesh, Shard(0))
    alone = np.array(u.to_local())
    calls: Calls = {
        "hpcpar": partial(stencil, u, _STEPS),
        "control": partial(stencil, alone, _STEPS),
    }
    times = _times(mesh, calls, options, 0.0)
    figure = 1 / compare(times["hpcpar"], times["control"])[0]
    return [_row(f"stencil {_SIDE}^2, {_STEPS} steps", times, figure, "<= 1.15", "ours / control")]


def _sort(mesh: DeviceMesh, options: Options) -> list[Row]:
    whole = np.random.default_rng(0).random(_LONG)
    x = distribute(whole, mesh, Shard(0))
    first = mesh.group.rank == 0

    def alone() -> Array | None:
        return np.sort(whole) if first else None  # the other ranks leave it the machine

    times = _times(mesh, {"hpcpar": partial(np.sort, x), "numpy": alone}, options, 0.0)
    figure = compare(times["hpcpar"], times["numpy"])[0]
    return [_row("sort of 2^24 float64", times, figure, ">= 1.3", "np.sort on one / ours")]


CASES: dict[str, Callable[[DeviceMesh, Options], list[Row]]] = {
    "overhead": _overheads,
    "move": _moves,
    "stencil": _stencil,
    "sort": _sort,
}

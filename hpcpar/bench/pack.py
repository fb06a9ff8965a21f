"""``hpcpar bench pack``: many arrays into one flat buffer and back, against copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .._arrays import Array
from .._core import PackPlan
from ..comm.attach import as_group
from ..errors import ArgumentError
from ..nn import GPT
from ..random import Key, bits
from .buffers import TARGET, placed
from .environment import environment
from .formulas import algbw
from .timing import ROUND_SECONDS, Times, compare, time_all

__all__ = ["Options", "run"]

Row = dict[str, Any]
_SMALL_ARRAYS, _SMALL_COUNT = 1000, 256  # of float32: 1 KiB each


@dataclass(frozen=True)
class Options:
    """What to pack.

    Attributes
    ----------
    layers, hidden, vocab : int
        Of the GPT whose gradients are packed; `hidden` is a multiple of 64, the width of a head.
    rounds, warmup : int
        Turns of each contestant; calls before the clock runs.
    seconds : float
        Length of a turn.

    Raises
    ------
    ArgumentError
        A number out of range.
    """

    layers: int = 6
    hidden: int = 512
    vocab: int = 8192
    rounds: int = 9
    warmup: int = 2
    seconds: float = ROUND_SECONDS

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "vocab", "rounds", "warmup"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} {getattr(self, name)}: it is at least 1.")
        if self.hidden % 64:
            raise ArgumentError(f"hidden {self.hidden}: it must be a multiple of 64.")


def run(options: Options, progress: Callable[[str], None] | None = None) -> Row:
    """Measure and check. Local.

    Parameters
    ----------
    options : Options
    progress : callable, optional
        Gets a line before each part.

    Returns
    -------
    dict
        bench, schema, environment, options, results.
    """
    say = progress or (lambda line: None)
    say(f"making a GPT of {options.layers} layers")
    model = GPT(
        layers=options.layers,
        hidden=options.hidden,
        heads=options.hidden // 64,
        vocab=options.vocab,
        seq=1,
    )
    sets = {
        "GPT": [_placed(param) for param in model.init(Key(0)).values()],
        "1000 x 1 KiB": [
            bits(Key(1, i), _SMALL_COUNT).astype(np.float32) for i in range(_SMALL_ARRAYS)
        ],
    }
    results = []
    for name, arrays in sets.items():
        for unpack in (False, True):
            title = f"{'unpack' if unpack else 'pack'} {name}"
            say(title)
            results.append({"name": title, **_measure(arrays, unpack, options)})
    return {
        "bench": "pack",
        "schema": 1,
        "environment": environment(),
        "options": asdict(options),
        "results": results,
    }


def _measure(arrays: Sequence[Array], unpack: bool, options: Options) -> Row:
    plan = PackPlan([(a.shape, a.dtype) for a in arrays])
    flat = placed(plan.nbytes, np.dtype(np.uint8))
    other = placed(plan.nbytes, flat.dtype, TARGET)
    targets = [_placed(a * 0) for a in arrays]
    views = [
        flat[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        for start, a in zip(plan.offsets, arrays, strict=True)
    ]
    plan.pack(arrays, flat)
    plan.unpack(flat, targets)
    wrong = sum(
        int(np.count_nonzero(a != b))
        for got in (views, targets)
        for a, b in zip(arrays, got, strict=True)
    )
    calls: dict[str, Callable[[], object]] = {
        "plan": lambda: plan.pack(arrays, flat),
        "copyto": lambda: np.copyto(other, flat),
        "loop": lambda: _copy_each(views, arrays),
    }
    if unpack:
        calls["plan"] = lambda: plan.unpack(flat, targets)
        calls["loop"] = lambda: _copy_each(targets, views)
    times = time_all(
        as_group(),
        calls,
        barrier=_nothing,
        rounds=options.rounds,
        warmup=options.warmup,
        seconds=options.seconds,
    )
    figures = {name: _figures(times["plan"], found, plan.nbytes) for name, found in times.items()}
    return {"arrays": len(arrays), "nbytes": plan.nbytes, "wrong": wrong, "contestants": figures}


def _placed(values: Array) -> Array:
    """Copy to a place that is never close behind a member of a flat buffer, modulo a page."""
    found = placed(values.size, values.dtype, TARGET // 2).reshape(values.shape)
    found[...] = values
    return found


def _copy_each(targets: Sequence[Array], sources: Sequence[Array]) -> None:
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)


def _nothing() -> None:
    """Stand in for the barrier of a benchmark of one process."""


def _figures(plan: Times, measured: Times, nbytes: int) -> dict[str, float]:
    return {
        "calls": measured.calls,
        "min_us": measured.best * 1e6,
        "median_us": measured.median * 1e6,
        "p99_us": measured.p99 * 1e6,
        "algbw": algbw(nbytes, measured.median),
        "ratio": compare(plan, measured)[0],
    }

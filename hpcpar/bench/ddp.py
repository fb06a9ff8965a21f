"""``hpcpar bench ddp``: what data parallel training adds to a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..errors import ArgumentError
from ..nn import GPT, Ctx, collect, cross_entropy, cross_entropy_backward
from ..parallel import DDP
from ..random import Key
from .environment import environment
from .steps import by_turns, median_interval

__all__ = ["CASES", "Options", "run"]

Progress = Callable[[str], None] | None
Row = dict[str, Any]
#: What the ratio of each case should be.
_TARGETS = {"gpt": "<= 0.333", "small": "<= 0.333", "alone": "<= 0.03", "sleep": ">= 0.9"}
_LAYERS, _NBYTES, _SLEEP = 16, 25 << 20, 0.01


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes
    ----------
    cases : tuple of str
    steps : int
        Of each way.
    """

    cases: tuple[str, ...]
    steps: int


def run(group: Group, options: Options, progress: Progress = None) -> Row:
    """Measure the cases. Collective over `group`.

    Returns
    -------
    dict
        bench, schema, environment, options, ranks, results: one row per case, with milliseconds
        of the step alone and of what each way adds, and a ratio with its interval of 95 %.

    Raises
    ------
    ArgumentError
        A case that there is not, fewer than one step.
    """
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        raise ArgumentError(f"cases {unknown[0]!r}: it is one of {', '.join(CASES)}.")
    if options.steps < 1:
        raise ArgumentError(f"steps {options.steps}: it is at least 1.")
    results = [CASES[case](group, options, progress) for case in options.cases]
    return {
        "bench": "ddp",
        "schema": 1,
        "environment": environment(),
        "options": asdict(options),
        "ranks": group.size,
        "results": results,
    }


def _row(
    case: str, what: str, seconds: Array, ratio: tuple[float, float, float], **more: Any
) -> Row:
    """Return a row: `seconds` of the step alone, of ours, and perhaps of a peer."""
    added = np.median(seconds[:, 1:] - seconds[:, :1], axis=0)
    return {
        "case": case,
        "target": _TARGETS[case],
        "ratio_of": what,
        "alone_ms": 1e3 * float(np.median(seconds[:, 0])),
        "ours_adds_ms": 1e3 * float(added[0]),
        "peer_adds_ms": 1e3 * float(added[1]) if len(added) > 1 else None,
        "ratio": ratio[0],
        "low": ratio[1],
        "high": ratio[2],
        **more,
    }


def _added_ratio(rows: Array) -> Array:
    """Return what ours adds over what the peer adds, of rows (alone, ours, peer)."""
    ours, theirs = (np.median(rows[..., i] - rows[..., 0], axis=-1) for i in (1, 2))
    ratio: Array = ours / theirs
    return ratio


def _share(rows: Array) -> Array:
    """Return what ours adds over the step alone, of rows (alone, ours)."""
    added = np.median(rows[..., 1] - rows[..., 0], axis=-1)
    share: Array = added / np.median(rows[..., 0], axis=-1)
    return share


def _torch(case: str, group: Group, options: Options, progress: Progress) -> Row:
    """Compare with torch's DDP over Gloo."""
    from .ddp_torch import compare

    seconds, count, wrong = compare(case, group, options.steps, progress)
    ratio = median_interval(seconds, _added_ratio)
    return _row(case, "ours / torch DDP", seconds, ratio, params=count, wrong=wrong)


def _alone(group: Group, options: Options, progress: Progress) -> Row:
    """Compare a step with one under a DDP of one rank."""
    one = group.split(group.rank)
    assert one is not None
    model = GPT(layers=4, hidden=256, heads=4, vocab=256, seq=64)
    params = model.init(Key(0))
    ids = np.random.default_rng(group.rank).integers(0, 256, size=(8, 65))

    def backward(params: Any, on_grad: Any) -> None:
        logits, saved = model.forward(params, ids[:, :-1], Ctx())
        _, kept = cross_entropy(logits, ids[:, 1:])
        model.backward(params, saved, cross_entropy_backward(kept), on_grad)

    def plain() -> None:
        grads: dict[str, Array] = {}
        backward(params, collect(grads))

    ddp = DDP(dict(params), group=one)

    def ours() -> None:
        with ddp.step() as step:
            backward(ddp.params, step.on_grad)

    seconds = by_turns(group, [plain, ours], options.steps, progress=progress)
    one.close()
    count = sum(p.size for p in params.values())
    ratio = median_interval(seconds, _share)
    return _row("alone", "ours / step", seconds, ratio, params=count, wrong=0)


def _sleep(group: Group, options: Options, progress: Progress) -> Row:
    """Measure how much is hidden behind layers that leave the core."""
    names = [f"layer{i}" for i in range(_LAYERS)]
    params = {name: np.zeros(_NBYTES // 4, np.float32) for name in names}
    ddp = DDP(params, group=group, first_bucket_nbytes=_NBYTES, bucket_nbytes=_NBYTES)

    def filled(out: Array | None = None, add: bool = False) -> Array:
        """Leave what is there: nothing is computed."""
        assert out is not None
        return out

    def plain() -> None:
        for _ in names:
            time.sleep(_SLEEP)

    def ours() -> None:
        with ddp.step() as step:
            for name in reversed(names):
                time.sleep(_SLEEP)
                step.on_grad(name, filled)

    def bare() -> None:
        for bucket in ddp.grads.values():
            group.all_reduce(bucket, "mean", out=bucket)

    ours()
    seconds = by_turns(group, [plain, ours, bare], options.steps, progress=progress)
    ratio = median_interval(seconds, _hidden)
    row = _row("sleep", "hidden / hideable", seconds[:, :2], ratio, wrong=0)
    row["communication_ms"] = 1e3 * float(np.median(seconds[:, 2]))
    return row | {"params": sum(p.size for p in params.values())}


def _hidden(rows: Array) -> Array:
    """Return the hidden share of what can be: all but the last bucket's communication."""
    whole = np.median(rows[..., 2], axis=-1)
    shown = np.median(rows[..., 1] - rows[..., 0], axis=-1)
    share: Array = (whole - shown) / (whole * (1 - 1 / _LAYERS))
    return share


CASES: dict[str, Callable[[Group, Options, Progress], Row]] = {
    "gpt": partial(_torch, "gpt"),
    "small": partial(_torch, "small"),
    "alone": _alone,
    "sleep": _sleep,
}

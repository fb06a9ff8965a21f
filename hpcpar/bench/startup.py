"""``hpcpar bench import``: what ``import hpcpar`` costs over ``import numpy``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from .environment import environment
from .formulas import median

__all__ = ["count_opened", "run"]

Row = dict[str, Any]
_MODULES = ("numpy", "hpcpar")
_SECONDS = 60
_CODE = """\
import sys, time
begin = time.perf_counter()
import {module}
passed = time.perf_counter() - begin
import json
files = sum(getattr(m, "__file__", None) is not None for m in list(sys.modules.values()))
print(json.dumps([passed, len(sys.modules), files]))
"""


def run(rounds: int, progress: Callable[[str], None] | None = None) -> Row:
    """Import both in fresh processes, in turns. Local.

    Parameters
    ----------
    rounds : int
        Processes of each.
    progress : callable, optional
        Gets a line for each round.

    Returns
    -------
    dict
        bench, schema, environment, options, files_by, over_numpy_ms, ratio, results.

    Raises
    ------
    ArgumentError
        `rounds` is below 1.
    """
    if rounds < 1:
        raise ArgumentError(f"rounds {rounds}: it is at least 1.")
    # What the first processes read from disk and compile is not counted.
    by_modules = {module: _import(module) for module in _MODULES}
    seconds: dict[str, list[float]] = {module: [] for module in _MODULES}
    for turn in range(rounds):
        if progress is not None:
            progress(f"round {turn + 1}/{rounds}")
        for module in _MODULES[:: 1 - 2 * (turn % 2)]:
            seconds[module].append(_import(module)[0])
    traced = {module: _trace(module) for module in _MODULES}
    by_strace = None not in traced.values()
    files = traced if by_strace else {module: by_modules[module][2] for module in _MODULES}
    pairs = list(zip(seconds["numpy"], seconds["hpcpar"], strict=True))
    return {
        "bench": "import",
        "schema": 1,
        "environment": environment(),
        "options": {"rounds": rounds},
        "files_by": "strace" if by_strace else "sys.modules",
        "over_numpy_ms": median([ours - base for base, ours in pairs]) * 1e3,
        "ratio": median([ours / base for base, ours in pairs]),
        "results": [
            {
                "module": module,
                "median_ms": median(seconds[module]) * 1e3,
                "min_ms": min(seconds[module]) * 1e3,
                "modules": by_modules[module][1],
                "files": files[module],
            }
            for module in _MODULES
        ],
    }


def count_opened(trace: str) -> int:
    r"""Count the different files that were opened, in the output of strace. Local, pure.

    Examples
    --------
    >>> count_opened('1 openat(A, "a", R) = 3\n1 openat(A, "b", R) = -1 ENOENT\n')
    1
    """
    found = [line for line in trace.splitlines() if "open" in line and " = -1 " not in line]
    return len({line.split('"')[1] for line in found if line.count('"') > 1})


def _words(module: str) -> list[str]:
    # -P: the installation is timed, not a source tree that this process happens to stand in.
    return [sys.executable, "-P", "-c", _CODE.format(module=module)]


def _import(module: str) -> tuple[float, int, int]:
    done = subprocess.run(
        _words(module), capture_output=True, text=True, timeout=_SECONDS, check=True
    )
    seconds, modules, files = json.loads(done.stdout)
    return seconds, modules, files


def _trace(module: str) -> int | None:
    """Return the files that the process opened; None where there is no strace that may trace."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "trace"
        command = [strace, "-f", "-qq", "-e", "trace=open,openat", "-o", str(log)]
        done = subprocess.run(
            [*command, *_words(module)], capture_output=True, timeout=_SECONDS, check=False
        )
        return count_opened(log.read_text(errors="replace")) if done.returncode == 0 else None

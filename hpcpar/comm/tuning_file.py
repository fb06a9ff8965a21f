"""The file of tables that `hpcpar tune` keeps, by the name of the processor."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, fields
from pathlib import Path

from ..errors import ArgumentError
from .tuning import Tuning

__all__ = ["cpu_name", "read", "save"]

_VERSION = 1


def cpu_name() -> str:
    """Return the processor's name, by which tables are kept. Local."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def read(path: str) -> dict[str, Tuning]:
    """Read the tables of a file, by processor. Local.

    Raises
    ------
    OSError
        It cannot be read.
    ArgumentError
        It holds something else.
    """
    names = {field.name for field in fields(Tuning)}
    try:
        whole = json.loads(Path(path).read_text(encoding="utf-8"))
        if whole["version"] != _VERSION or not all(set(t) == names for t in whole["cpus"].values()):
            raise KeyError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"no tables of version {_VERSION}.") from error
    return {cpu: Tuning(**table) for cpu, table in whole["cpus"].items()}


def save(path: str, tuning: Tuning) -> None:
    """Keep this processor's table, beside those of others. Local."""
    try:
        tables = read(path)
    except (OSError, ArgumentError):
        tables = {}
    tables[cpu_name()] = tuning
    whole = {"version": _VERSION, "cpus": {cpu: asdict(t) for cpu, t in sorted(tables.items())}}
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f"{place.name}.{os.getpid()}")
    beside.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    beside.replace(place)

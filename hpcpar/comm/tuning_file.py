"""The file of tables that `hpcpar tune` keeps, by the name of the processor."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, fields

from ..errors import ArgumentError
from .tuning import Tuning, built_in

__all__ = ["cpu_name", "find", "load", "read", "save", "where_kept"]

_VERSION = 2
_log = logging.getLogger("hpcpar")


def cpu_name() -> str:
    """Return the processor's name, by which tables are kept. Local."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else os.uname().machine


def where_kept(env: Mapping[str, str]) -> str | None:
    """Return the file of tables; None where ``HPCPAR_TUNING=off``. Local."""
    named = env.get("HPCPAR_TUNING", "")
    if named == "off":
        return None
    cache = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME", "/"), ".cache")
    return named or os.path.join(cache, "hpcpar", "tuning.json")


def load(env: Mapping[str, str]) -> Tuning:
    """Return this processor's table, or what is built in; see `find`. Local."""
    return find(env)[0]


def find(env: Mapping[str, str]) -> tuple[Tuning, str | None]:
    """Return this processor's table and its file, or what is built in and None. Local.

    A file that ``HPCPAR_TUNING`` names must be right; a wrong one in the cache is said and left.

    Raises
    ------
    ArgumentError
        That file cannot be read, or holds no tables.
    """
    path, is_named = where_kept(env), bool(env.get("HPCPAR_TUNING"))
    if path is None or (not is_named and not os.path.exists(path)):
        return built_in(), None
    try:
        found = read(path).get(cpu_name())
    except FileNotFoundError as error:
        raise ArgumentError(f"HPCPAR_TUNING: no file {path}. Make it: hpcpar tune.") from error
    except (OSError, ArgumentError) as error:
        if is_named:
            raise ArgumentError(f"HPCPAR_TUNING: {path}: {error}") from error
        _log.warning("%s is left: %s Remove it, or run hpcpar tune.", path, error)
        return built_in(), None
    return (built_in(), None) if found is None else (found, path)


def read(path: str) -> dict[str, Tuning]:
    """Read the tables of a file, by processor. Local.

    Raises
    ------
    OSError
        It cannot be read.
    ArgumentError
        It holds something else.
    """
    import json  # most processes have no table

    names = {field.name for field in fields(Tuning)}
    try:
        with open(path, encoding="utf-8") as file:
            whole = json.load(file)
        if whole["version"] != _VERSION or not all(set(t) == names for t in whole["cpus"].values()):
            raise KeyError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"no tables of version {_VERSION}.") from error
    return {cpu: Tuning(**table) for cpu, table in whole["cpus"].items()}


def save(path: str, tuning: Tuning) -> None:
    """Keep this processor's table, beside those of others. Local."""
    import json

    try:
        tables = read(path)
    except (OSError, ArgumentError):
        tables = {}
    tables[cpu_name()] = tuning
    whole = {"version": _VERSION, "cpus": {cpu: asdict(t) for cpu, t in sorted(tables.items())}}
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(json.dumps(whole, indent=2) + "\n")
    os.replace(beside, path)

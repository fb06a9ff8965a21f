"""What a benchmark returned, on the screen or in a file."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..bench.table import Table, render, tables
from ..errors import ArgumentError

__all__ = ["check_place", "show"]


def check_place(path: str | None) -> None:
    """Raise ArgumentError, before anything is measured, if a report cannot go to `path`. Local."""
    if path not in (None, "-") and not Path(str(path)).absolute().parent.is_dir():
        raise ArgumentError(f"--json {path}: there is no such folder.")


def show(report: dict[str, Any], path: str | None) -> int:
    """Print or write the report; return the exit code."""
    text = json.dumps(report, indent=1)
    if path == "-":
        print(text)
    else:
        if path is not None:
            Path(path).write_text(text + "\n")
        _print(tables(report))
    sys.stdout.flush()
    return int(any(_wrong(row) for row in report["results"]))


def _wrong(row: dict[str, Any]) -> int:
    """Return the wrong elements of a row and of all that took part in it."""
    counted = (row, *row.get("contestants", {}).values())
    return sum(int(who.get("wrong", 0)) for who in counted)


def _print(found: list[Table]) -> None:
    if not (find_spec("rich") and sys.stdout.isatty()):
        print("\n\n".join(render(table) for table in found))
        return
    from rich.console import Console  # heavy and optional
    from rich.table import Table as RichTable

    for table in found:
        shown = RichTable(title=table.title, title_justify="left")
        for column in table.columns:
            shown.add_column(column, justify="right")
        for row in table.rows:
            shown.add_row(*row)
        Console().print(shown)

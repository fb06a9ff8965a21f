"""Results as text: pure functions from what the benchmarks return to titles, columns and cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Table", "render", "tables"]


@dataclass(frozen=True)
class Table:
    """A table of strings.

    Attributes
    ----------
    title : str
    columns : list of str
    rows : list of list of str
    """

    title: str
    columns: list[str]
    rows: list[list[str]]


def tables(report: dict[str, Any]) -> list[Table]:
    """Return the tables of a report: one for each verb, or one in all. Local, pure.

    Parameters
    ----------
    report : dict
        What a benchmark of this room returned.
    """
    if report["bench"] == "import":
        return [_startup(report)]
    if report["bench"] == "pack":
        return [_pack(report)]
    if report["bench"] == "tune":
        return [_tune(report)]
    if report["bench"] == "ddp":
        return [_ddp(report)]
    if report["bench"] == "dtensor":
        return [_dtensor(report)]
    verbs = dict.fromkeys(row["verb"] for row in report["results"])
    return [_verb(report, verb) for verb in verbs]


def render(table: Table) -> str:
    """Return a table as lines of plain text, columns aligned to the right. Local, pure.

    Examples
    --------
    >>> print(render(Table("t", ["size", "us"], [["4", "1.25"], ["1024", "3.00"]])))
    t
    size    us
       4  1.25
    1024  3.00
    """
    lines = [table.columns, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    text = [
        "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines
    ]
    return "\n".join([table.title, *text])


def _verb(report: dict[str, Any], verb: str) -> Table:
    rows = [row for row in report["results"] if row["verb"] == verb]
    seen = dict.fromkeys(name for row in rows for name in row["contestants"])
    peers = [name for name in seen if name not in ("hpcpar", "copyto")]
    columns = ["bytes", "count", "type", "op", "root", "place"]
    columns += ["us", "min", "p99", "algbw", "busbw", "#wrong"]
    for name in peers:
        columns += [f"{name} us", "min", "ratio", "ours+us"]
    where = report["environment"]
    return Table(
        f"{verb}  {where['ranks']} ranks, {where['backend']} backend, check "
        f"{report['options']['check']}, {report['options']['rounds']} rounds, load before "
        f"{where['load']} on {where['cores']} cores",
        [*columns, "copyto us", "ratio"],
        [_cells(row, peers) for row in rows],
    )


def _cells(row: dict[str, Any], peers: Sequence[str]) -> list[str]:
    ours, copy = row["contestants"]["hpcpar"], row["contestants"]["copyto"]
    cells = [str(row["nbytes"]), str(row["count"]), row["dtype"], row["op"] or "-"]
    cells += ["-" if row["root"] is None else str(row["root"]), row["mode"]]
    cells += [_us(ours[key]) for key in ("median_us", "min_us", "p99_us")]
    cells += [f"{ours['algbw']:.3f}", f"{ours['busbw']:.3f}", str(ours["wrong"])]
    for name in peers:
        cells += _peer_cells(row["contestants"].get(name))
    return [*cells, _us(copy["median_us"]), f"{copy['ratio']:.3f}"]


def _peer_cells(peer: dict[str, Any] | None) -> list[str]:
    if peer is None:
        return ["-"] * 4
    wrong = f" ({peer['wrong']} wrong)" if peer["wrong"] else ""
    cells = [_us(peer["median_us"]) + wrong, _us(peer["min_us"])]
    return [*cells, f"{peer['ratio']:.3f}", f"{peer['ours_minus_this_us']:+.2f}"]


def _pack(report: dict[str, Any]) -> Table:
    rows = []
    for row in report["results"]:
        who = row["contestants"]
        cells = [row["name"], str(row["arrays"]), str(row["nbytes"]), str(row["wrong"])]
        cells += [_us(who["plan"]["median_us"]), f"{who['plan']['algbw']:.2f}"]
        for peer in ("copyto", "loop"):
            cells += [_us(who[peer]["median_us"]), f"{who[peer]['ratio']:.3f}"]
        rows.append(cells)
    columns = ["what", "arrays", "bytes", "#wrong", "plan us", "GB/s"]
    columns += ["copyto us", "ratio", "loop us", "ratio"]
    return Table(f"pack  {report['options']['rounds']} rounds", columns, rows)


def _startup(report: dict[str, Any]) -> Table:
    rows = [
        [
            row["module"],
            *(f"{row[key]:.2f}" for key in ("median_ms", "min_ms")),
            *(str(row[key]) for key in ("modules", "files")),
        ]
        for row in report["results"]
    ]
    title = (
        f"import  {report['options']['rounds']} rounds, files by {report['files_by']}; "
        f"hpcpar over NumPy {report['over_numpy_ms']:+.2f} ms, ratio {report['ratio']:.3f}"
    )
    return Table(title, ["module", "ms", "min", "modules", "files"], rows)


def _tune(report: dict[str, Any]) -> Table:
    rows = [
        [row["parameter"], str(row["value"]), f"{row['gain']:.3f}", "<-" if row["chosen"] else ""]
        for row in report["results"]
    ]
    title = f"switch points, times as fast as the first of each: {report['cpu']}"
    return Table(title, ["parameter", "value", "gain", "chosen"], rows)


def _ddp(report: dict[str, Any]) -> Table:
    rows = []
    for row in report["results"]:
        peer = row["peer_adds_ms"]
        cells = [row["case"], f"{row['params'] / 1e6:.1f}", str(row["wrong"])]
        cells += [f"{row['alone_ms']:.2f}", f"{row['ours_adds_ms']:.2f}"]
        cells += ["-" if peer is None else f"{peer:.2f}", f"{row['ratio']:.3f}"]
        interval = f"{row['low']:.3f} to {row['high']:.3f}"
        rows.append([*cells, interval, row["target"], row["ratio_of"]])
    columns = ["case", "M params", "#wrong", "alone ms", "ours +ms", "peer +ms", "ratio"]
    columns += ["95 %", "target", "of"]
    title = f"ddp  {report['ranks']} ranks, {report['options']['steps']} steps of each way by turns"
    return Table(title, columns, rows)


def _dtensor(report: dict[str, Any]) -> Table:
    names = ("hpcpar", "numpy", "control", "copyto", "torch")
    rows = [
        [
            row["what"],
            *(_us(row[f"{name}_us"]) if f"{name}_us" in row else "-" for name in names),
            f"{row['figure']:.3f}",
            row["target"],
            row["of"],
        ]
        for row in report["results"]
    ]
    columns = ["what", *(f"{name} us" for name in names), "figure", "target", "of"]
    title = f"dtensor  {report['ranks']} ranks, {report['options']['rounds']} rounds"
    return Table(title, columns, rows)


def _us(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"

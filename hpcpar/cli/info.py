"""``hpcpar info``: what hpcpar sees of MPI, the machine and the job."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from .._core import Node, node_sizes
from ..comm.bootstrap import (
    Bootstrap,
    MpiBootstrap,
    SelfBootstrap,
    library_name,
    load_mpi,
    thread_level,
)
from ..comm.handover import NodeWindows, open_windows
from ..comm.launch import check_world, detect, is_launched
from ..comm.tuning import built_in
from ..comm.window import least_length
from ..errors import HpcparError
from .command import Command
from .facts import (
    Facts,
    blas_facts,
    core_facts,
    device_facts,
    memory_facts,
    mpi_facts,
    native_facts,
    software_facts,
)

__all__ = ["COMMAND", "blas_warning", "job", "node_facts", "node_memory"]

_MANY = 192  # ranks of a large node
_TABLE_BYTES = 4 * 4096  # page tables that map what a rank uses of one window, for one group

_DESCRIPTION = """\
Show MPI, cores, threads, shared memory and devices as hpcpar sees them.

  hpcpar info
  mpiexec -n 4 hpcpar info        # the job too; printed once, by rank 0
  hpcpar info --json
"""


def blas_warning(ranks: Sequence[Facts]) -> str:
    """Say on which host ranks or their BLAS threads exceed the cores; empty when on none.

    Local, pure.

    Parameters
    ----------
    ranks : sequence of dict
        For each rank: host, usable (core numbers) and threads.
    """
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        here = [rank for rank in ranks if rank["host"] == host]
        threads = sum(rank["threads"] for rank in here)
        usable = len(set().union(*(rank["usable"] for rank in here)))
        if len(here) > usable:
            return f"{host}: {len(here)} ranks share {usable} core(s)"
        if threads > usable:
            return (
                f"{host}: {len(here)} rank(s) with {threads} BLAS threads in all on {usable} "
                "core(s); set OMP_NUM_THREADS to cores / ranks"
            )
    return ""


def job(boot: Bootstrap, usable: Sequence[int], threads: int) -> Facts:
    """Collect what only the ranks together know.

    Collective over the ranks of `boot`.

    Returns
    -------
    dict
        size, nodes (host to ranks), cores of each rank, and perhaps a warning.
    """
    mine = {"host": boot.host, "usable": list(usable), "threads": threads}
    every = [json.loads(said) for said in boot.all_gather(json.dumps(mine).encode())]
    nodes: dict[str, list[int]] = {}
    for rank, said in enumerate(every):
        nodes.setdefault(said["host"], []).append(rank)
    warning = blas_warning(every)
    return {
        "size": boot.size,
        "nodes": nodes,
        "cores of ranks": [said["usable"] for said in every],
    } | ({"warning": warning} if warning else {})


def node_memory(sizes: Mapping[str, int], ranks: int, groups: int, lanes: int) -> Facts:
    """Return what the node engine takes of a node's memory when `ranks` use `groups` of them all.

    Local, pure.

    Parameters
    ----------
    sizes : mapping
        What `_core.node_sizes` returns.
    ranks : int
        On the node.
    groups : int
        Groups, each of all ranks.
    lanes : int
        1 for blocking calls with data of more than a few KiB, 2 with asynchronous ones as well.

    Returns
    -------
    dict
        windows: bytes of shared memory; tables: bytes of page tables on top, about.

    Examples
    --------
    >>> node_memory({"head": 10, "control": 2, "slots": 100}, ranks=2, groups=3, lanes=1)["windows"]
    632
    """
    each = sizes["head"] + groups * (sizes["control"] + lanes * sizes["slots"])
    return {"windows": ranks * each, "tables": ranks * ranks * groups * lanes * _TABLE_BYTES}


def node_facts(boot: Bootstrap, env: Mapping[str, str]) -> Facts:
    """Try the node engine's shared memory, and tell what it takes.

    Collective over the ranks of `boot`, which hand each other their windows; alone, a rank makes
    one and listens.
    """
    sizes = node_sizes()
    many = node_memory(sizes, _MANY, 1, 1)
    return {
        **_try_windows(boot, env, sizes),
        "HPCPAR_SHM": env.get("HPCPAR_SHM", "not set"),
        "HPCPAR_NODE": env.get("HPCPAR_NODE", "not set"),
        "rank_bytes": sizes["head"],
        "group_bytes": sizes["control"],
        "group_lane_bytes": sizes["slots"],
        f"{_MANY}_ranks_bytes": many["windows"],
        f"{_MANY}_ranks_tables_bytes": many["tables"],
    }


def _try_windows(boot: Bootstrap, env: Mapping[str, str], sizes: Mapping[str, int]) -> Facts:
    try:
        windows = open_windows(boot, env)
    except HpcparError as error:
        return {"usable": False, "problem": str(error)}
    try:
        if windows.how == "none":
            return {"usable": False, "problem": windows.why}
        problem = _find_problem(windows, sizes)
        reads = _reads_all(boot, windows, usable=not problem)
    finally:
        windows.close()
    if problem:
        return {"usable": False, "problem": problem}
    facts: Facts = {"usable": True, "handed over by": windows.how}
    if boot.size > 1:
        whole = len(windows.ranks) == boot.size
        facts |= {"ranks here": list(windows.ranks), "auto takes": "node" if whole else "mpi"}
        facts |= {"reads their arrays": reads}
    note = {"note": windows.why} if windows.why else {}
    return {**facts, "window_bytes": windows.length, **note}


def _find_problem(windows: NodeWindows, sizes: Mapping[str, int]) -> str:
    try:
        windows.grow(sizes["head"])
    except MemoryError as error:
        return str(error)
    return _unusable(windows, sizes)


def _reads_all(boot: Bootstrap, windows: NodeWindows, usable: bool) -> bool:
    """Whether this rank may read the arrays of all others here. Collective."""
    arrays = tuple(np.frombuffer(buffer, np.uint8) for buffer in windows.buffers)
    tuning = built_in().as_tuple()
    node = Node(arrays, windows.index, -1, (), 0, tuning, False) if usable else None
    boot.all_gather(b"")  # now the others have made theirs
    return node is not None and all(node.reaches(place) for place in range(len(arrays)))


def _unusable(windows: NodeWindows, sizes: Mapping[str, int]) -> str:
    """Say what the engine lacks; empty if nothing."""
    if len(windows.ranks) > sizes["ranks"]:
        return f"{len(windows.ranks)} ranks on one node; the engine takes {sizes['ranks']}"
    needed = least_length(len(windows.ranks))
    if windows.length < needed:
        return (
            f"a window can be {windows.length} bytes long and must be {needed}: raise "
            "the limits on address space and file size (ulimit -v, ulimit -f)"
        )
    return ""


def _collect() -> tuple[int, dict[str, Facts]]:
    cores = core_facts()
    blas = blas_facts(os.environ, len(cores["usable"]))
    boot, launch = _join()
    sections = {
        "software": software_facts(),
        "native core": native_facts(),
        "MPI": mpi_facts() if "problem" not in launch else {},
        "launch": launch,
        "job": job(boot, cores["usable"], blas["threads"]),
        "cores": cores,
        "BLAS": blas,
        "shared memory": memory_facts(),
        "node engine": node_facts(boot, os.environ),
        "devices": device_facts() if boot.rank == 0 else {},
    }
    return boot.rank, {name: section for name, section in sections.items() if section}


def _join() -> tuple[Bootstrap, Facts]:
    """Join the job if there is one; a launch that cannot work is shown, not raised."""
    try:
        launch: Facts = detect(os.environ)._asdict()
        if not is_launched(os.environ):
            check_world(os.environ, 1)
            return SelfBootstrap(), launch
        mpi: Any = load_mpi()
        boot = MpiBootstrap(mpi.COMM_WORLD)
        check_world(os.environ, boot.size, library_name(mpi).rpartition(" ")[0])
    except HpcparError as error:
        return SelfBootstrap(), {"problem": str(error)}
    return boot, {**launch, "rank": boot.rank, "size": boot.size, "threads": thread_level(mpi)}


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _call(args: Namespace) -> int:
    rank, sections = _collect()
    if rank == 0:
        if args.json:
            print(json.dumps(sections, indent=2))
        else:
            _show(sections)
        sys.stdout.flush()
    return 0


def _show(sections: dict[str, Facts]) -> None:
    lines = []
    for name, section in sections.items():
        lines.append((name, ""))
        lines += [(f"  {key}", _text(key, value)) for key, value in section.items()]
    width = max(len(name) for name, _ in lines)
    if find_spec("rich") and sys.stdout.isatty():
        _show_rich(lines, width)
        return
    for name, value in lines:
        print(f"{name:{width}}  {value}".rstrip())


def _show_rich(lines: list[tuple[str, str]], width: int) -> None:
    from rich.console import Console  # heavy and optional
    from rich.text import Text

    console = Console(soft_wrap=True)
    styles = {"  problem": "red", "  warning": "yellow", "  note": "yellow"}
    for name, value in lines:
        head = Text(f"{name:{width}}  ", style="dim" if value else "bold")
        console.print(head.append(value, style=styles.get(name, "")))


def _text(key: str, value: object) -> str:
    if key.endswith("_bytes"):
        assert isinstance(value, int)
        return _readable(value)
    if value in (None, [], ""):
        return "none"
    return str(value)


def _readable(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes / 2**10:.0f} KiB"


COMMAND = Command(
    "info",
    "show MPI, cores, memory and devices as hpcpar sees them",
    _DESCRIPTION,
    _add_arguments,
    _call,
)

"""The `hpcpar` command; one module for each subcommand, each named in one table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata

from ..errors import HpcparError
from . import bench, info, inspect, mpi4py, run, selftest, trace, tune

__all__ = ["main"]

_COMMANDS = (
    bench.COMMAND,
    info.COMMAND,
    inspect.COMMAND,
    mpi4py.COMMAND,
    run.COMMAND,
    selftest.COMMAND,
    trace.COMMAND,
    tune.COMMAND,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `hpcpar` command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        Exit code: 0, or 2 for a mistake in the request, or the subcommand's own.

    Examples
    --------
    >>> main(["info", "--json"])  # doctest: +SKIP
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["run"], ["mpi4py"]):
        words = run.separate(words)
    args = _parser().parse_args(words)
    try:
        return int(args.call(args))
    except HpcparError as error:
        print(f"hpcpar {args.command}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hpcpar",
        description="Communication and parallel training for NumPy and CuPy arrays over MPI.",
        epilog="`hpcpar COMMAND --help` tells more, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"hpcpar {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(call=command.call)
    return parser


def _version() -> str:
    try:
        return metadata.version("hpcpar")
    except metadata.PackageNotFoundError:
        return "(not installed)"

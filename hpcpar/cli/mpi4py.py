"""``hpcpar mpi4py``: run a program that uses mpi4py with our collectives under its calls."""

from __future__ import annotations

import sys
import traceback
from argparse import ArgumentParser, Namespace

from ..errors import HpcparError
from .command import Command

__all__ = ["COMMAND"]

_DESCRIPTION = """\
Run a Python program that uses mpi4py, with `hpcpar.interop.mpi4py.Comm` in the place of
MPI.COMM_WORLD: its collective buffer verbs go through shared memory where all ranks are on one
machine, everything else through MPI as before. The program need not know.

  mpiexec -n 4 hpcpar mpi4py script.py --its options
  mpiexec -n 4 hpcpar mpi4py -m package.module
  mpiexec -n 4 hpcpar mpi4py -c "from mpi4py import MPI; print(type(MPI.COMM_WORLD))"

An exception that nobody catches ends the whole job, as under `python -m mpi4py`.
"""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "program", nargs="+", metavar="PROGRAM", help="script.py, -m module or -c command, ..."
    )


def _call(args: Namespace) -> int:
    from mpi4py.run import main

    from ..interop.mpi4py import patch

    patch()
    sys.argv[1:] = args.program
    try:
        main()
    except HpcparError:  # the program's, which shows where it was
        traceback.print_exc()
        return 1
    return 0


COMMAND = Command(
    "mpi4py",
    "run a program of mpi4py's with faster collectives",
    _DESCRIPTION,
    _add_arguments,
    _call,
)

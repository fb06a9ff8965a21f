"""``hpcpar bench``: measure the verbs, packing and the import, each result checked."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from functools import partial
from typing import Any

from ..bench import collectives, ddp, dtensor, pack, startup
from ..bench.cases import MODES, VERBS
from ..bench.formulas import parse_bytes, size_steps
from ..comm.group import Group
from ..comm.launch import is_launched
from ..comm.world import init, shutdown
from ..errors import ArgumentError
from . import run
from .command import Command
from .report import check_place, show

__all__ = ["COMMAND"]

_DESCRIPTION = """\
Measure, and check every result that is timed.

  hpcpar bench collectives -n 2 --verbs all_reduce,all_gather -b 4 -e 25M -f 4
  mpiexec -n 2 hpcpar bench collectives --check off --peers mpi4py,gloo --json out.json
  hpcpar bench ddp -n 2 --cases gpt,small
  hpcpar bench dtensor -n 2 --torch
  hpcpar bench pack
  hpcpar bench import

The exit code is 1 if a result was wrong, 2 for a mistake in the request.
"""
_COLLECTIVES = f"""\
Time verbs beside raw mpi4py, perhaps Gloo, and np.copyto of the same bytes (the control).

Contestants take turns in short rounds. A round's time is the mean of its calls on the slowest
rank; shown are the median and the fastest round in microseconds, the 99th percentile of single
calls, algbw and busbw in GB/s (10^9 bytes), and the number of wrong elements. ratio is peer / ours
and ours+us is ours - peer, each the median over rounds. place is "out" for a result array of its
own, "in" for in place.

Verbs: {", ".join(VERBS)}.
Bytes are those of one rank's array, or of the whole that is cut or joined.
"""
_PACK = """\
Time packing the gradients of a GPT into one flat buffer and back, and 1,000 arrays of 1 KiB,
beside np.copyto of the same bytes and beside a Python loop of copies. ratio is theirs / ours.
"""
_IMPORT = """\
Time `import hpcpar` beside `import numpy` in fresh processes, and count the files they open.
"""
_DDP = """\
Time what data parallel training adds to a step: its step minus the step alone, of the same round.

gpt: a PyTorch transformer of 25 million parameters under our DDP and under torch's over Gloo, and
small: one of 1,000 small parameters; ratio is ours / torch's. alone: our GPT under a DDP of one
rank; ratio is what that adds over the step. sleep: layers that sleep; ratio is what is hidden of
the communication that can be, all but the last bucket's. gpt and small need torch.
"""
_DTENSOR = """\
Time distributed arrays beside NumPy, perhaps beside torch's DTensor over Gloo.

overhead: microseconds that operations without traffic add to NumPy's. move: redistributions of
4 MiB. stencil: a five-point stencil by slices beside each rank's share alone, at the same time.
sort: 2^24 float64 beside np.sort on one rank.
"""
#: Flag, and what argparse is told; all but -n and --json travel to the ranks that -n starts.
_FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--verbs",), {"default": "all_reduce", "metavar": "A,B", "help": "verbs, or all"}),
    (("-b", "--min-bytes"), {"default": "4", "metavar": "SIZE", "help": "smallest: 4, 64K, 25M"}),
    (("-e", "--max-bytes"), {"default": "1M", "metavar": "SIZE", "help": "largest"}),
    (("-f", "--factor"), {"type": int, "default": 4, "help": "between one size and the next"}),
    (("-w", "--warmup"), {"type": int, "default": 5, "help": "calls before the clock runs"}),
    (("--rounds",), {"type": int, "default": 9, "help": "turns of each contestant"}),
    (("--dtype",), {"default": "float32", "help": "of the elements"}),
    (("--op",), {"default": "sum", "help": "of the verbs that reduce"}),
    (("--root",), {"type": int, "default": 0, "help": "of the verbs that have one"}),
    (("--check",), {"choices": ("off", "auto", "full"), "default": "auto", "help": "as in init"}),
    (("--backend",), {"default": "auto", "help": "as in init"}),
    (
        ("--peers",),
        {"default": "auto", "metavar": "A,B", "help": "mpi4py, gloo; none; auto: mpi4py on MPI"},
    ),
)


def _add_arguments(parser: ArgumentParser) -> None:
    benches = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    for name, description, add, measure in (
        ("collectives", _COLLECTIVES, _add_collectives, _collectives),
        ("ddp", _DDP, _add_ddp, _ddp),
        ("dtensor", _DTENSOR, _add_dtensor, _dtensor),
        ("pack", _PACK, _add_pack, _pack),
        ("import", _IMPORT, _add_import, _import),
    ):
        sub = benches.add_parser(
            name,
            help=description.split("\n")[0],
            description=description,
            formatter_class=RawDescriptionHelpFormatter,
        )
        add(sub)
        sub.add_argument(
            "--json", metavar="FILE", help="write all figures; - prints them instead of the table"
        )
        sub.set_defaults(measure=measure)


def _add_collectives(parser: ArgumentParser) -> None:
    parser.add_argument("-n", type=int, metavar="N", help="start N ranks, as hpcpar run does")
    for flags, told in _FLAGS:
        note = f" (default {told['default']})"
        parser.add_argument(*flags, **{**told, "help": told["help"] + note})
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--in-place", action="store_true", help="only in place")
    place.add_argument("--out-of-place", action="store_true", help="only out of place")
    parser.add_argument(
        "--symmetric", action="store_true", help="give our verbs symmetric arrays, not the peers"
    )


def _add_ddp(parser: ArgumentParser) -> None:
    parser.add_argument("-n", type=int, metavar="N", help="start N ranks, as hpcpar run does")
    cases = ",".join(ddp.CASES)
    parser.add_argument("--cases", default=cases, metavar="A,B", help=f"default {cases}")
    parser.add_argument("--steps", type=int, default=40, help="of each way (default 40)")


def _add_dtensor(parser: ArgumentParser) -> None:
    parser.add_argument("-n", type=int, metavar="N", help="start N ranks, as hpcpar run does")
    cases = ",".join(dtensor.CASES)
    parser.add_argument("--cases", default=cases, metavar="A,B", help=f"default {cases}")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (default 9)")
    parser.add_argument("--torch", action="store_true", help="torch's DTensor takes part")


def _add_pack(parser: ArgumentParser) -> None:
    chosen = pack.Options()
    for name in ("layers", "hidden", "vocab", "rounds", "warmup"):
        value = getattr(chosen, name)
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")


def _add_import(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=11, help="processes of each (default 11)")


def _call(args: Namespace) -> int:
    check_place(args.json)
    return int(args.measure(args))


def _collectives(args: Namespace) -> int:
    options = _options(args)
    if args.n is not None:
        return _start(args.n, ["bench", "collectives", *_words(args)])
    group = init(backend=args.backend, check=args.check)
    return _on_ranks(group, args, partial(collectives.run, options=options))


def _options(args: Namespace) -> collectives.Options:
    smallest, largest = parse_bytes(args.min_bytes), parse_bytes(args.max_bytes)
    return collectives.Options(
        verbs=tuple(VERBS) if args.verbs == "all" else tuple(args.verbs.split(",")),
        sizes=size_steps(smallest, largest, args.factor),
        dtype=args.dtype,
        op=args.op,
        root=args.root,
        modes=MODES[1:] if args.in_place else MODES[:1] if args.out_of_place else MODES,
        rounds=args.rounds,
        warmup=args.warmup,
        peers=tuple(args.peers.split(",")),
        symmetric=args.symmetric,
    )


def _words(args: Namespace) -> list[str]:
    """Return the command line of a rank: what was asked, without -n."""
    words = []
    for flags, _ in _FLAGS:
        name = flags[-1]
        words += [name, str(getattr(args, name.lstrip("-").replace("-", "_")))]
    words += ["--in-place"] * args.in_place + ["--out-of-place"] * args.out_of_place
    words += ["--symmetric"] * args.symmetric
    return [*words, *(["--json", args.json] if args.json is not None else [])]


def _ddp(args: Namespace) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.n is not None:
        words = ["bench", "ddp", "--cases", args.cases, "--steps", str(args.steps)]
        return _start(args.n, words + (["--json", args.json] if args.json else []))
    return _on_ranks(init(), args, partial(ddp.run, options=_ddp_options(args)))


def _ddp_options(args: Namespace) -> ddp.Options:
    return ddp.Options(tuple(args.cases.split(",")), args.steps)


def _dtensor(args: Namespace) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.n is not None:
        words = ["bench", "dtensor", "--cases", args.cases, "--rounds", str(args.rounds)]
        words += ["--torch"] * args.torch
        return _start(args.n, words + (["--json", args.json] if args.json else []))
    options = dtensor.Options(tuple(args.cases.split(",")), args.rounds, args.torch)
    return _on_ranks(init(), args, partial(dtensor.run, options=options))


def _start(size: int, words: list[str]) -> int:
    """Start the ranks that -n asks for, with this command line."""
    if is_launched(os.environ):
        raise ArgumentError(f"-n {size}: this is a job already. Leave -n to mpiexec.")
    return run.start_own(size, words)


def _on_ranks(group: Group, args: Namespace, measure: Callable[..., dict[str, Any]]) -> int:
    """Measure on all ranks; rank 0 shows it."""
    report = measure(group, progress=_Progress().say if group.rank == 0 else None)
    code = int(group.broadcast(show(report, args.json) if group.rank == 0 else 0))
    shutdown()
    return code


def _pack(args: Namespace) -> int:
    options = pack.Options(args.layers, args.hidden, args.vocab, args.rounds, args.warmup)
    return show(pack.run(options, _alone("pack")), args.json)


def _import(args: Namespace) -> int:
    return show(startup.run(args.rounds, _alone("import")), args.json)


def _alone(name: str) -> Callable[[str], None]:
    if is_launched(os.environ):
        raise ArgumentError(f"{name}: measures one process. Run it without mpiexec.")
    return _Progress().say


class _Progress:
    """Says on stderr what is done, but not more than once in a second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1

    def say(self, line: str) -> None:
        """Print a line if the last one is old enough."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1
            print(f"hpcpar bench: {line}", file=sys.stderr, flush=True)


COMMAND = Command(
    "bench",
    "measure the verbs beside mpi4py, training steps, distributed arrays, the import",
    _DESCRIPTION,
    _add_arguments,
    _call,
)

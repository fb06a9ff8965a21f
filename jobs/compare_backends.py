"""torch.distributed over our backend beside Gloo: all_reduce, and a step through DDP and FSDP2.

    mpiexec -n 2 python jobs/compare_backends.py
    mpiexec -n 2 python jobs/compare_backends.py --steps 100 --width 2500 --layers 4

The two backends take turns within each round, and so do copies of one model: without communication,
and through DDP and FSDP2 over each. What a way adds is its step minus the step without, on the
slowest rank; without is, for DDP, DDP whose hook reduces nothing, and for FSDP2 the bare model.
Needs torch; leave the machine alone meanwhile.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy is imported

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import hpcpar.interop.torch
from hpcpar.bench.steps import by_turns, median_interval

BACKENDS = ("hpcpar", "gloo")
SIZES = (4, 1 << 16, 1 << 20, 25 << 20)


def make_model(width: int, layers: int) -> Any:
    """Return a multilayer perceptron, the same on every rank."""
    torch.manual_seed(0)
    pairs = [(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(layers)]
    return torch.nn.Sequential(*(part for pair in pairs for part in pair))


def step_of(model: Any, x: Any) -> None:
    """Take a step of a model that communicates by itself, or not at all."""
    model.zero_grad(set_to_none=True)
    (model(x) ** 2).mean().backward()


def compare_all_reduce(groups: dict[str, Any], rounds: int) -> list[str]:
    """Return a line for each size: microseconds of both, and how many times as fast ours is."""
    lines = []
    for nbytes in SIZES:
        x = torch.zeros(nbytes // 4)
        repeats = max(3, min(300, (8 << 20) // nbytes))
        calls = [partial(dist.all_reduce, x, group=groups[name]) for name in BACKENDS]
        seconds = by_turns(groups["hpcpar"].group, calls, rounds, repeats)
        ours, theirs = 1e6 * np.median(seconds, axis=0)
        ratio = np.median(seconds[:, 0] / seconds[:, 1])
        lines.append(
            f"all_reduce {nbytes:>9} B  {ours:10.1f} us, gloo {theirs:10.1f} us: {ratio:.3f}"
        )
    return lines


def wrapped(model: Any, kind: str, group: Any) -> Any:
    """Return a model that communicates through DDP or FSDP2 over a group."""
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    from torch.distributed.fsdp import fully_shard

    mesh = dist.DeviceMesh.from_group(group, "cpu")
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def without_words(model: Any, group: Any) -> Any:
    """Return a model in DDP that fills its buckets and reduces nothing."""

    def hook(_: Any, bucket: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    # torch looks at the types themselves, not at their names.
    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    quiet = wrapped(model, "ddp", group)
    quiet.register_comm_hook(None, hook)
    return quiet


def compare_steps(groups: dict[str, Any], args: argparse.Namespace) -> list[str]:
    """Return a line for DDP and one for FSDP2: what each backend adds to a step."""
    lines = []
    for kind in ("ddp", "fsdp2"):
        alone, *models = (make_model(args.width, args.layers) for _ in range(3))
        models = [wrapped(m, kind, groups[n]) for m, n in zip(models, BACKENDS, strict=True)]
        models.append(without_words(alone, groups["gloo"]) if kind == "ddp" else alone)
        torch.manual_seed(1 + dist.get_rank())
        x = torch.randn(args.batch, args.width)
        steps = [partial(step_of, model, x) for model in models]
        seconds = 1e3 * by_turns(groups["hpcpar"].group, steps, args.steps)
        ours, theirs = (seconds[:, i] - seconds[:, 2] for i in (0, 1))
        ratio, low, high = median_interval(seconds, ratio_of)
        lines.append(
            f"{kind:<6} step alone {np.median(seconds[:, 2]):.1f} ms; hpcpar adds "
            f"{np.median(ours):.1f}, gloo {np.median(theirs):.1f}: "
            f"{ratio:.3f} ({low:.3f} to {high:.3f})"
        )
    return lines


def ratio_of(rows: Any) -> Any:
    """Return what ours adds over what Gloo adds, of rows (ours, Gloo's, without)."""
    ours, theirs = (np.median(rows[..., i] - rows[..., 2], axis=-1) for i in (0, 1))
    return ours / theirs


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--width", type=int, default=1000, help="of each layer (default 1000)")
    parser.add_argument("--layers", type=int, default=25, help="default 25: 25 million parameters")
    parser.add_argument("--batch", type=int, default=32, help="rows of each rank (default 32)")
    parser.add_argument("--steps", type=int, default=40, help="of each way (default 40)")
    parser.add_argument("--rounds", type=int, default=9, help="of all_reduce (default 9)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(hpcpar.interop.torch.NAME)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    lines = compare_all_reduce(groups, args.rounds) + compare_steps(groups, args)
    if dist.get_rank() == 0:
        print("\n".join([f"{dist.get_world_size()} ranks, torch {torch.__version__}", *lines]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

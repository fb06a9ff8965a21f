"""What data parallel training adds to a step of a PyTorch model: hpcpar's DDP beside torch's own.

    mpiexec -n 2 python jobs/compare_ddp.py
    mpiexec -n 2 python jobs/compare_ddp.py --steps 100 --width 2500 --layers 4

Three copies of one model take a step by turns: without communication, through `hp.DDP` (gradients
as NumPy views of the tensors), and through torch's DistributedDataParallel over Gloo. What a way
adds is its step minus the step without, both on the slowest rank and of the same round. Needs
torch; leave the machine alone meanwhile.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy is imported

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import hpcpar as hp
from hpcpar.parallel import DDP

WAYS = ("alone", "hpcpar", "torch")


def make_model(width: int, layers: int) -> Any:
    """Return a multilayer perceptron, the same on every rank."""
    torch.manual_seed(0)
    pairs = [(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(layers)]
    return torch.nn.Sequential(*(part for pair in pairs for part in pair))


def through_hpcpar(model: Any) -> Callable[[Any], None]:
    """Return a step whose gradients `hp.DDP` averages, and puts back into the tensors."""
    params = {name: p.detach().numpy() for name, p in model.named_parameters()}
    ddp = DDP(params)
    open_step: list[Any] = []

    def hook_of(name: str) -> Callable[[Any], None]:
        def hook(p: Any) -> None:
            open_step[0].put(name, p.grad.numpy())
            p.grad = None  # it lies in its bucket now: the next layer's may have the memory

        return hook

    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(hook_of(name))

    def step(x: Any) -> None:
        model.zero_grad(set_to_none=True)
        with ddp.step() as opened:
            open_step[:] = [opened]
            loss_of(model, x).backward()
        for name, p in model.named_parameters():
            p.grad = torch.from_numpy(ddp.grads[name])

    return step


def through(model: Any) -> Callable[[Any], None]:
    """Return a step of a model that communicates by itself, or not at all."""

    def step(x: Any) -> None:
        model.zero_grad(set_to_none=True)
        loss_of(model, x).backward()

    return step


def loss_of(model: Any, x: Any) -> Any:
    """Return a loss."""
    return (model(x) ** 2).mean()


def start_gloo(group: hp.Group) -> None:
    """Start torch's process group. Collective."""
    port = 0
    if group.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    place = f"tcp://127.0.0.1:{int(group.broadcast(port))}"
    dist.init_process_group("gloo", init_method=place, rank=group.rank, world_size=group.size)


def by_turns(
    group: hp.Group, calls: Sequence[Callable[[], Any]], rounds: int, repeats: int = 1
) -> Any:
    """Return seconds of each call by round, of the slowest rank. Collective."""
    seconds = np.zeros((rounds + 3, len(calls)))
    for turn in range(len(seconds)):
        for at in np.roll(range(len(calls)), turn):
            group.barrier()
            began = time.perf_counter()
            for _ in range(repeats):
                calls[at]()
            seconds[turn, at] = (time.perf_counter() - began) / repeats
        if group.rank == 0 and sys.stderr.isatty():
            print(f"\rround {turn + 1} of {len(seconds)}", end="", file=sys.stderr)
    return group.all_reduce(seconds[3:], "max")


def report(seconds: Any) -> str:
    """Return the medians, what each way adds, and bootstrap intervals of 95 %."""
    random = np.random.default_rng(0)
    picks = random.integers(len(seconds), size=(2000, len(seconds)))

    def figures(rows: Any) -> Any:
        ours, theirs = (np.median(rows[..., i] - rows[..., 0], axis=-1) for i in (1, 2))
        shares = ours / np.median(rows[..., 1], axis=-1), theirs / np.median(rows[..., 2], axis=-1)
        return np.array([1e3 * ours, 1e3 * theirs, 100 * shares[0], 100 * shares[1], ours / theirs])

    middle, spread = figures(seconds), figures(seconds[picks])
    low, high = np.quantile(spread, [0.025, 0.975], axis=-1)
    names = (
        "hpcpar adds, ms",
        "torch adds, ms",
        "hpcpar's share, %",
        "torch's share, %",
        "hpcpar / torch",
    )
    lines = [f"step alone {1e3 * np.median(seconds[:, 0]):.1f} ms, {len(seconds)} rounds"]
    for row in zip(names, middle, low, high, strict=True):
        lines.append("{:<18} {:8.2f}  ({:.2f} to {:.2f})".format(*row))
    return "\n".join(lines)


def check_equal(group: hp.Group, models: dict[str, Any]) -> None:
    """Raise if the two ways have found other gradients."""
    for ours, theirs in zip(
        models["hpcpar"].parameters(), models["torch"].parameters(), strict=True
    ):
        if not torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-8):
            raise SystemExit(f"rank {group.rank}: hpcpar's gradients are not torch's.")


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how large the model is, and how often it steps."""
    parser.add_argument("--width", type=int, default=1000, help="of each layer (default 1000)")
    parser.add_argument("--layers", type=int, default=25, help="default 25: 25 million parameters")
    parser.add_argument("--batch", type=int, default=32, help="rows of each rank (default 32)")
    parser.add_argument("--steps", type=int, default=40, help="of each way (default 40)")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_sizes(parser)
    args = parser.parse_args()
    group = hp.init()
    torch.set_num_threads(1)
    start_gloo(group)
    models = {way: make_model(args.width, args.layers) for way in WAYS}
    wrapped = torch.nn.parallel.DistributedDataParallel(models["torch"])
    steps = {
        "alone": through(models["alone"]),
        "hpcpar": through_hpcpar(models["hpcpar"]),
        "torch": through(wrapped),
    }
    torch.manual_seed(1 + group.rank)
    x = torch.randn(args.batch, args.width)
    seconds = by_turns(group, [partial(steps[way], x) for way in WAYS], args.steps)
    check_equal(group, models)
    if group.rank == 0:
        count = sum(p.numel() for p in models["torch"].parameters())
        print(
            f"\n{count / 1e6:.1f} million parameters, {group.size} ranks, torch {torch.__version__}"
        )
        print(report(seconds), flush=True)
    dist.destroy_process_group()
    hp.shutdown()


if __name__ == "__main__":
    main()

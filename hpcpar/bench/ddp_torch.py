"""Steps of PyTorch models under our DDP, beside torch's own over Gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .._arrays import Array
from ..comm.group import Group
from ..interop.torch import attach, params_of
from ..parallel import DDP
from .steps import by_turns

__all__ = ["compare", "make_model", "start_gloo"]

_TOKENS, _HIDDEN = 64, 512


def make_model(case: str) -> Any:
    """Return a model, the same on every rank: 25 million parameters, or 1,000 small ones."""
    torch.manual_seed(0)
    if case == "small":
        pairs = [(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(500)]
        return torch.nn.Sequential(*(part for pair in pairs for part in pair))
    layers = [
        torch.nn.TransformerEncoderLayer(
            _HIDDEN, 8, 4 * _HIDDEN, dropout=0.0, batch_first=True, norm_first=True
        )
        for _ in range(8)
    ]
    return torch.nn.Sequential(*layers)


def compare(
    case: str, group: Group, steps: int, progress: Callable[[str], None] | None
) -> tuple[Array, int, int]:
    """Time a step alone, under our DDP and under torch's, by turns. Collective.

    Returns
    -------
    seconds : ndarray
        Shape ``(steps, 3)``.
    count, wrong : int
        Parameters, and gradients in which the two DDPs differ by more than 1e-6 of the largest.
    """
    torch.set_num_threads(1)
    start_gloo(group)
    alone, mine, other = (make_model(case) for _ in range(3))
    attached = attach(DDP(params_of(mine), group=group), mine)
    theirs = torch.nn.parallel.DistributedDataParallel(other)
    torch.manual_seed(1 + group.rank)
    x = torch.randn(1, _TOKENS, _HIDDEN) if case == "gpt" else torch.randn(8, 32)

    def plain(model: Any) -> None:
        model.zero_grad(set_to_none=True)
        (model(x) ** 2).mean().backward()

    def ours() -> None:
        with attached.step():
            (mine(x) ** 2).mean().backward()

    ways: list[Callable[[], Any]] = [partial(plain, alone), ours, partial(plain, theirs)]
    seconds = by_turns(group, ways, steps, progress=progress)
    largest = max(float(q.grad.abs().max()) for q in other.parameters())
    pairs = zip(mine.parameters(), other.parameters(), strict=True)
    wrong = sum(float((p.grad - q.grad).abs().max()) > 1e-6 * largest for p, q in pairs)
    attached.detach()
    dist.destroy_process_group()
    return seconds, sum(p.numel() for p in mine.parameters()), int(group.all_reduce(wrong, "max"))


def start_gloo(group: Group) -> None:
    """Start torch's process group. Collective."""
    port = 0
    if group.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    place = f"tcp://127.0.0.1:{int(group.broadcast(port))}"
    dist.init_process_group("gloo", init_method=place, rank=group.rank, world_size=group.size)

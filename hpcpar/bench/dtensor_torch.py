"""The same operations on torch's DTensor over Gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ..comm.group import Group
from .ddp_torch import start_gloo

__all__ = ["contestants"]


def contestants(name: str, group: Group) -> dict[str, Callable[[], object]]:
    """Return torch's calls for a case: "add", "S0 -> S1" or "S0 -> R". Collective at first."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        start_gloo(group)
    mesh = init_device_mesh("cpu", (group.size,))
    if name == "add":
        plain = torch.ones(8, 64, dtype=torch.float64)
        x: Any = DTensor.from_local(plain, mesh, [Shard(0)])
        return {"torch": lambda: x + x, "torch plain": lambda: plain + plain}
    y: Any = distribute_tensor(torch.ones(1024, 1024), mesh, [Shard(0)])
    target = Shard(1) if name == "S0 -> S1" else Replicate()
    return {"torch": lambda: y.redistribute(mesh, [target])}

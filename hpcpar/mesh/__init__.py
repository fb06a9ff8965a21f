"""Where ranks are: meshes of named axes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from ..comm.group import Group
from .costs import Costs
from .device_mesh import DeviceMesh, init_device_mesh
from .exchange import Exchange, plan_exchange
from .layout import Layout
from .placement import Partial, Replicate, Shard
from .redistribute import redistribute

__all__ = [
    "Costs",
    "DeviceMesh",
    "Exchange",
    "Layout",
    "Partial",
    "Replicate",
    "Shard",
    "init_device_mesh",
    "plan_exchange",
    "redistribute",
]


class _Callable(ModuleType):
    """``hpcpar.mesh(...)`` is short for `init_device_mesh`."""

    def __call__(
        self, shape: Sequence[int], names: Sequence[str], *, group: Group | None = None
    ) -> DeviceMesh:
        return init_device_mesh(shape, names, group=group)


sys.modules[__name__].__class__ = _Callable

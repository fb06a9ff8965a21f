"""Where ranks are: meshes of named axes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from ..comm.group import Group
from .device_mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]


class _Callable(ModuleType):
    """``hpcpar.mesh(...)`` is short for `init_device_mesh`."""

    def __call__(
        self, shape: Sequence[int], names: Sequence[str], *, group: Group | None = None
    ) -> DeviceMesh:
        return init_device_mesh(shape, names, group=group)


sys.modules[__name__].__class__ = _Callable

"""hpcpar: MPI-style communication and parallel training for NumPy and CuPy arrays.

``import hpcpar as hp; hp.init(); hp.all_reduce(x)``. Importing starts no MPI. Rooms that a program
may not need are loaded when they are first named: thousands of ranks import at once.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import errors
from ._version import __version__
from .comm.attach import as_group
from .comm.group import Group
from .comm.message_requests import Message
from .comm.object_verbs import (
    all_gather_object,
    all_to_all_object,
    broadcast_object,
    gather_object,
    recv_object,
    scatter_object,
    send_object,
)
from .comm.point_verbs import probe, recv, send, sendrecv
from .comm.reductions import premul_sum
from .comm.root import log, on_root, root_first
from .comm.verbs import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    permute,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)
from .comm.work import Work
from .comm.world import init, rank, shutdown, size, world

if _TYPE_CHECKING:
    from . import checkpoint, data, debug, dtensor, mesh, metrics, nn, optim, random
    from .comm import symmetric
    from .comm.node_shared import node_shared
    from .dtensor.array import DTensor
    from .dtensor.factories import distribute
    from .mesh.device_mesh import DeviceMesh, init_device_mesh
    from .mesh.exchange import plan_exchange
    from .mesh.placement import Partial, Replicate, Shard
    from .parallel.ddp import DDP

__all__ = [
    "DDP",
    "DTensor",
    "DeviceMesh",
    "Group",
    "Message",
    "Partial",
    "Replicate",
    "Shard",
    "Work",
    "__version__",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_object",
    "as_group",
    "barrier",
    "broadcast",
    "broadcast_object",
    "checkpoint",
    "data",
    "debug",
    "distribute",
    "dtensor",
    "errors",
    "gather",
    "gather_object",
    "init",
    "init_device_mesh",
    "log",
    "mesh",
    "metrics",
    "nn",
    "node_shared",
    "on_root",
    "optim",
    "permute",
    "plan_exchange",
    "premul_sum",
    "probe",
    "random",
    "rank",
    "recv",
    "recv_object",
    "reduce",
    "reduce_scatter",
    "root_first",
    "scan",
    "scatter",
    "scatter_object",
    "send",
    "send_object",
    "sendrecv",
    "shutdown",
    "size",
    "symmetric",
    "world",
]

_ROOMS = {
    "DDP": ".parallel.ddp",
    "DTensor": ".dtensor.array",
    "DeviceMesh": ".mesh.device_mesh",
    "Partial": ".mesh.placement",
    "Replicate": ".mesh.placement",
    "Shard": ".mesh.placement",
    "checkpoint": ".checkpoint",
    "data": ".data",
    "debug": ".debug",
    "distribute": ".dtensor.factories",
    "dtensor": ".dtensor",
    "init_device_mesh": ".mesh.device_mesh",
    "mesh": ".mesh",
    "metrics": ".metrics",
    "nn": ".nn",
    "node_shared": ".comm.node_shared",
    "optim": ".optim",
    "plan_exchange": ".mesh.exchange",
    "random": ".random",
    "symmetric": ".comm.symmetric",
}


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module 'hpcpar' has no attribute {name!r}")
    room = _import_module(_ROOMS[name], __name__)
    found = globals()[name] = getattr(room, name, room)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

"""hpcpar: MPI-style communication and parallel training for NumPy and CuPy arrays.

``import hpcpar as hp; hp.init(); hp.all_reduce(x)``. Importing starts no MPI.
"""

from . import checkpoint, data, debug, errors, nn, optim, random
from ._version import __version__
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
from .comm.world import as_group, init, rank, shutdown, size, world
from .parallel.ddp import DDP

__all__ = [
    "DDP",
    "Group",
    "Message",
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
    "errors",
    "gather",
    "gather_object",
    "init",
    "log",
    "nn",
    "on_root",
    "optim",
    "permute",
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
    "world",
]

"""What this process can see of its machine: cores, threads, shared memory, devices, libraries."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from ..comm.bootstrap import library_name, load_mpi
from ..comm.libmpi import find_mpiexec, foreign_mpiexec, libmpi_path
from ..errors import HpcparError

__all__ = [
    "Facts",
    "blas_facts",
    "core_facts",
    "device_facts",
    "memory_facts",
    "mpi_facts",
    "native_facts",
    "software_facts",
]

Facts = dict[str, Any]
"""One section: plain values by name, ready for JSON."""

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def software_facts() -> Facts:
    """Tell versions of Python and NumPy. Local."""
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "numpy": np.__version__,
    }


def native_facts() -> Facts:
    """Tell how the compiled core was built. Local."""
    try:
        core = import_module("hpcpar._core")
    except ImportError as error:
        return {"problem": f"the compiled core is missing: {error}"}
    return {**core.build_info(), "simd": core.cpu_features()}


def mpi_facts() -> Facts:
    """Tell which MPI this Python uses, without starting it. Local."""
    try:
        module: Any = load_mpi(start=False)
    except HpcparError as error:
        return {"problem": str(error)}
    own = find_mpiexec()
    facts: Facts = {
        "library": library_name(module),
        "mpi4py": metadata.version("mpi4py"),
        "path": libmpi_path(Path("/proc/self/maps").read_text()),
        "mpiexec": own,
    }
    foreign = foreign_mpiexec(shutil.which("mpiexec"), own)
    return facts | ({"note": foreign} if foreign else {})


def core_facts() -> Facts:
    """Tell the cores of the machine and those that this process may use. Local."""
    mine = sorted(os.sched_getaffinity(0))
    there = os.cpu_count() or len(mine)
    return {"machine": there, "usable": mine, "bound": len(mine) < there}


def blas_facts(env: Mapping[str, str], usable: int) -> Facts:
    """Tell NumPy's BLAS and how many threads each process lets it start. Local.

    Parameters
    ----------
    env : mapping
        The environment.
    usable : int
        Cores that the process may use: the number of threads when no variable says otherwise.
    """
    config: Any = np.show_config(mode="dicts")
    name = config["Build Dependencies"]["blas"].get("name", "unknown")
    for variable in (*_THREAD_VARIABLES, "OMP_NUM_THREADS"):
        # OMP_NUM_THREADS may hold a list, one entry for each nesting level.
        first = env.get(variable, "").partition(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return {"library": name, "threads": int(first), "set by": variable}
    return {"library": name, "threads": usable, "set by": None}


def memory_facts() -> Facts:
    """Tell the room for shared memory and the way to it. Local."""
    try:
        room = os.statvfs("/dev/shm")
        total, free = (blocks * room.f_frsize for blocks in (room.f_blocks, room.f_bavail))
    except OSError:
        total = free = 0
    return {"memfd": _memfd_works(), "dev_shm_bytes": total, "dev_shm_free_bytes": free}


def device_facts() -> Facts:
    """Tell GPUs, CuPy and NCCL, as far as they are there. Local."""
    return {"gpus": _gpus(), "cupy": _quietly(_cupy), "nccl": _quietly(_nccl)}


def _memfd_works() -> bool:
    try:
        os.close(os.memfd_create("hpcpar-info", os.MFD_CLOEXEC))
    except (OSError, AttributeError):
        return False
    return True


def _gpus() -> list[str]:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    query = [smi, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def _quietly(look: Callable[[], str | None]) -> str | None:
    """Ask an optional GPU package, which may warn or fail in many ways without a driver."""
    if importlib.util.find_spec("cupy") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return look()
        except Exception as error:  # a report must not die of what it reports
            return f"fails: {error}"


def _cupy() -> str | None:
    cupy = import_module("cupy")
    usable = "usable" if cupy.cuda.is_available() else "no usable device"
    return f"{cupy.__version__}, {usable}"


def _nccl() -> str | None:
    nccl = import_module("cupy.cuda.nccl")
    if not nccl.available:
        return None
    maps = Path("/proc/self/maps").read_text()
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libnccl.so" in line}
    return f"{nccl.get_version()} {' '.join(sorted(paths))}"

"""Where figures come from: versions and machine, written beside every result."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from .._core import cpu_features
from .._version import __version__
from ..comm.bootstrap import library_name

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """Return versions, cores, load and thread settings of this process. Local."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "hpcpar": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi": None if mpi is None else library_name(mpi),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "simd": cpu_features(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

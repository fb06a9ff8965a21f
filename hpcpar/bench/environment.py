"""Where figures come from: versions and machine, written beside every result."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from typing import Any

import numpy as np

from .._core import cpu_features
from .._version import __version__
from ..comm.bootstrap import library_name
from ..comm.tuning_file import cpu_name

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
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "simd": cpu_features(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }

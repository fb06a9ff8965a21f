"""One checkpoint is one folder: arrays in safetensors, numbers and strings in JSON, checksums.

A folder gets its name only when it is complete and on disk; a crash leaves at most a hidden
temporary folder behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from .._arrays import Array, as_bytes, contiguous
from ..errors import ArgumentError, BackendUnavailable, CheckpointError

__all__ = ["Leaf", "check_state", "find", "publish", "published", "read"]

Leaf: TypeAlias = Array | int | float | str | bool

_ARRAYS = "arrays.safetensors"
_STATE = "state.json"
_FORMAT = 1
_NAME = re.compile(r"step_(\d{8,})(?:\.(\d+))?")
#: What safetensors stores as it is; other dtypes travel as bytes, named in the JSON.
_NATIVE = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64"),
    )
)
_AS_BYTES = frozenset(("complex128", "float8_e4m3fn", "float8_e5m2"))


def check_state(state: Mapping[str, Any]) -> None:
    """Refuse what a checkpoint cannot hold. Local.

    Raises
    ------
    ArgumentError
        A key that is no string, or a value that is no array, number, string or bool.
    """
    for name, value in state.items():
        if not isinstance(name, str):
            raise ArgumentError(f"checkpoint.save: name {name!r} must be a string.")
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.name not in _NATIVE | _AS_BYTES:
                raise ArgumentError(
                    f"checkpoint.save: array {name!r} has dtype {value.dtype}, which has no "
                    "place in a checkpoint. Convert it to a number type."
                )
        elif not isinstance(value, int | float | str):
            raise ArgumentError(
                f"checkpoint.save: {name!r} is a {type(value).__name__}, must be an array, a "
                "number, a string or a bool. Flatten nested state into dotted names."
            )


def publish(root: Path, step: int, state: Mapping[str, Leaf]) -> Path:
    """Write `state` to a new folder in `root` and give it its name once it is on disk. Local.

    Raises
    ------
    CheckpointError
        The folder cannot be written; nothing that was there before is touched.
    BackendUnavailable
        safetensors is not installed.
    """
    temporary = root / f".writing-{os.urandom(6).hex()}"
    target = root / _free_name(root, step)
    try:
        temporary.mkdir(parents=True)
        _write(temporary, step, state)
        _sync(temporary)
        temporary.rename(target)
        _sync(root)
    except OSError as exc:
        raise CheckpointError(f"checkpoint.save: {target} cannot be written: {exc}.") from exc
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def published(root: Path) -> list[Path]:
    """Return the checkpoints in `root`, oldest step first. Local."""
    found = [(match, path) for path in _entries(root) if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 0)))
    return [path for _, path in found]


def find(path: Path) -> Path:
    """Return the checkpoint at `path`, or the newest one in it. Local.

    Raises
    ------
    CheckpointError
        There is none.
    """
    if (path / _STATE).exists() or _NAME.fullmatch(path.name):
        return path
    there = published(path)
    if not there:
        raise CheckpointError(
            f"checkpoint.load: {path} holds no checkpoint. Name the folder given to save."
        )
    return there[-1]


def read(folder: Path) -> tuple[int, dict[str, Leaf]]:
    """Return step and state of the checkpoint `folder`, after checking every byte. Local.

    Raises
    ------
    CheckpointError
        A file is missing or damaged, or of an unknown format.
    BackendUnavailable
        safetensors is not installed.
    """
    try:
        content = _read_json(folder / _STATE)
        with (folder / _ARRAYS).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != content["arrays_sha256"]:
                raise _damaged(folder / _ARRAYS, "its checksum is wrong")
        arrays = _safetensors().numpy.load_file(folder / _ARRAYS)
    except OSError as exc:
        raise CheckpointError(
            f"checkpoint.load: {exc.filename or folder} cannot be read: {exc.strerror or exc}. "
            "Load another checkpoint."
        ) from exc
    state = {name: _decode(arrays, name, kind) for name, kind in content["arrays"].items()}
    return content["step"], state | content["values"]


def _free_name(root: Path, step: int) -> str:
    """Return a name for `step` that sorts after all checkpoints of that step."""
    if step < 0:
        raise ArgumentError(f"checkpoint.save: step {step} must not be negative.")
    name = f"step_{step:08d}"
    taken = {path.name for path in _entries(root)}
    repeats = (f"{name}.{n}" for n in range(1, len(taken) + 2))
    return name if name not in taken else next(n for n in repeats if n not in taken)


def _entries(root: Path) -> list[Path]:
    return list(root.iterdir()) if root.is_dir() else []


def _write(folder: Path, step: int, state: Mapping[str, Leaf]) -> None:
    arrays = {n: np.asarray(v) for n, v in state.items() if isinstance(v, np.ndarray | np.generic)}
    stored = {name: _encode(array) for name, array in arrays.items()}
    library = _safetensors()
    try:
        library.numpy.save_file(stored, folder / _ARRAYS)
    except library.SafetensorError as exc:
        raise OSError(str(exc)) from exc
    with (folder / _ARRAYS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    content = {
        "format": _FORMAT,
        "step": step,
        "values": {name: value for name, value in state.items() if name not in arrays},
        "arrays": {name: [a.dtype.name, list(a.shape)] for name, a in arrays.items()},
        "arrays_sha256": digest,
    }
    with (folder / _STATE).open("w") as text:
        json.dump({"sha256": _json_digest(content), "content": content}, text, indent=1)
        text.flush()
        os.fsync(text.fileno())


def _read_json(file: Path) -> dict[str, Any]:
    try:
        whole = json.loads(file.read_text())
        content: dict[str, Any] = whole["content"]
        intact = whole["sha256"] == _json_digest(content)
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise _damaged(file, "it is cut or was changed")
    if content["format"] != _FORMAT:
        raise CheckpointError(
            f"checkpoint.load: {file} has format {content['format']}, this version reads "
            f"{_FORMAT}. Load it with the version of hpcpar that wrote it."
        )
    return content


def _json_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(file: Path, how: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint.load: {file} is damaged: {how}. Load an earlier checkpoint."
    )


def _encode(array: Array) -> Array:
    array = contiguous(array)
    return array if array.dtype.name in _NATIVE else as_bytes(array)


def _decode(arrays: Mapping[str, Array], name: str, kind: tuple[str, list[int]]) -> Array:
    dtype, shape = kind
    if dtype in _NATIVE:
        return arrays[name]
    import ml_dtypes  # noqa: F401 - registers the names of its dtypes with NumPy

    return arrays[name].view(np.dtype(dtype)).reshape(shape)


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as exc:
        raise BackendUnavailable(
            "checkpoint: the package safetensors is not installed. "
            "Install it with: pip install 'hpcpar[cli]'."
        ) from exc
    return safetensors


def _sync(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

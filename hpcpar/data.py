"""Which samples a rank reads: counter-based, without padding, resumable on another world size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import random
from .comm.sizes import uneven_slice
from .errors import ArgumentError

__all__ = ["Sampler", "TextCorpus", "Windows", "read_text"]

Indices: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
_Words: TypeAlias = npt.NDArray[np.uint64]

_ROUNDS = 8
_NOT_LIBRARY = frozenset(("site-packages", "dist-packages", "test", "tests"))
_MIN_HALF_BITS = 3  # a Feistel network over fewer bits has too few round functions to shuffle


class Sampler:
    """An order of samples that is a function of (seed, step) alone. Local: nothing is sent.

    Every epoch visits every sample once, in an order of its own. The last batch of an epoch is
    short if `batch_size` does not divide `num_samples`; nothing is repeated to fill it. The
    order does not depend on the number of ranks, so a job may go on with another one, in the
    middle of an epoch. No array of `num_samples` is made: the shuffle is a keyed permutation
    that is computed for the indices asked for.

    Parameters
    ----------
    num_samples
        Samples in the data set, at least 1.
    batch_size
        Samples of one step over all ranks, at least 1.
    seed
        Names the order; each epoch derives its own from it.
    shuffle
        False: in order of the index.

    Attributes
    ----------
    step
        The step that `take` hands out next.

    Raises
    ------
    ArgumentError
        A size below 1.

    Examples
    --------
    >>> sampler = Sampler(10, 4, shuffle=False)
    >>> sampler.batch(2)  # the last batch of the epoch is short
    array([8, 9])
    >>> [sampler.local(0, rank, 3).tolist() for rank in range(3)]  # the uneven rule
    [[0, 1], [2, 3], []]
    """

    def __init__(
        self, num_samples: int, batch_size: int, *, seed: int = 0, shuffle: bool = True
    ) -> None:
        for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
            if value < 1:
                raise ArgumentError(f"Sampler: {name} {value} must be at least 1.")
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.step = 0

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch, a short last one included."""
        return -(-self.num_samples // self.batch_size)

    @property
    def epoch(self) -> int:
        """The epoch that the next `take` belongs to."""
        return self.step // self.steps_per_epoch

    def batch(self, step: int) -> Indices:
        """Return the sample indices of `step` over all ranks, shape ``(at most batch_size,)``."""
        if step < 0:
            raise ArgumentError(f"Sampler.batch: step {step} must not be negative.")
        epoch, index = divmod(step, self.steps_per_epoch)
        start = index * self.batch_size
        positions = np.arange(start, min(start + self.batch_size, self.num_samples))
        if not self.shuffle:
            return positions
        key = random.Key(self.seed).child("sampler").child(epoch)
        return _permute(positions, self.num_samples, random.bits(key, (_ROUNDS,), np.uint64))

    def local(self, step: int, rank: int, size: int) -> Indices:
        """Return the part of ``batch(step)`` that `rank` of `size` reads, by the uneven rule.

        A rank may get nothing; it still takes part in the step, with weight 0.
        """
        if not 0 <= rank < size:
            raise ArgumentError(f"Sampler.local: rank {rank} must be in 0..{size - 1}.")
        batch = self.batch(step)
        return batch[uneven_slice(len(batch), size, rank)]

    def take(self, rank: int, size: int) -> Indices:
        """Return ``local(self.step, rank, size)`` and move on by one step."""
        indices = self.local(self.step, rank, size)
        self.step += 1
        return indices

    def state_dict(self) -> dict[str, Any]:
        """Return the position and what it is a position in, as plain numbers."""
        return {
            "step": self.step,
            "num_samples": self.num_samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken, on any number of ranks.

        Raises
        ------
        ArgumentError
            `state` belongs to another order of samples.
        """
        mine = self.state_dict() | {"step": state["step"]}
        for name, value in mine.items():
            if state[name] != value:
                raise ArgumentError(
                    f"Sampler.load_state_dict: {name} {state[name]!r} must be {value!r}, this "
                    "sampler's. Make the sampler with the saved settings to go on in its order."
                )
        self.step = state["step"]


def _permute(positions: Indices, num_samples: int, keys: _Words) -> Indices:
    """Map positions below `num_samples` one to one onto indices below it.

    A Feistel network permutes the next power of four; walking its cycle until the value is
    below `num_samples` restricts that permutation (Black and Rogaway, 2002).
    """
    half_bits = max(_MIN_HALF_BITS, (int(num_samples - 1).bit_length() + 1) // 2)
    values = _feistel(positions.astype(np.uint64), half_bits, keys)
    while (outside := values >= num_samples).any():
        values[outside] = _feistel(values[outside], half_bits, keys)
    return values.astype(np.int64)


def _feistel(values: _Words, half_bits: int, keys: _Words) -> _Words:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right, key) & mask)
    return (left << shift) | right


def _mix(words: _Words, key: np.uint64) -> _Words:
    """Return a keyed hash of each word: the finalizer of SplitMix64."""
    words = words + key
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def read_text(path: str | PathLike[str] | None = None) -> bytes:
    """Read a file, all files below a folder, or Python's standard library. Local.

    Files are joined in the sorted order of their paths, so the result depends on the contents
    alone. Hidden files and folders are skipped.

    Parameters
    ----------
    path
        File or folder; None is the source code of the standard library without its tests,
        12 MB in Python 3.11.

    Raises
    ------
    ArgumentError
        Nothing there, not readable, or no bytes at all.
    """
    try:
        files = _library_files() if path is None else _files(Path(path))
        text = b"".join(file.read_bytes() for file in files)
    except OSError as exc:
        raise ArgumentError(f"read_text: path {exc.filename!r} cannot be read: {exc}.") from exc
    if not text:
        raise ArgumentError(f"read_text: path {str(path)!r} holds no text. Name a file with text.")
    return text


def _library_files() -> list[Path]:
    """Return the modules that every installation has: not what was added, not the tests."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(Path(os.__file__).parent):
        subfolders[:] = set(subfolders) - _NOT_LIBRARY  # not even looked into: they may be huge
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found, key=lambda file: file.parts)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ArgumentError(f"read_text: path {str(path)!r} does not exist. Name a file or folder.")
    if not path.is_dir():
        return [path]
    found = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    shown = (file for file in found if not any(part.startswith(".") for part in file.parts))
    return [path / file for file in sorted(shown, key=lambda file: file.parts)]


class Windows:
    """A text cut into samples of `seq` bytes and the byte that follows each. Local.

    Parameters
    ----------
    data
        Shape ``(n * seq + 1,)``, dtype uint8; a shorter rest at the end is left out.
    seq
        Bytes of a sample.

    Examples
    --------
    >>> windows = Windows(np.frombuffer(b"abcdefg", np.uint8), 3)
    >>> x, y = windows[np.array([1])]
    >>> x.astype(np.uint8).tobytes(), y.astype(np.uint8).tobytes()
    (b'def', b'efg')
    """

    def __init__(self, data: Bytes, seq: int) -> None:
        self.data = data
        self.seq = seq

    def __len__(self) -> int:
        return max(0, (len(self.data) - 1) // self.seq)

    def __getitem__(self, indices: Sequence[int] | Indices) -> tuple[Indices, Indices]:
        """Return inputs and targets, both of shape ``(len(indices), seq)`` and dtype int64."""
        first = np.asarray(indices, np.int64)[:, None] * self.seq
        sample = self.data[first + np.arange(self.seq + 1)].astype(np.int64)
        return sample[:, :-1], sample[:, 1:]


class TextCorpus:
    """Text as bytes, split into windows to train on and windows to validate with. Local.

    Parameters
    ----------
    text
        What to learn.
    seq
        Bytes of a sample, at least 1.
    validation
        Share of the windows kept for validation, from the end of the text; at least one.

    Attributes
    ----------
    train, validation
        The two parts; no byte is a target in both.

    Raises
    ------
    ArgumentError
        The text has no room for one window of each part; a bad `seq` or `validation`.

    Examples
    --------
    >>> corpus = TextCorpus(b"to be or not to be", seq=4, validation=0.25)
    >>> len(corpus.train), len(corpus.validation)
    (3, 1)
    """

    def __init__(self, text: bytes, *, seq: int, validation: float = 0.05) -> None:
        if seq < 1:
            raise ArgumentError(f"TextCorpus: seq {seq} must be at least 1.")
        if not 0 <= validation < 1:
            raise ArgumentError(f"TextCorpus: validation {validation} must be in [0, 1).")
        data = np.frombuffer(text, np.uint8)
        total = len(Windows(data, seq))
        if total < 2:
            raise ArgumentError(
                f"TextCorpus: the text has {len(text)} bytes, seq {seq} needs at least "
                f"{2 * seq + 1}. Give more text or a smaller seq."
            )
        held = min(total - 1, max(1, round(total * validation)))
        cut = (total - held) * seq
        self.train = Windows(data[: cut + 1], seq)
        self.validation = Windows(data[cut:], seq)

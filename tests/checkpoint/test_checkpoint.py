"""Checkpoints: exact round trips, atomic publishing, and damage that is named on all ranks."""

import doctest
import math
import shutil
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hpcpar import checkpoint
from hpcpar.checkpoint import api, folder
from hpcpar.errors import ArgumentError, BackendUnavailable, CheckpointError

DTYPES = [
    *(bool, "int8", "int64", "uint16", "uint64", "float16", "float32", "float64", "complex64"),
    *("complex128", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


def shared(group, path):
    """Return rank 0's folder: each process has its own tmp_path."""
    return Path(group.broadcast_object(str(path))) / str(group.size)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_arrays_come_back_bit_for_bit(tmp_path, dtype):
    base = np.arange(24).reshape(4, 6).astype(dtype)
    state = {
        "plain": base,
        "strided": base[::-2, 1::3],
        "fortran": np.asfortranarray(base),
        "scalar": base[1, 1].reshape(()),
        "empty": base[:0],
    }
    checkpoint.save(tmp_path, state, step=1)
    found = checkpoint.load(tmp_path).state
    assert found.keys() == state.keys()
    assert all(same(np.asarray(found[name]), state[name]) for name in state)


def test_big_endian_arrays_come_back_with_their_values(tmp_path):
    checkpoint.save(tmp_path, {"x": np.arange(3, dtype=">f4")}, step=1)
    assert same(checkpoint.load(tmp_path).state["x"], np.arange(3, dtype="f4"))


def test_numbers_strings_and_scalars_come_back_exactly(tmp_path):
    state = {
        "int": 2**70,
        "negative": -3,
        "float": 0.1 + 0.2,
        "tiny": 5e-324,
        "inf": math.inf,
        "text": "grüße \u2603 \0 \n",
        "yes": True,
        "": "empty name",
    }
    checkpoint.save(tmp_path, state | {"nan": math.nan, "numpy": np.float32(0.1)}, step=12)
    step, found = checkpoint.load(tmp_path)
    assert step == 12
    assert math.isnan(found.pop("nan"))
    assert same(found.pop("numpy"), np.array(0.1, np.float32))
    assert found == state
    assert all(type(found[name]) is type(value) for name, value in state.items())


def test_a_state_without_arrays_or_nothing_at_all(tmp_path):
    checkpoint.save(tmp_path, {}, step=0)
    assert checkpoint.load(tmp_path) == (0, {})


def test_the_newest_step_is_latest(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "nowhere") is None
    paths = [checkpoint.save(tmp_path, {"s": step}, step=step) for step in (9, 123456789, 10)]
    assert checkpoint.latest(tmp_path) == paths[1]
    assert checkpoint.load(tmp_path).state == {"s": 123456789}
    assert checkpoint.load(paths[2]).state == {"s": 10}


def test_a_step_saved_again_is_a_newer_checkpoint_of_it(tmp_path):
    paths = [checkpoint.save(tmp_path, {"n": n}, step=4) for n in range(12)]
    assert len(set(paths)) == 12
    assert checkpoint.load(tmp_path).state == {"n": 11}


@pytest.mark.parametrize("keep", [1, 2, 4, 5, 6, 9, None])
def test_keep_deletes_the_oldest_after_the_new_one_is_there(tmp_path, keep):
    for step in range(5):
        checkpoint.save(tmp_path, {"s": step}, step=step, keep=keep)
    kept = [f"step_{step:08d}" for step in range(5)][-(keep or 5) :]
    assert [path.name for path in folder.published(tmp_path)] == kept


@pytest.mark.parametrize("moment", ["_write", "_sync"])
def test_a_crash_while_writing_leaves_the_one_before(tmp_path, monkeypatch, moment):
    checkpoint.save(tmp_path, {"s": 1}, step=1)
    real = getattr(folder, moment)

    def dies(where, *rest):
        real(where, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, moment, dies)
    with pytest.raises(KeyboardInterrupt):
        folder.publish(tmp_path, 2, {"s": 2})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
    assert checkpoint.load(tmp_path).state == {"s": 1}


def test_an_unfinished_folder_of_a_killed_job_is_not_seen(tmp_path):
    checkpoint.save(tmp_path, {"s": 1}, step=1)
    shutil.copytree(tmp_path / "step_00000001", tmp_path / ".writing-00")
    (tmp_path / "step_00000002.tmp").mkdir()
    assert checkpoint.load(tmp_path).step == 1


def damaged(path, how):
    file = path / ("arrays.safetensors" if "arrays" in how else "state.json")
    if how.startswith("remove"):
        file.unlink()
    elif how.startswith("cut"):
        file.write_bytes(file.read_bytes()[:-3])
    elif how.startswith("flip"):
        data = bytearray(file.read_bytes())
        data[-20] ^= 1
        file.write_bytes(data)
    elif how == "change a number in the state":
        file.write_text(file.read_text().replace("17", "18"))
    return file


@pytest.mark.parametrize(
    "how",
    [
        *("remove arrays", "cut arrays", "flip arrays"),
        *("remove state", "cut state", "change a number in the state"),
    ],
)
def test_damage_is_refused_with_the_file_named_on_all_ranks(ranks, tmp_path, how):
    def body(group):
        root = shared(group, tmp_path)
        state = {"w": np.arange(50.0), "n": 17}
        saved = checkpoint.save(root, state, step=3, group=group)
        if group.rank == 0:
            damaged(saved, how)
        name = "arrays.safetensors" if "arrays" in how else "state.json"
        reason = "cannot be read: No such file" if "remove" in how else "is damaged"
        with pytest.raises(CheckpointError, match=rf"step_00000003/{name} {reason}"):
            checkpoint.load(saved, group=group)
        assert group.all_reduce(np.array([1]))[0] == group.size

    ranks(body)


def test_all_ranks_get_the_state_of_rank_0(ranks, tmp_path):
    def body(group):
        state = {"w": np.full(3, float(group.rank), ml_dtypes.bfloat16), "rank": group.rank}
        root = shared(group, tmp_path)
        path = checkpoint.save(root, state, step=5, group=group)
        assert path == root / "step_00000005"
        step, found = checkpoint.load(path, group=group)
        assert (step, found["rank"], found["w"].dtype) == (5, 0, ml_dtypes.bfloat16)
        found["w"][...] += 1  # everybody's own, and writable
        assert found["w"].tolist() == [1.0, 1.0, 1.0]

    ranks(body)


def test_what_rank_0_cannot_write_fails_on_all_ranks(ranks, tmp_path):
    (tmp_path / "file").touch()

    def body(group):
        with pytest.raises(CheckpointError, match=r"file/step_00000001 cannot be written"):
            checkpoint.save(tmp_path / "file", {"a": 1}, step=1, group=group)
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            checkpoint.load(tmp_path / "nowhere", group=group)
        assert group.all_reduce(np.array([1]))[0] == group.size

    ranks(body)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1]}, "'a' is a list, must be an array"),
        ({"a": {"b": 1}}, "Flatten nested state"),
        ({"a": None}, "'a' is a NoneType"),
        ({3: 1}, "name 3 must be a string"),
        ({"a": np.array([None])}, "'a' has dtype object"),
        ({"a": np.array(["x"])}, "'a' has dtype <U1"),
    ],
)
def test_refuses_what_it_cannot_hold(ranks, tmp_path, state, message):
    def body(group):
        with pytest.raises(ArgumentError, match=message):
            checkpoint.save(tmp_path, state, step=1, group=group)
        assert group.all_reduce(np.array([1]))[0] == group.size

    ranks(body)
    assert list(tmp_path.iterdir()) == []


def test_refuses_bad_numbers(tmp_path):
    with pytest.raises(ArgumentError, match="step -1 must not be negative"):
        checkpoint.save(tmp_path, {}, step=-1)
    with pytest.raises(ArgumentError, match="keep 0 must be at least 1"):
        checkpoint.save(tmp_path, {}, step=1, keep=0)


def test_a_later_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_FORMAT", 2)
    checkpoint.save(tmp_path, {}, step=1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format 2, this version reads 1"):
        checkpoint.load(tmp_path)


def test_says_how_to_get_safetensors(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(BackendUnavailable, match="pip install"):
        checkpoint.save(tmp_path, {}, step=1)
    assert list(tmp_path.iterdir()) == []


def test_examples():
    assert doctest.testmod(api).failed == 0

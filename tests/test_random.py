"""hpcpar.random: known answers, slices, moments, what is refused."""

import subprocess
import sys

import numpy as np
import pytest

from hpcpar import _core
from hpcpar.errors import ArgumentError, UnsupportedError
from hpcpar.random import Key, bits, normal, uniform

ONES = 0xFFFFFFFF
DRAWS = [
    (bits, np.uint32),
    (bits, np.uint64),
    (uniform, np.float32),
    (uniform, np.float64),
    (normal, np.float32),
    (normal, np.float64),
]


# Random123's kat_vectors for philox4x32-10.
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(counter, key, answer):
    assert _core.philox4x32(counter, key) == tuple(int(word, 16) for word in answer.split())


def test_words_of_an_element():
    seed, stream, index = 0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x1122334455667788
    block = _core.philox4x32(
        (index & ONES, index >> 32, stream & ONES, stream >> 32), (seed & ONES, seed >> 32)
    )
    key = Key(seed, stream)
    assert bits(key, 1, start=index)[0] == block[0]
    assert bits(key, 1, np.uint64, start=index)[0] == block[0] | block[1] << 32
    assert uniform(key, 1, start=index)[0] == np.float32(block[0] >> 8) * np.float32(2.0**-24)
    u1 = ((block[0] >> 5) * 2**26 + (block[1] >> 6)) * 2.0**-53
    u2 = ((block[2] >> 5) * 2**26 + (block[3] >> 6)) * 2.0**-53
    assert uniform(key, 1, np.float64, start=index)[0] == u1
    expected = np.sqrt(-2 * np.log(u1 + 2.0**-53)) * np.cos(2 * np.pi * u2)
    assert normal(key, 1, np.float64, start=index)[0] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("draw", "dtype"), DRAWS)
def test_slices_equal_the_whole(draw, dtype):
    key = Key(11).child("w")
    whole = draw(key, (7, 100), dtype)
    assert whole.shape == (7, 100)
    assert whole.dtype == dtype
    for start, stop in [(0, 1), (1, 2), (3, 131), (127, 129), (128, 700), (699, 700), (5, 5)]:
        part = draw(key, stop - start, dtype, start=start)
        assert part.tobytes() == whole.ravel()[start:stop].tobytes()


@pytest.mark.parametrize(("draw", "dtype"), DRAWS)
def test_index_carries_into_the_high_word(draw, dtype):
    start = 2**32 - 3
    whole = draw(Key(5), 8, dtype, start=start)
    singles = [draw(Key(5), 1, dtype, start=start + i)[0] for i in range(8)]
    assert whole.tolist() == singles
    assert draw(Key(5), 1, dtype, start=2**64 - 1).shape == (1,)


def test_float32_is_the_rounded_float64_normal():
    key = Key(2)
    assert np.array_equal(normal(key, 5000), normal(key, 5000, np.float64).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_of_uniform(dtype):
    x = uniform(Key(1), 200_000, dtype).astype(np.float64)
    assert x.min() >= 0.0
    assert x.max() < 1.0
    for power in (1, 2, 3):  # five standard errors
        assert np.mean(x**power) == pytest.approx(1 / (power + 1), abs=5 * 0.3 / 200_000**0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_of_normal(dtype):
    x = normal(Key(1), 200_000, dtype).astype(np.float64)
    error = 5 / 200_000**0.5
    assert np.mean(x) == pytest.approx(0, abs=error)
    assert np.mean(x**2) == pytest.approx(1, abs=error * 2**0.5)
    assert np.mean(x**3) == pytest.approx(0, abs=error * 15**0.5)
    assert np.mean(x**4) == pytest.approx(3, abs=error * 96**0.5)
    assert np.mean(np.abs(x) < 1.0) == pytest.approx(0.682689, abs=error / 2)
    assert np.abs(x).max() < 8.6


def test_normal_against_numpy_functions():
    """The logarithm and the cosine are right over all quadrants and magnitudes."""
    key, n = Key(123456789), 20_000
    raw = np.array([_core.philox4x32((i, 0, 0, 0), (key.seed, 0)) for i in range(n)], np.uint64)
    u1 = ((raw[:, 0] >> 5) * 2.0**26 + (raw[:, 1] >> 6) + 1) * 2.0**-53
    u2 = ((raw[:, 2] >> 5) * 2.0**26 + (raw[:, 3] >> 6)) * 2.0**-53
    expected = np.sqrt(-2 * np.log(u1)) * np.cos(2 * np.pi * u2)
    assert np.abs(normal(key, n, np.float64) - expected).max() < 5e-15


def test_children_are_independent_of_layout_and_process():
    key = Key(7)
    code = "from hpcpar.random import Key; print(Key(7).child('blocks.0.w').child(3).stream)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(run.stdout) == key.child("blocks.0.w").child(3).stream


def test_children_differ():
    key = Key(7)
    streams = {key.child(name).stream for name in ["a", "b", "", 1, "1", 2, -1]}
    streams |= {key.stream, key.child("a").child("b").stream, key.child("b").child("a").stream}
    assert len(streams) == 10
    assert key.child("a").seed == 7
    assert key.child(np.int64(2)) == key.child(2)
    assert Key(8).child("a") != key.child("a")
    a, b = (uniform(key.child(name), 50_000, np.float64) for name in "ab")
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(0, abs=5 / 50_000**0.5)


def test_neighbouring_seeds_and_streams_are_uncorrelated():
    keys = [Key(0, 0), Key(1, 0), Key(0, 1), Key(2**32, 0), Key(0, 2**32)]
    x = np.stack([uniform(key, 50_000, np.float64) for key in keys])
    assert np.abs(np.corrcoef(x) - np.eye(5)).max() < 5 / 50_000**0.5


def test_shapes():
    assert uniform(Key(1), ()).shape == ()
    assert uniform(Key(1), (0, 3)).shape == (0, 3)
    assert uniform(Key(1), 4).shape == (4,)
    assert uniform(Key(1), ()) == uniform(Key(1), 1)[0]


@pytest.mark.parametrize("draw", [bits, uniform, normal])
@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.complex64, bool, object, ">f4", ">u4"])
def test_refused_dtypes(draw, dtype):
    with pytest.raises(UnsupportedError, match=f"^{draw.__name__}: dtype is"):
        draw(Key(1), 3, dtype)


@pytest.mark.parametrize(("shape", "start"), [(-1, 0), ((2, -3), 0), (2, -1), (2, 2**64 - 1)])
def test_refused_indices(shape, start):
    with pytest.raises(ArgumentError, match="needs"):
        normal(Key(1), shape, start=start)


@pytest.mark.parametrize(("seed", "stream"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**64)])
def test_refused_keys(seed, stream):
    with pytest.raises(ArgumentError, match=r"^Key: (seed|stream) is"):
        Key(seed, stream)


def test_fill_refuses_other_arrays():
    fill = _core.philox_fill
    with pytest.raises(TypeError, match="does not fill"):
        fill(np.empty(3, np.float32), "bits", 0, 0, 0)
    with pytest.raises(TypeError, match="does not fill"):
        fill(np.empty(3, np.float32), "poisson", 0, 0, 0)
    with pytest.raises(ValueError, match="not writable"):
        fill(np.empty((4, 4), np.float32)[:, ::2], "uniform", 0, 0, 0)
    with pytest.raises(OverflowError):
        fill(np.empty(3, np.float32), "uniform", 0, 0, -1)
    locked = np.empty(3, np.float32)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="not writable"):
        fill(locked, "uniform", 0, 0, 0)

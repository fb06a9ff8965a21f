"""SciPy sparse objects through the object codec."""

import contextlib
import random
import subprocess
import sys

import numpy as np
import pytest

from hpcpar.comm.codec import decode, encode, join
from hpcpar.errors import ArgumentError, HpcparError

sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")


def trip(obj):
    return decode(join(encode(obj)))


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("kind", ["matrix", "array"])
def test_sparse(form, kind):
    dense = np.zeros((6, 8), np.float32)
    dense[[0, 2, 5], [1, 3, 7]] = [1.5, -2, 3]
    obj = getattr(sparse, f"{form}_{kind}")(dense)
    back = trip({"m": [obj]})["m"][0]
    assert type(back) is type(obj)
    assert back.dtype == np.float32
    assert np.array_equal(back.toarray(), dense)


def test_sparse_keeps_duplicates_and_emptiness():
    obj = sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(3, 3))
    assert trip(obj).nnz == 2
    assert trip(sparse.csr_matrix((0, 4))).shape == (0, 4)


@pytest.mark.parametrize("form", ["csr", "coo", "bsr"])
def test_sparse_index_out_of_range_is_refused(form):
    obj = getattr(sparse, f"{form}_array")(np.eye(3))
    if form == "coo":
        obj.coords[1][0] = 1000
    else:
        obj.indices[0] = 1000
    coded = join(encode(obj))
    with pytest.raises(ArgumentError, match="damaged"):
        decode(coded)


def test_missing_library_is_named():
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "from hpcpar.comm.codec import decode\n"
        "from hpcpar.errors import BackendUnavailable\n"
        "try: decode(bytes.fromhex(sys.argv[1]))\n"
        "except BackendUnavailable as exc: print(exc)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, join(encode(sparse.eye_array(2, format="csr"))).hex()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "pip install scipy" in run.stdout


@pytest.mark.filterwarnings("ignore")  # SciPy may warn about what the damage made valid
@pytest.mark.parametrize("form", ["csr", "coo", "dia"])
def test_fuzz(form):
    """What decodes is safe to compute with."""
    good = join(encode(sparse.eye_array(9, format=form)))
    rng = random.Random(3)
    for _ in range(400):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(HpcparError):
            obj = decode(bytes(bad))
            if obj.size and max(obj.shape) < 1000:
                obj @ np.ones(obj.shape[1])

"""The job of principal components gives NumPy's, on any number of ranks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcpar as hp

JOB = Path(__file__).parents[2] / "jobs" / "pca.py"


def table(rows=61, columns=7):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 3)) @ rng.normal(size=(3, columns)) + 0.1 * rng.random(
        (rows, columns)
    )


@pytest.mark.sizes(1, 2, 3, 4)
def test_components_are_numpys(ranks, pca):
    def body(group):
        a = table()
        mesh = hp.init_device_mesh((group.size,), ("rows",), group=group)
        found = pca.principal(hp.distribute(a, mesh, hp.Shard(0)), 3)
        right = pca.principal(a, 3)
        assert np.allclose(found[0], right[0], atol=1e-10)
        assert np.allclose(found[1], right[1], atol=1e-12)
        assert np.allclose(found[2].full(), right[2], atol=1e-9)
        assert found[2].placements == (hp.Shard(0),)

    ranks(body)


@pytest.mark.threads_only
def test_the_job_runs(pca, tmp_path):
    np.save(tmp_path / "table.npy", table())
    words = ["--data", str(tmp_path / "table.npy"), "--components", "3", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "hpcpar", "run", "-n", "2", str(JOB), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "61 rows of 7 columns on 2 ranks" in done.stdout
    shares = np.load(tmp_path / "pca.npz")["explained"]
    assert np.allclose(shares, pca.principal(table(), 3)[1])
    assert (tmp_path / "pca.png").stat().st_size > 1000


@pytest.mark.threads_only
def test_a_wrong_table_is_refused(pca, tmp_path):
    np.save(tmp_path / "line.npy", np.zeros(3))
    with pytest.raises(SystemExit, match=r"a table of numbers, not float64 \(3,\)"):
        pca.read(str(tmp_path / "line.npy"))

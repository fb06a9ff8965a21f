"""The heat job gives NumPy's plate on any mesh, and a picture."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcpar as hp

JOB = Path(__file__).parents[2] / "jobs" / "heat2d.py"


def plate(heat2d, side, steps):
    u = np.zeros((side, side))
    u[0] = 1.0
    for _ in range(steps):
        heat2d.heat(u, 0.2)
    return u


@pytest.mark.sizes(1, 2, 3, 4)
@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_plate_on_a_mesh_is_numpys(ranks, heat2d, by_blocks):
    def body(group):
        rows = 2 if by_blocks and group.size % 2 == 0 else group.size
        mesh = hp.init_device_mesh((rows, group.size // rows), ("r", "c"), group=group)
        right = plate(heat2d, 37, 50)
        u = hp.dtensor.zeros((37, 37), mesh, [hp.Shard(0), hp.Shard(1)])
        u[0] = 1.0
        for _ in range(50):
            heat2d.heat(u, 0.2)
        assert np.array_equal(u.full(), right)

    ranks(body)


@pytest.mark.threads_only
def test_the_job_runs(heat2d, tmp_path):
    words = ["--side", "32", "--steps", "40", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "hpcpar", "run", "-n", "2", str(JOB), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "40 steps in" in done.stdout
    assert f"mean {plate(heat2d, 32, 40).mean():.5f}" in done.stdout
    assert (tmp_path / "heat2d.png").stat().st_size > 1000


@pytest.mark.threads_only
def test_a_wrong_mesh_is_refused(heat2d):
    with pytest.raises(SystemExit, match="4 ranks must be rows times columns"):
        heat2d.grid_of("3x2", 4)
    with pytest.raises(SystemExit, match="give numbers of ranks"):
        heat2d.grid_of("two", 2)
    assert heat2d.grid_of(None, 3) == (3,)

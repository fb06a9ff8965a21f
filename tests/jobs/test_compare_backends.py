"""The comparison of torch's backends runs, and tells its figures."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.threads_only]

JOB = Path(__file__).parents[2] / "jobs" / "compare_backends.py"


def test_it_compares():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "hpcpar", "run", "-n", "2", str(JOB)]
    sizes = ["--width", "16", "--layers", "3", "--steps", "4", "--batch", "2", "--rounds", "2"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 ranks, torch " in done.stdout
    for line in ("all_reduce         4 B", "ddp    step alone", "fsdp2  step alone"):
        assert line in done.stdout

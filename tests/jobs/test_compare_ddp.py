"""The comparison with torch's DDP: both find the same gradients, and the figures are told."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.threads_only]

JOB = Path(__file__).parents[2] / "jobs" / "compare_ddp.py"


def test_it_compares():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "hpcpar", "run", "-n", "2", str(JOB)]
    sizes = ["--width", "16", "--layers", "3", "--steps", "4", "--batch", "2"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "0.0 million parameters, 2 ranks, torch " in done.stdout
    for line in ("hpcpar adds, ms", "torch adds, ms", "hpcpar / torch"):
        assert line in done.stdout

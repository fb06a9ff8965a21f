"""The jobs folder as it is for a job: the first place where modules are looked for."""

import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture(scope="session")
def train_gpt():
    """Return the module of the training job."""
    sys.path.insert(0, str(JOBS))
    try:
        import train_gpt
    finally:
        sys.path.remove(str(JOBS))
    return train_gpt

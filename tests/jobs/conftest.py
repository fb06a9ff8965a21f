"""The jobs folder as it is for a job: the first place where modules are looked for."""

import importlib
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"


def module_of(name):
    """Return the module of a job."""
    sys.path.insert(0, str(JOBS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(JOBS))


@pytest.fixture(scope="session")
def train_gpt():
    """Return the module of the training job."""
    return module_of("train_gpt")


@pytest.fixture(scope="session")
def heat2d():
    """Return the module of the heat job."""
    return module_of("heat2d")


@pytest.fixture(scope="session")
def pca():
    """Return the module of the job of principal components."""
    return module_of("pca")

"""Every example in a docstring of the package runs and prints what it says."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcpar

pytestmark = pytest.mark.threads_only  # the examples are worlds of one, or start threads

NAMES = [module.name for module in pkgutil.walk_packages(hpcpar.__path__, "hpcpar.")]
PLAIN = [name for name in NAMES if not name.endswith(("__main__", "_core"))]


@pytest.fixture(autouse=True)
def _own_world():
    yield
    hpcpar.shutdown()


def failures(name):
    return doctest.testmod(importlib.import_module(name)).failed


@pytest.mark.parametrize("name", ["hpcpar", *PLAIN])
def test_examples(name):
    needs_torch = "torch" in name
    if needs_torch:
        pytest.importorskip("torch")
    if needs_torch or name.startswith("hpcpar.interop"):  # these load MPI; others do not
        script = f"from test_docstrings import failures; assert failures({name!r}) == 0"
        here = Path(__file__).parent
        subprocess.run([sys.executable, "-c", script], cwd=here, check=True, timeout=60)
    else:
        assert failures(name) == 0

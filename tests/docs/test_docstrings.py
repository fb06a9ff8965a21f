"""Every example in a docstring of the package runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import hpcpar

pytestmark = pytest.mark.threads_only  # the examples are worlds of one, or start threads

NAMES = [module.name for module in pkgutil.walk_packages(hpcpar.__path__, "hpcpar.")]
PLAIN = [name for name in NAMES if not name.endswith(("__main__", "_core"))]


@pytest.fixture(autouse=True)
def _own_world():
    yield
    hpcpar.shutdown()


@pytest.mark.parametrize("name", ["hpcpar", *PLAIN])
def test_examples(name):
    if name.startswith("hpcpar.interop.torch"):
        pytest.importorskip("torch")
    assert doctest.testmod(importlib.import_module(name)).failed == 0

"""The face of the package: few names, each explained, and an import that starts nothing."""

import inspect
import subprocess
import sys
import types

import pytest

import hpcpar

LIMIT = 60
HEAVY = [
    "mpi4py",
    "cupy",
    "ml_dtypes",
    "scipy",
    "matplotlib",
    "rich",
    "torch",
    "jax",
    "safetensors",
]


def test_few_names():
    assert len(set(hpcpar.__all__)) == len(hpcpar.__all__)
    assert len(hpcpar.__all__) <= LIMIT
    public = {
        name
        for name, value in vars(hpcpar).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public - {"annotations"} == {
        name
        for name in hpcpar.__all__
        if not name.startswith("_") and not isinstance(getattr(hpcpar, name), types.ModuleType)
    }


@pytest.mark.parametrize("name", hpcpar.__all__)
def test_every_name_is_there_and_documented(name):
    value = getattr(hpcpar, name)
    if callable(value) or isinstance(value, types.ModuleType):
        assert inspect.getdoc(value), f"{name} has no docstring"


@pytest.mark.parametrize("name", hpcpar.__all__)
def test_public_methods_are_documented(name):
    value = getattr(hpcpar, name)
    if inspect.isclass(value):
        fields = getattr(value, "__dataclass_fields__", ())  # the class's docstring tells of them
        bare = [
            key
            for key in vars(value)
            if key[0] != "_" and key not in fields and not inspect.getdoc(getattr(value, key))
        ]
        assert not bare, f"{name}: no docstring on {bare}"


FUNCTIONS = [name for name in hpcpar.__all__ if inspect.isfunction(getattr(hpcpar, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_who_must_call_it(name):
    text = inspect.getdoc(getattr(hpcpar, name))
    assert "Collective over" in text or "Local" in text


def test_import_starts_nothing_and_loads_nothing_heavy():
    code = (
        "import sys, threading\n"
        "from signal import SIGINT, SIGTERM, getsignal\n"
        "hooks = sys.excepthook, getsignal(SIGTERM), getsignal(SIGINT)\n"
        "import hpcpar\n"
        "after = sys.excepthook, getsignal(SIGTERM), getsignal(SIGINT)\n"
        "assert hooks == after, 'import installed a hook'\n"
        "assert threading.active_count() == 1, 'import started a thread'\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"

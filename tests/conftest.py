"""The one fixture of multi-rank tests: ranks as threads, or the real ranks under mpiexec."""

import os
import traceback
from contextlib import contextmanager

import pytest

import hpcpar as hp
from hpcpar.comm import launch
from hpcpar.comm.settings import Settings
from hpcpar.comm.world import _on_mpi
from hpcpar.testing import run_ranks

SIZES = (1, 2, 3, 4)
# Unbuffered ranks write a line in pieces, which the launcher mixes with another rank's.
os.environ.pop("PYTHONUNBUFFERED", None)
ON_MPI = launch.is_launched(os.environ)


def pytest_generate_tests(metafunc):
    if "ranks" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("sizes")
        sizes = [n for n in (marker.args if marker else SIZES) if not ON_MPI or n <= world().size]
        if ON_MPI and not marker:
            sizes = [world().size]
        metafunc.parametrize("ranks", sizes, indirect=True, ids=[f"n{n}" for n in sizes])


def pytest_collection_modifyitems(config, items):
    """Under mpiexec run what needs ranks; the rest runs once, under plain pytest."""
    if not ON_MPI:
        return
    keep = [
        i for i in items if "ranks" in i.fixturenames and not i.get_closest_marker("threads_only")
    ]
    kept = set(map(id, keep))
    config.hook.pytest_deselected(items=[i for i in items if id(i) not in kept])
    items[:] = keep


def world():
    return hp.init()


@pytest.fixture
def ranks(request):
    """Return a function that runs ``body(group)`` on every rank and returns my result."""
    if not ON_MPI:
        return lambda body, **how: run_ranks(request.param, body, **how)
    return lambda body, **how: run_on_mpi(request.param, body, **how)


def run_on_mpi(size, body, **how):
    """Run the body on the first `size` ranks of the world; all fail with the first traceback."""
    everyone = world()
    group = everyone.subgroup(range(size))
    text, result = "", None
    if group.rank >= 0:
        try:
            with with_settings(group, **how) as own:
                result = body(own)
        except BaseException:
            text = traceback.format_exc()
    failures = everyone.all_gather_object(text)
    group.close()
    first = next((f"on rank {r}:\n{t}" for r, t in enumerate(failures) if t), None)
    if first is not None:
        pytest.fail(first, pytrace=False)
    return result


@contextmanager
def with_settings(group, **how):
    """Make the group the default; one with settings of its own is a world of its own."""
    if not how:
        with group:
            yield group
        return
    made = _on_mpi(Settings(backend="mpi", **how), group.mpi_comm)
    try:
        with made.group:
            yield made.group
    finally:
        made.free()

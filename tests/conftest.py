"""The one fixture of multi-rank tests: ranks as threads, or the real ranks under mpiexec."""

import os
import tempfile
import traceback
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

import hpcpar as hp
from hpcpar.comm import launch
from hpcpar.comm.settings import Settings
from hpcpar.comm.world import on_mpi
from hpcpar.testing import run_ranks

SIZES = (1, 2, 3, 4)
# Unbuffered ranks write a line in pieces, which the launcher mixes with another rank's.
os.environ.pop("PYTHONUNBUFFERED", None)
ON_MPI = launch.is_launched(os.environ)
if ON_MPI:  # pytest's cleaning of old folders is not made for several at once
    from mpi4py import MPI

    own = Path(tempfile.gettempdir(), f"hpcpar-rank{MPI.COMM_WORLD.rank}")
    own.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)


def pytest_generate_tests(metafunc):
    if "ranks" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("sizes")
    sizes = marker.args if marker else SIZES
    if ON_MPI:
        sizes = [n for n in sizes if n <= world().size] if marker else [world().size]
    backends = backends_for(metafunc.definition.path.parent.name)
    params = [(n, backend) for backend in backends for n in sizes]
    ids = [f"n{n}-{b}" if len(backends) > 1 else f"n{n}" for n, b in params]
    metafunc.parametrize("ranks", params, indirect=True, ids=ids)


def backends_for(room):
    """Return who is to carry the tests of a room: all that can, for the tests of carrying."""
    if not ON_MPI or room != "comm":
        return ["auto"]
    return ["mpi", "node"] if world().size > 1 else ["mpi"]


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


@cache
def world(backend="auto"):
    """Return all ranks, carried by `backend`; made once, and ended with the process."""
    if backend == "auto":
        return hp.init()
    return on_mpi(Settings(backend=backend), hp.init().mpi_comm).group


@pytest.fixture
def ranks(request):
    """Return a function that runs ``body(group)`` on every rank and returns my result."""
    size, backend = request.param
    if not ON_MPI:
        return lambda body, **how: run_ranks(size, body, **how)
    return lambda body, **how: run_on_mpi(size, backend, body, **how)


def run_on_mpi(size, backend, body, **how):
    """Run the body on the first `size` ranks of the world; all fail with the first traceback."""
    everyone = world(backend)
    group = everyone.subgroup(range(size))
    text, result = "", None
    if group.rank >= 0:
        try:
            with with_settings(group, backend, **how) as own:
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
def with_settings(group, backend, **how):
    """Make the group the default; one with settings of its own is a world of its own."""
    if not how:
        with group:
            yield group
        return
    alone = "mpi" if group.size == 1 else backend  # one rank needs no node
    made = on_mpi(Settings(backend=alone, **how), group.mpi_comm)
    try:
        with made.group:
            yield made.group
    finally:
        made.free()

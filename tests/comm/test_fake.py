"""A world of a thousand on one rank: shapes and checks as in a job, no memory, no data."""

import tracemalloc

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.errors import ArgumentError, UnsupportedError

pytestmark = pytest.mark.threads_only

ROWS = 1_000_000
# verb, expected shape of the result on rank 7 of 1,000 for x of shape (ROWS, 8)
SHAPES = {
    "all_reduce": (lambda g, x: g.all_reduce(x), (ROWS, 8)),
    "mean": (lambda g, x: g.all_reduce(x, "mean"), (ROWS, 8)),
    "reduce": (lambda g, x: g.reduce(x, root=7), (ROWS, 8)),
    "reduce elsewhere": (lambda g, x: g.reduce(x), None),
    "scan": (lambda g, x: g.scan(x), (ROWS, 8)),
    "exclusive scan": (lambda g, x: g.scan(x, exclusive=True), (ROWS, 8)),
    "reduce_scatter": (lambda g, x: g.reduce_scatter(x), (1000, 8)),
    "reduce_scatter axis": (lambda g, x: g.reduce_scatter(x, axis=1), (ROWS, 1)),
    "broadcast": (lambda g, x: g.broadcast(x), (ROWS, 8)),
    "all_gather": (lambda g, x: g.all_gather(x), (1000 * ROWS, 8)),
    "all_gather axis": (lambda g, x: g.all_gather(x, axis=1), (ROWS, 8000)),
    "gather": (lambda g, x: g.gather(x, root=7), (1000 * ROWS, 8)),
    "gather elsewhere": (lambda g, x: g.gather(x), None),
    "scatter": (lambda g, x: g.scatter(x, root=7), (1000, 8)),
    "all_to_all": (lambda g, x: g.all_to_all(x), (ROWS, 8)),
    "permute": (lambda g, x: g.permute(x, [(6, 7)]), (ROWS, 8)),
    "asynchronous": (lambda g, x: g.all_gather(x, async_op=True).wait(), (1000 * ROWS, 8)),
}


@pytest.fixture
def group(monkeypatch):
    """Return the world of rank 7 of 1,000."""
    monkeypatch.setenv("HPCPAR_FAKE", "7/1000")
    yield hp.init(backend="fake")
    hp.shutdown()


@pytest.mark.parametrize("what", SHAPES)
def test_results_have_their_shape_and_no_memory(group, what):
    call, shape = SHAPES[what]
    x = np.broadcast_to(np.float32(1), (ROWS, 8))
    tracemalloc.start()
    try:
        got = call(group, x)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # x alone would be 32 MB, the largest result 32 GB
    if shape is None:
        assert got is None
        return
    assert got.shape == shape
    assert got.dtype == np.float32
    if what == "broadcast":
        return  # the root need not copy
    assert set(got.strides) == {0}
    assert not got.flags.writeable


def test_a_world_of_a_thousand(group):
    assert (group.rank, group.size, group.backend, group.name) == (7, 1000, "fake", "world")
    assert hp.barrier() is None
    assert hp.barrier(async_op=True).wait() is None
    half = group.subgroup(range(1, 1000, 2))
    assert (half.rank, half.size) == (3, 500)
    assert half.all_gather(np.ones(3)).shape == (1500,)
    assert group.subgroup([0]).rank == -1
    assert group.node.size == 1000
    assert group.split(0).ranks == group.ranks


def test_arguments_are_checked_as_in_a_job(group):
    x = np.ones((4, 2))
    with pytest.raises(UnsupportedError, match=r"op 'mean'.*\[rank 7/1000, group 'world'\]"):
        group.all_reduce(x > 0, "mean")
    with pytest.raises(ArgumentError, match="root 1000 must be"):
        group.broadcast(x, root=1000)
    with pytest.raises(ArgumentError, match="out has shape"):
        group.all_reduce(x, out=np.ones(3))
    for call in (group.recv, lambda: group.sendrecv(x, 1, 2), group.broadcast, group.scatter):
        with pytest.raises(UnsupportedError, match="fake backend"):
            call()


def test_out_is_filled_with_zeros(group):
    out = np.ones((4, 2))
    assert group.all_reduce(np.ones((4, 2)), out=out) is out
    assert not out.any()


def test_what_a_rank_would_send_is_recorded(group):
    x = np.broadcast_to(np.float32(1), (1000, 8))
    group.all_reduce(x)
    group.send(x, 3)
    *_, reduced, sent = group.recorder.last(2)
    assert reduced[-4:-1] == (2 * 999 * 32, 2 * 999 * 32, 2 * 999)
    assert sent[-4:-1] == (32_000, 0, 1)


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/3", "a/b", "1/2/3"])
def test_places_are_checked(monkeypatch, text):
    monkeypatch.setenv("HPCPAR_FAKE", text)
    with pytest.raises(ArgumentError, match="HPCPAR_FAKE"):
        hp.init(backend="fake")


def test_objects_are_those_of_this_rank(group):
    obj = {"a": [1, "x"]}
    assert group.all_gather_object(obj) == [obj] * 1000
    assert group.gather_object(obj, root=7) == [obj] * 1000
    assert group.gather_object(obj) is None
    assert group.broadcast_object(obj, root=7) == obj
    assert group.scatter_object(list(range(1000)), root=7) == 7
    assert group.all_to_all_object(list(range(1000))) == [7] * 1000
    with pytest.raises(UnsupportedError, match="no root sends"):
        group.broadcast_object(root=0)

"""Grids of ranks: every view of a grid is what NumPy's indexing of the ranks gives."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.errors import ArgumentError
from hpcpar.mesh.rank_grid import RankGrid, degrees, fill_in

NAMES = ("pp", "dp", "cp", "tp")


@st.composite
def grids(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(int(np.prod(shape)))))
    return RankGrid(np.array(order).reshape(shape) + draw(st.integers(0, 5)), NAMES[: len(shape)])


@given(grids(), st.data())
def test_a_line_or_plane_goes_through_the_place(grid, data):
    rank = int(data.draw(st.sampled_from(grid.ranks.reshape(-1).tolist())))
    at = grid.coordinate(rank)
    assert grid.ranks[at] == rank
    names = data.draw(st.permutations(grid.names))[: data.draw(st.integers(1, len(grid.names)))]
    part = grid.take(names, at)
    assert part.names == tuple(names)
    for place in np.ndindex(part.shape):
        whole = list(at)
        for name, index in zip(names, place, strict=True):
            whole[grid.axis(name)] = index
        assert part.ranks[place] == grid.ranks[tuple(whole)]


@given(grids(), st.data())
def test_merging_and_splitting_again_is_nothing(grid, data):
    names = data.draw(st.permutations(grid.names))[: data.draw(st.integers(1, len(grid.names)))]
    merged = grid.merge(names, "all")
    sizes = {name: grid.shape[grid.axis(name)] for name in names}
    split = merged.split("all", sizes)
    assert split.permute(grid.names) == grid
    if len(grid.names) == len(names):
        assert merged.ranks.tolist() == grid.ranks.transpose(grid._axes(names)).reshape(-1).tolist()


def test_every_order_of_axes_is_numpys_transpose():
    grid = RankGrid(np.arange(24).reshape(2, 3, 4), ("a", "b", "c"))
    for order in itertools.permutations(range(3)):
        names = tuple(grid.names[axis] for axis in order)
        assert np.array_equal(grid.permute(names).ranks, grid.ranks.transpose(order))


def test_a_grid_never_changes():
    given = np.arange(4).reshape(2, 2)
    grid = RankGrid(given, ("a", "b"))
    given[0, 0] = 7
    assert grid.ranks[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        grid.ranks[0, 0] = 1


def test_equal_grids_have_equal_names_and_places():
    grid = RankGrid([[0, 1], [2, 3]], ("a", "b"))
    assert grid == RankGrid(np.arange(4, dtype=np.uint8).reshape(2, 2), ["a", "b"])
    assert hash(grid) == hash(RankGrid(np.arange(4).reshape(2, 2), ("a", "b")))
    assert grid != RankGrid([[0, 1], [2, 3]], ("a", "c"))
    assert grid != RankGrid([[0, 2], [1, 3]], ("a", "b"))
    assert grid != RankGrid([[0, 1, 2, 3]], ("a", "b"))
    assert grid != "a"


def test_who_is_not_there_has_no_place():
    assert RankGrid([3, 5], ("a",)).coordinate(4) is None


@pytest.mark.parametrize(
    ("places", "names", "match"),
    [
        ([0, 1], (), "0 names for 1 axes"),
        ([[0, 1]], ("a",), "1 names for 2 axes"),
        (0, (), "0 names for 0 axes"),
        ([], ("a",), "whole numbers of at least 0, at least one"),
        ([0.0, 1.0], ("a",), "whole numbers"),
        ([True], ("a",), "whole numbers"),
        ([-1, 0], ("a",), "whole numbers"),
        ([0, 1, 0], ("a",), r"a rank comes twice in \[0, 1, 0\]"),
        ([[0], [1, 2]], ("a", "b"), "ranks are no array"),
        ([0, 1], "a", "must be a sequence of names"),
        ([0, 1], ("",), "must be a sequence of names"),
        ([0, 1], (1,), "must be a sequence of names"),
        ([[0, 1]], ("a", "a"), "must all be different"),
    ],
)
def test_what_is_no_grid_is_refused(places, names, match):
    with pytest.raises(ArgumentError, match=match):
        RankGrid(places, names)


def test_wrong_axes_are_refused():
    grid = RankGrid(np.arange(6).reshape(2, 3), ("dp", "tp"))
    with pytest.raises(ArgumentError, match="no axis 'cp'; there are 'dp', 'tp'"):
        grid.take(("cp",), (0, 0))
    with pytest.raises(ArgumentError, match="must be different, at least one"):
        grid.take(("dp", "dp"), (0, 0))
    with pytest.raises(ArgumentError, match="must be different, at least one"):
        grid.merge((), "all")
    with pytest.raises(ArgumentError, match="must be all axes"):
        grid.permute(("tp",))
    with pytest.raises(ArgumentError, match="must all be different"):
        grid.merge(("dp",), "tp")
    with pytest.raises(ArgumentError, match=r"axis 'tp' has 3 ranks, not a=2 x b=2 = 4\."):
        grid.split("tp", {"a": 2, "b": 2})
    with pytest.raises(ArgumentError, match=r"not a=2 x b=-1 = 2 times a whole number\."):
        grid.split("tp", {"a": 2, "b": -1})


@pytest.mark.parametrize("sizes", [(-1, -1), (0, 4), (-2, 4), (2.0, 2), (True, 4)])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(ArgumentError, match="must be at least 1; one may be -1"):
        fill_in(("a", "b"), sizes, 4, "x")


def test_degrees_are_said_whole():
    assert degrees(("pp", "dp", "tp"), (2, 4, 8)) == "pp=2 x dp=4 x tp=8 = 64 ranks"

"""Meshes: which groups they are, that views make no traffic, what is refused."""

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.errors import ArgumentError, MismatchError
from hpcpar.mesh import Costs, DeviceMesh, init_device_mesh


def digits(group):
    """Sums of this tell which ranks took part."""
    return 10 ** group.ranks[group.rank] if group.rank >= 0 else 0


def counted(group):
    """Operations that this rank has begun so far."""
    return len(group.recorder.last(1000))


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_an_axis_is_the_group_of_its_line(ranks):
    def body(group):
        columns = 2 if group.size % 2 == 0 else 1
        mesh = init_device_mesh((-1, columns), ("dp", "tp"), group=group)
        row, column = divmod(group.rank, columns)
        assert mesh.coordinate == (row, column)
        assert (mesh.rank("dp"), mesh.rank("tp")) == (row, column)
        assert mesh["tp"].ranks == tuple(group.ranks[row * columns + c] for c in range(columns))
        assert mesh["dp"].ranks == tuple(group.ranks[column::columns])
        for name in mesh.names:
            line = mesh[name]
            assert (line.rank, line.size) == (mesh.rank(name), mesh.axis_size(name))
            assert line.all_reduce(digits(group)) == sum(10**r for r in line.ranks)

    ranks(body)


@pytest.mark.sizes(4)
def test_the_same_ranks_are_the_same_group(ranks):
    def body(group):
        mesh = init_device_mesh((2, 2, 1), ("dp", "cp", "tp"), group=group)
        for view in (mesh, mesh["dp", "tp"], mesh.permute("tp", "cp", "dp")):
            assert view["dp"] is mesh["dp"]
        assert mesh.merge(("dp", "cp"), "data")["data"] is group
        assert mesh.flatten("all")["all"] is group
        assert init_device_mesh((2, 2), ("a", "b"), group=group)["a"] is mesh["dp"]
        turned = mesh.merge(("cp", "dp"), "data")["data"]
        assert turned is not group
        assert turned.ranks == tuple(group.ranks[r] for r in (0, 2, 1, 3))
        assert turned.all_reduce(digits(group)) == 1111

    ranks(body)


@pytest.mark.sizes(1, 2, 3, 4)
def test_making_and_viewing_moves_nothing(ranks):
    def body(group):
        before = counted(group)
        mesh = init_device_mesh((group.size, 1), ("dp", "tp"), group=group)
        view = mesh.split("dp", {"a": group.size, "b": 1}).permute("tp", "b", "a")["a", "tp"]
        assert view.names == ("a", "tp")
        assert view.merge(("tp", "a"), "x").flatten("y").shape == (group.size,)
        assert counted(group) == before

    ranks(body)


@pytest.mark.sizes(4)
def test_ranks_may_use_their_lines_in_any_order(ranks):
    """Groups are made by their members alone: nobody waits for ranks that ask for others."""

    def body(group):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), group=group)
        if group.rank in (0, 1):
            assert mesh["tp"].all_reduce(digits(group)) == 11
        assert mesh["dp"].all_reduce(digits(group)) == (101 if group.rank % 2 == 0 else 1010)

    ranks(body)


@pytest.mark.sizes(3, 4)
def test_a_mesh_of_some_ranks(ranks):
    def body(group):
        mesh = DeviceMesh([2, 0], ("x",), group=group)
        if group.rank in (0, 2):
            assert mesh["x"].ranks == (group.ranks[2], group.ranks[0])
            assert mesh["x"].all_reduce(digits(group)) == 101
            assert mesh.coordinate == ((1,) if group.rank == 0 else (0,))
        else:
            assert mesh.coordinate is None
            for wrong in (lambda: mesh["x"], lambda: mesh["x",], lambda: mesh.rank("x")):
                with pytest.raises(ArgumentError, match=r"is not in the mesh x=2 = 2 ranks\."):
                    wrong()
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.sizes(2, 4)
def test_many_meshes_come_and_go(ranks):
    def body(group):
        for number in range(300):
            mesh = init_device_mesh((2, -1), ("a", "b"), group=group)
            assert mesh["a"].all_reduce(np.ones(1))[0] == 2
            if number % 2:
                mesh.close()

    ranks(body)


@pytest.mark.sizes(4)
def test_closing_closes_what_it_made(ranks):
    def body(group):
        places = [[3, 1], [2, 0]]  # whose lines no other test has made
        mesh = DeviceMesh(places, ("dp", "tp"), group=group)
        kept = group.subgroup([3, 1] if group.rank % 2 else [2, 0])
        dp = mesh["dp"]
        assert mesh["tp"] is kept
        mesh["dp", "tp"].close()
        assert (dp.state, kept.state, group.state) == ("closed", "ok", "ok")
        assert mesh["dp"].all_reduce(1) == 2
        mesh.close()
        mesh.close()

    ranks(body)


@pytest.mark.sizes(4)
def test_ranks_of_a_machine_are_neighbours(ranks):
    def body(group):
        dealt = ("one", "two") * (group.size // 2)
        group.home.hosts, kept = dealt, group.home.hosts
        try:
            mesh = init_device_mesh((2, 2), ("dp", "tp"), group=group)
        finally:
            group.home.hosts = kept
        assert mesh.ranks.tolist() == [[0, 2], [1, 3]]

    ranks(body)


@pytest.mark.sizes(1, 2, 4)
def test_a_mesh_from_groups(ranks):
    def body(group):
        columns = 2 if group.size % 2 == 0 else 1
        rows = group.split(group.rank // columns)
        lines = group.split(group.rank % columns)
        mesh = DeviceMesh.from_groups({"dp": lines, "tp": rows})
        assert mesh == DeviceMesh(np.arange(group.size).reshape(-1, columns), ("dp", "tp"))
        assert (mesh["dp"], mesh["tp"]) == (lines, rows)
        mesh.close()
        assert lines.state == "ok"
        assert mesh.permute("tp", "dp")["dp"] is lines

    ranks(body)


@pytest.mark.sizes(4)
def test_groups_that_are_no_grid_are_refused(ranks):
    def body(group):
        pair = group.subgroup([group.rank // 2 * 2, group.rank // 2 * 2 + 1])
        with pytest.raises(MismatchError, match=r"not the lines of one grid.*a rank comes twice"):
            DeviceMesh.from_groups({"dp": pair, "tp": pair})
        uneven = group.split(min(group.rank, 1))
        with pytest.raises(MismatchError, match="groups of other sizes"):
            DeviceMesh.from_groups({"dp": group, "tp": uneven})
        with pytest.raises(ArgumentError, match="no groups were given"):
            DeviceMesh.from_groups({})
        assert group.all_reduce(1) == 4

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_ranks_with_other_meshes_are_told(ranks):
    def body(group):
        init_device_mesh((group.size,), ("dp",), group=group).verify()
        name = "tp" if group.rank == 1 else "dp"
        mesh = init_device_mesh((group.size,), (name,), group=group)
        with pytest.raises(MismatchError, match=r"different meshes. rank 0: dp=\d .*; rank 1: tp="):
            mesh.verify()
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.sizes(2)
def test_what_is_no_mesh_is_refused(ranks):
    def body(group):
        with pytest.raises(ArgumentError, match=r"has 2 ranks, not dp=2 x tp=3 = 6\."):
            init_device_mesh((2, 3), ("dp", "tp"), group=group)
        with pytest.raises(ArgumentError, match="1 names for 2 axes"):
            init_device_mesh((2, 1), ("dp",), group=group)
        with pytest.raises(ArgumentError, match=r"ranks \[2\] are not in group .* of 2 ranks"):
            DeviceMesh([1, 2], ("dp",), group=group)
        mesh = init_device_mesh((2, 1), ("dp", "tp"), group=group)
        for wrong in (lambda: mesh["cp"], lambda: mesh["dp", "cp"], lambda: mesh.axis_size("cp")):
            with pytest.raises(ArgumentError, match="no axis 'cp'; there are 'dp', 'tp'"):
                wrong()
        assert mesh["dp"].all_reduce(1) == 2

    ranks(body)


@pytest.mark.threads_only
def test_its_names_at_the_face():
    mesh = hp.mesh((1, 1), ("dp", "tp"))
    assert mesh == hp.init_device_mesh((1, 1), ("dp", "tp")) == hp.DeviceMesh([[0]], ("dp", "tp"))
    assert mesh != hp.mesh((1,), ("dp",))
    assert len({mesh, hp.mesh((1, -1), ("dp", "tp"))}) == 1
    assert (mesh.ndim, mesh.size, mesh.shape) == (2, 1, (1, 1))
    assert repr(mesh) == "<DeviceMesh dp=1 x tp=1 = 1 ranks, this one at (0, 0)>"


@pytest.mark.sizes(4)
def test_a_group_along_several_axes_and_of_two_meshes(ranks):
    def body(group):
        mesh = init_device_mesh((2, 1, 2), ("dp", "cp", "tp"), group=group)
        assert mesh.along("tp", "dp").ranks == tuple(group.ranks[r] for r in (0, 2, 1, 3))
        assert mesh.along("dp", "cp", "tp") is group
        assert mesh.along("cp", "tp") is mesh["tp"]
        some, others = (DeviceMesh(r, ("a",), group=group) for r in ([0, 1], [3, 1]))
        assert mesh.union(some) is group
        if group.rank != 2:
            both = some.union(others)
            assert both is others.union(some)
            assert both.ranks == tuple(group.ranks[r] for r in (0, 1, 3))
            assert both.all_reduce(digits(group)) == sum(10**r for r in both.ranks)
        else:
            with pytest.raises(ArgumentError, match="this rank is in neither"):
                some.union(others)
        assert some.place_of(group.ranks[1]) == (1,)
        assert some.place_of(group.ranks[3]) is some.place_of(10**6) is None

    ranks(body)


@pytest.mark.sizes(2, 4)
def test_costs_are_the_first_ranks_on_all(ranks):
    def body(group):
        mesh = init_device_mesh((2, group.size // 2), ("a", "b"), group=group)
        assert mesh.costs == (Costs(), Costs())
        measured = mesh.measured()
        assert measured == mesh
        told = group.all_gather_object([vars(costs) for costs in measured.costs])
        assert all(each == told[0] for each in told)
        assert all(costs.per_byte > 0 for costs in measured.costs)
        given = mesh.with_costs(Costs(1.0), Costs(2.0))
        assert given.permute("b", "a").costs == (Costs(2.0), Costs(1.0))
        assert given.flatten("all").costs == (Costs(2.0),)
        with pytest.raises(ArgumentError, match="1 costs for the axes"):
            mesh.with_costs(Costs())

    ranks(body)

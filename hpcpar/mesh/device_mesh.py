"""Ranks on a mesh whose axes have names, each of them a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, overload

import numpy as np

from .._arrays import Array
from ..comm.attach import as_group
from ..comm.group import Group
from ..comm.world import world
from ..errors import ArgumentError, MismatchError
from .costs import Costs, measure_costs
from .rank_grid import RankGrid, degrees, fill_in

__all__ = ["DeviceMesh", "init_device_mesh"]


def init_device_mesh(
    shape: Sequence[int], names: Sequence[str], *, group: Group | None = None
) -> DeviceMesh:
    """Return the mesh of all ranks of a group, in row-major order. Local: groups are made later.

    Ranks of one machine are neighbours along the last axes, also where the launcher dealt ranks to
    the machines in turn.

    Parameters
    ----------
    shape
        Sizes of the axes; one may be -1: what is left. The product is the size of the group.
    names
        One for each axis.
    group
        None is the current group.

    Raises
    ------
    ArgumentError
        Another product, names that are not all different.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     mesh = init_device_mesh((2, -1), ("dp", "tp"), group=group)
    ...     return mesh.coordinate, mesh["tp"].ranks, int(mesh["dp"].all_reduce(group.rank))
    >>> run_ranks(4, body)[2]
    ((1, 0), (2, 3), 2)
    """
    group = as_group(group)
    if len(shape) != len(names):
        raise ArgumentError(f"init_device_mesh: {len(names)} names for {len(shape)} axes.")
    sizes = fill_in(names, shape, group.size, f"init_device_mesh: group {group.name!r}")
    hosts = group.home.hosts
    first: dict[str, int] = {}
    for rank in group.ranks:
        first.setdefault(hosts[rank], rank)
    order = sorted(range(group.size), key=lambda r: (first[hosts[group.ranks[r]]], r))
    return DeviceMesh(np.array(order).reshape(sizes), names, group=group)


class DeviceMesh:
    """Ranks of a group on a grid with named axes; never changes. Making one is local.

    ``mesh["tp"]`` is the group of the ranks that differ from this one along that axis only, made
    when it is first asked for: collective over its members, and the same Group each time.
    ``mesh["dp", "cp"]`` is the mesh of these axes, in any order. `flatten`, `merge`, `split` and
    `permute` give other views of the same ranks, with no traffic.

    Parameters
    ----------
    ranks : array_like of int
        Ranks in `group`, all different; not all of its ranks need be there.
    names
        One for each axis of `ranks`.
    group
        None is the current group.

    Attributes
    ----------
    group : Group
        Whose ranks these are.
    coordinate : tuple of int or None
        Where this rank is; None: it is not in the mesh.
    costs : tuple of Costs
        What moving takes along each axis: assumed, unless `measured`.
    memo : dict
        What is known of arrays that lie on it.

    Raises
    ------
    ArgumentError
        Ranks outside the group or twice, other names than axes.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     mesh = DeviceMesh([[0, 2], [1, 3]], ("dp", "tp"), group=group)
    ...     return mesh["dp"].ranks, mesh.flatten("all")["all"].ranks
    >>> run_ranks(4, body)[0]
    ((0, 1), (0, 2, 1, 3))
    """

    def __init__(self, ranks: object, names: Sequence[str], *, group: Group | None = None) -> None:
        grid = RankGrid(ranks, names)
        self._start(grid, as_group(group), {}, [], (Costs(),) * len(grid.names))
        outside = [int(r) for r in self.ranks.flat if r >= self.group.size]
        if outside:
            raise ArgumentError(
                f"mesh: ranks {outside} are not in group {self.group.name!r} of "
                f"{self.group.size} ranks."
            )

    def _start(
        self,
        grid: RankGrid,
        group: Group,
        groups: dict[tuple[int, ...], Group],
        made: list[Group],
        costs: tuple[Costs, ...],
    ) -> None:
        self._grid, self.group, self.costs = grid, group, costs
        self._groups, self._made = groups, made  # shared by all views of this mesh
        self._lines: dict[tuple[str, ...], Group] = {}
        self._unions: dict[DeviceMesh, Group] = {}
        self.memo: dict[object, Any] = {}
        self.coordinate = grid.coordinate(group.rank)

    def _view(self, grid: RankGrid, costs: Sequence[Costs] | None = None) -> DeviceMesh:
        """Return a view; an axis that this mesh does not have costs what its dearest one does."""
        if costs is None:
            own = dict(zip(self.names, self.costs, strict=True))
            costs = [own.get(name, max(self.costs, key=astuple)) for name in grid.names]
        view = DeviceMesh.__new__(DeviceMesh)
        view._start(grid, self.group, self._groups, self._made, tuple(costs))
        return view

    @classmethod
    def from_groups(cls, groups: Mapping[str, Group]) -> DeviceMesh:
        """Return the mesh whose axes are these groups of this rank. Collective over all its ranks.

        Parameters
        ----------
        groups
            By name of the axis: the group of the ranks that differ from this one there only. The
            order is that of the axes.

        Raises
        ------
        ArgumentError
            None were given.
        MismatchError
            They are not the lines of one grid; on all ranks that it reaches.

        Examples
        --------
        >>> from hpcpar.testing import run_ranks
        >>> def body(group):
        ...     rows, columns = group.split(group.rank // 2), group.split(group.rank % 2)
        ...     mesh = DeviceMesh.from_groups({"dp": columns, "tp": rows})
        ...     return mesh["tp"] is rows, mesh.ranks.tolist()
        >>> run_ranks(4, body)[0]
        (True, [[0, 1], [2, 3]])
        """
        if not groups:
            raise ArgumentError("from_groups: no groups were given.")
        first = next(iter(groups.values()))
        ranks = np.array(first.ranks[first.rank])
        for group in reversed(tuple(groups.values())):
            shapes = group.all_gather(np.array(ranks.shape, np.int64)[None], sizes="equal")
            if (shapes != shapes[0]).any():
                raise MismatchError(f"from_groups: groups of other sizes on the ranks of {group}.")
            ranks = group.all_gather(ranks[None], sizes="equal")
        mesh = cls.__new__(cls)
        lines = {group.ranks: group for group in groups.values()}
        mesh._start(_grid_of(ranks, groups), world(), lines, [], (Costs(),) * len(groups))
        return mesh

    # -- what it is ------------------------------------------------------------------------

    @property
    def ranks(self) -> Array:
        """Ranks in `group`, by place; read-only."""
        return self._grid.ranks

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return self._grid.names

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self._grid.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.names)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.ranks.size

    def axis_size(self, name: str) -> int:
        """Return the size of an axis. Local."""
        return self.shape[self._grid.axis(name)]

    def rank(self, name: str) -> int:
        """Return this rank's place along an axis, which is its rank in that group. Local."""
        return self._place("rank")[self._grid.axis(name)]

    def __repr__(self) -> str:
        return f"<DeviceMesh {degrees(self.names, self.shape)}, this one at {self.coordinate}>"

    def _globally(self) -> RankGrid:
        return RankGrid(np.array(self.group.ranks)[self.ranks], self.names)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same global ranks at the same places of axes of the same names."""
        return self is other or (
            isinstance(other, DeviceMesh) and self._globally() == other._globally()
        )

    def __hash__(self) -> int:
        return hash(self._globally())

    def _place(self, what: str) -> tuple[int, ...]:
        if self.coordinate is None:
            raise ArgumentError(
                f"{what}: rank {self.group.rank} of group {self.group.name!r} is not in the mesh "
                f"{degrees(self.names, self.shape)}."
            )
        return self.coordinate

    # -- groups ------------------------------------------------------------------------------

    @overload
    def __getitem__(self, names: str) -> Group: ...
    @overload
    def __getitem__(self, names: tuple[str, ...]) -> DeviceMesh: ...
    def __getitem__(self, names: str | tuple[str, ...]) -> Group | DeviceMesh:
        """Return the group along one axis, or the mesh of several axes, through this rank.

        A group is made when it is first asked for, collective over its members.

        Raises
        ------
        ArgumentError
            No such axis, one twice; this rank is not in the mesh.
        """
        if isinstance(names, tuple):
            return self._view(self._grid.take(names, self._place("mesh[...]")))
        return self.along(names)

    def along(self, *names: str) -> Group:
        """Return the group of the ranks that differ from this one along some axes only.

        Made when it is first asked for, collective over its members. Its ranks are in the order of
        the axes given, of which the last runs fastest.

        Raises
        ------
        ArgumentError
            No such axis, one twice; this rank is not in the mesh.

        Examples
        --------
        >>> from hpcpar.testing import run_ranks
        >>> def body(group):
        ...     mesh = init_device_mesh((2, 1, 2), ("dp", "cp", "tp"), group=group)
        ...     return mesh.along("tp", "dp").ranks
        >>> run_ranks(4, body)[3]
        (0, 2, 1, 3)
        """
        found = self._lines.get(names)
        if found is None or found.state == "closed":
            line = self._grid.take(names, self._place(f"mesh{list(names)}"))
            found = self._lines[names] = self._group_of(tuple(line.ranks.reshape(-1).tolist()))
        return found

    def line(self, mesh_axes: Iterable[int]) -> Group:
        """Return the group along axes that are given by their numbers, as `along` does by names."""
        return self.along(*(self.names[m] for m in mesh_axes))

    def union(self, other: DeviceMesh) -> Group:
        """Return the group of the ranks of two meshes, in the order of the world.

        Made when it is first asked for, collective over its members.

        Raises
        ------
        ArgumentError
            This rank is in neither of them.
        """
        found = self._unions.get(other)
        if found is None or found.state == "closed":
            everyone = sorted({*self._globally().ranks.flat, *other._globally().ranks.flat})
            parent = self.group if set(everyone) <= set(self.group.ranks) else world()
            line = tuple(parent.ranks.index(rank) for rank in everyone)
            whole = line == tuple(range(parent.size))
            found = self._unions[other] = parent if whole else parent.subgroup(line)
            if found.rank < 0:
                raise ArgumentError(f"union: this rank is in neither {self} nor {other}.")
        return found

    def place_of(self, global_rank: int) -> tuple[int, ...] | None:
        """Return where a rank of the world is, or None if it is not in the mesh. Local."""
        ranks = self.group.ranks
        return self._grid.coordinate(ranks.index(global_rank)) if global_rank in ranks else None

    def _group_of(self, ranks: tuple[int, ...]) -> Group:
        if ranks == tuple(range(self.group.size)):
            return self.group
        key = tuple(self.group.ranks[r] for r in ranks)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self.group.subgroup(ranks)
            self._made.append(found)
        return found

    def close(self) -> None:
        """Close the groups that this mesh and its views have made. Collective over each."""
        while self._made:
            group = self._made.pop(0)
            del self._groups[group.ranks]
            group.close()

    # -- other views ---------------------------------------------------------------------------

    def flatten(self, name: str) -> DeviceMesh:
        """Return the mesh with all axes made one, the last of which runs fastest. Local."""
        return self.merge(self.names, name)

    def merge(self, names: Sequence[str], name: str) -> DeviceMesh:
        """Return the mesh with some axes made one, in the place of the first of them. Local.

        Examples
        --------
        >>> from hpcpar.testing import run_ranks
        >>> def body(group):
        ...     mesh = init_device_mesh((2, 2, 1), ("dp", "cp", "tp"), group=group)
        ...     return mesh.merge(("dp", "cp"), "data")
        >>> run_ranks(4, body)[3]
        <DeviceMesh data=4 x tp=1 = 4 ranks, this one at (3, 0)>
        """
        return self._view(self._grid.merge(names, name))

    def split(self, name: str, sizes: Mapping[str, int]) -> DeviceMesh:
        """Return the mesh with one axis made several, the last of which runs fastest. Local.

        Parameters
        ----------
        name
            The axis.
        sizes
            Names and sizes of the new axes; one size may be -1: what is left.

        Examples
        --------
        >>> from hpcpar.testing import run_ranks
        >>> def body(group):
        ...     return init_device_mesh((4,), ("dp",), group=group).split("dp", {"a": 2, "b": 2})
        >>> run_ranks(4, body)[1]
        <DeviceMesh a=2 x b=2 = 4 ranks, this one at (0, 1)>
        """
        return self._view(self._grid.split(name, sizes))

    def permute(self, *names: str) -> DeviceMesh:
        """Return the mesh with its axes in another order. Local."""
        return self._view(self._grid.permute(names))

    def measured(self) -> DeviceMesh:
        """Return the mesh with costs that its first rank measured. Collective; 0.1 s an axis.

        Redistributions of arrays on it compare their ways by these.
        """
        found = [astuple(measure_costs(self[name])) for name in self.names]
        told = self.along(*self.names).broadcast(np.array(found))
        return self._view(self._grid, [Costs(*map(float, row)) for row in told])

    def with_costs(self, *costs: Costs) -> DeviceMesh:
        """Return the mesh with other costs, one for each axis; the same on all ranks. Local."""
        if len(costs) != self.ndim:
            raise ArgumentError(f"with_costs: {len(costs)} costs for the axes of {self}.")
        return self._view(self._grid, costs)

    # -- checks ----------------------------------------------------------------------------------

    def verify(self) -> None:
        """Compare the mesh of all ranks of `group`. Collective over it.

        Raises
        ------
        MismatchError
            Some have another one; on all of them, naming what they have.
        """
        told = self.group.all_gather_object((self.names, self.ranks.tolist()))
        others = [rank for rank, its in enumerate(told) if its != told[0]]
        if others:
            said = "; ".join(
                f"rank {rank}: {degrees(told[rank][0], np.shape(told[rank][1]))} {told[rank][1]}"
                for rank in (0, *others[:3])
            )
            raise MismatchError(f"verify: the ranks have different meshes. {said}.")


def _grid_of(ranks: Array, groups: Mapping[str, Group]) -> RankGrid:
    """Return the grid of what was gathered, whose lines must be the groups. Local."""
    try:
        grid = RankGrid(ranks, tuple(groups))
    except ArgumentError as error:
        raise MismatchError(f"from_groups: not the lines of one grid. {error}") from error
    some = next(iter(groups.values()))
    place = grid.coordinate(some.ranks[some.rank])
    assert place is not None  # it gathered its own
    for name, group in groups.items():
        line = tuple(grid.take((name,), place).ranks.tolist())
        if line != group.ranks:
            raise MismatchError(
                f"from_groups: axis {name!r} has the ranks {line}, its group {group.ranks}."
            )
    return grid

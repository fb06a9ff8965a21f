"""Groups of communicators that somebody else made; the default group stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

from ..errors import ArgumentError
from .group import Group, current_group
from .settings import Settings
from .world import World, find_default, group_of_one, on_mpi

__all__ = ["Attached", "as_group"]


def as_group(comm: Any = None) -> Group:
    """Return the Group of a communicator, for libraries: touches nothing global.

    Collective over `comm` at first use. No hook, no handler, no thread.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Group or None
        A Group is returned as it is. None: the default group if there is one, else MPI's world
        if MPI runs, else a world of one.

    Raises
    ------
    ArgumentError
        It is something else.

    Examples
    --------
    >>> import hpcpar as hp
    >>> hp.as_group().all_reduce(3)
    3
    """
    if isinstance(comm, Group):
        return comm
    mpi = sys.modules.get("mpi4py.MPI")
    if comm is None:
        found = current_group.get() or find_default()
        if found is not None:
            return found
        if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
            return group_of_one()
        comm = mpi.COMM_WORLD
    if mpi is None or not isinstance(comm, mpi.Intracomm):
        raise ArgumentError(
            f"as_group: comm is a {type(comm).__name__}; it must be an mpi4py Intracomm, a Group "
            "or None."
        )
    from .mpi import cached_on

    found = cached_on(comm, lambda: on_mpi(Settings(backend="mpi"), comm))
    assert isinstance(found, World)
    return found.group


class _Family:
    """A world and the groups made from it, which it outlives."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: set[str] = set()

    def take_name(self) -> str:
        """Return a name that no open group has: one made anew goes on in an old one's record."""
        names = (f"comm {n}" for n in count())
        name = next(name for name in names if name not in self.names)
        self.names.add(name)
        return name

    def give_back(self, name: str) -> None:
        """End the world with its last group."""
        self.names.remove(name)
        if not self.names:
            self.world.free()


class Attached:
    """A group that only its owner knows; groups with the same ranks stay apart.

    Attributes
    ----------
    group : Group
    calls : dict
        How often each kind of call was made; for who decides by that.
    """

    def __init__(self, group: Group, family: _Family, name: str) -> None:
        self.group = group
        self.calls: dict[Any, int] = {}
        self._family, self._name = family, name

    @classmethod
    def to(cls, comm: Any) -> Attached | None:
        """Return one of a communicator's ranks; None where they share no memory. Collective."""
        world = on_mpi(Settings(timeout=None), comm)
        if world.group.backend != "node":
            world.free()
            return None
        # A peer may be in MPI, with a message that this process must help along before it can come.
        runner = world.group._runner
        assert runner is not None
        runner.backend.meanwhile(world.group.mpi_comm.Iprobe)
        return cls.over(world)

    @classmethod
    def over(cls, world: World) -> Attached:
        """Return one of all ranks of a world, which ends with the last group of them. Local."""
        family = _Family(world)
        return cls(world.group, family, family.take_name())

    def keep(self, timeout: float | None) -> None:
        """Take a default deadline of its own, and one order of all calls. Local."""
        runner = self.group._runner
        assert runner is not None
        runner.timeout, runner.in_one_order = timeout, True
        runner.backend.limit(timeout)
        runner.backend.order_all()

    def of(self, ranks: Sequence[int]) -> Attached:
        """Return another of some ranks of this one, in this order. Collective over them."""
        runner, name = self.group._runner, self._family.take_name()
        assert runner is not None
        members = [self.group.ranks[r] for r in ranks]
        group = Group(self.group._home, runner.backend.subgroup(ranks), members, name)
        return type(self)(group, self._family, name)

    def close(self) -> None:
        """Let go of the group. Local; a second call does nothing."""
        if self.group is not self._family.world.group and self.group.state != "closed":
            assert self.group._runner is not None
            self.group._runner.close()
        if self._name:
            self._family.give_back(self._name)
            self._name = ""

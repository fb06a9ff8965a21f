"""One rank's copy of the parameters, and the memory and the rules of its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from .._arrays import Array
from ..comm.group import Group
from ..comm.persistent import PersistentAllReduce
from ..errors import ArgumentError
from .bucket import Bucket
from .buffers import Buffers, Planner, chunks
from .hooks import CommHook
from .identity import agree_on_names
from .report import Verdict
from .stats import StepTimes
from .usage import Usage
from .window import Window

if TYPE_CHECKING:
    from .join import Join

__all__ = ["Replica", "Unused"]

Unused: TypeAlias = Literal["error", "zero", "skip"]


class Replica:
    """What a `DDP` and its steps share. Making one is collective over `group`.

    Parameters
    ----------
    params
        Without second names of tied parameters, in rank 0's order.
    first_names
        Every name to the one in `params`.
    groups
        First the group of all copies, then the smaller ones of single parameters.
    planner
        Of their gradients.
    hooks
        The chain.
    unused
        What a parameter without gradient is.
    static
        Whether all steps are alike.
    buffers
        Arrays that follow rank 0's.

    Attributes
    ----------
    layout
        Buckets and where they lie.
    means
        What takes the mean of each bucket that all copies share and no hook changes.
    window
        What has been added up.
    is_open
        Whether a step is.
    syncing
        Whether steps synchronise.
    grads
        Of the last synchronised step.
    steps
        Synchronised ones.
    last, total
        What they cost.
    join
        The block in which ranks may run out of data, if one is open.
    """

    def __init__(
        self,
        params: dict[str, Array],
        first_names: Mapping[str, str],
        groups: Sequence[Group],
        planner: Planner,
        hooks: Sequence[CommHook],
        *,
        unused: Unused,
        static: bool,
        buffers: Mapping[str, Array],
    ) -> None:
        self.params, self.first_names, self.groups = params, first_names, tuple(groups)
        self.planner, self.hooks, self.unused = planner, tuple(hooks), unused
        self.buffers = buffers
        self.usage = Usage(params, static)
        self.window = Window()
        self.is_open, self.syncing = False, True
        self.grads: dict[str, Array] = {}
        self.steps, self.last, self.total = 0, StepTimes(), StepTimes()
        self.join: Join | None = None
        self._memory = Buffers(planner, groups)
        self._lay_out(planner.plan())
        self.order: tuple[str, ...] | None = None  # observed, once it is
        self._next: tuple[Bucket, ...] | None = None
        for hook in self.hooks:
            hook.start(self._memory, self.layout, self.group)

    @property
    def group(self) -> Group:
        """All copies."""
        return self.groups[0]

    def broadcast_params(self, root: int = 0) -> None:
        """Overwrite parameters and buffers with those of rank `root`. Collective over the groups.

        A parameter that a smaller group holds is that group's first rank's.
        """
        for number, group in enumerate(self.groups):
            mine = [p for n, p in self.params.items() if self.planner.groups.get(n, 0) == number]
            for chunk in chunks(mine):
                group.broadcast(chunk, root=root if number == 0 else 0, out=chunk)
        self.broadcast_buffers(root)

    def broadcast_buffers(self, root: int = 0) -> None:
        """Overwrite the buffers with those of rank `root`. Collective."""
        for chunk in chunks(list(self.buffers.values())):
            self.group.broadcast(chunk, root=root, out=chunk)

    def lay_out(self) -> None:
        """Take up a new plan where nothing has been added up that lies by the old one. Local."""
        if self._next is not None and not self.window.weights:
            self._lay_out(self._next)
            self._next = None
            for hook in self.hooks:
                hook.rebuilt(self.layout)

    def _lay_out(self, plan: Sequence[Bucket]) -> None:
        self.layout = self._memory.lay_out(plan)
        pairs = zip(self.layout.buckets, self.layout.flats, strict=True)
        is_plain = not self.hooks
        self.means = [
            PersistentAllReduce(self.group, flat, "mean") if is_plain and not bucket.group else None
            for bucket, flat in pairs
        ]

    def claim_group(self) -> None:
        """Raise if another DDP's step is open on the group: their operations would meet."""
        key = self.group.name, self.group.ranks
        if key in self.group.home.busy:
            raise ArgumentError(
                f"ddp.step: a step of another DDP is open on this group {self.group.here()}. Leave "
                "it first, or make one DDP of both models' parameters."
            )
        self.group.home.busy.add(key)

    def release_group(self) -> None:
        """Let other steps open."""
        self.group.home.busy.discard((self.group.name, self.group.ranks))

    def missing(self, reports: Mapping[str, int]) -> list[str]:
        """Return the parameters whose gradients should have come."""
        short = self.usage.short(reports)
        if short or self.unused != "error":
            return short
        if self.window.touched >= self.params.keys():
            return []
        return [name for name in self.params if name not in self.window.touched]

    def observed(self, reports: Mapping[str, int]) -> list[str] | None:
        """Return the order in which gradients came, if that is what the buckets still wait for."""
        if self.order is not None or not self.usage.is_measure(reports):
            return None
        return [name for name in self.params if name not in reports] + list(reports)

    def agreed_grads(self, verdict: Verdict) -> dict[str, Array]:
        """Return the gradients that some rank has."""
        unused = self.unused_by_all(verdict)
        return {n: self.layout.views[n] for n in self.params if n not in unused}

    def unused_by_all(self, verdict: Verdict) -> set[str]:
        """Return the parameters that no rank has a gradient of, where that is asked for."""
        if not verdict.used:
            return set()
        pairs = zip(self.params, verdict.used, strict=True)
        return {name for name, is_used in pairs if not is_used}

    def end_synchronised(self, reports: Mapping[str, int], verdict: Verdict, is_own: bool) -> None:
        """Learn from a step that went well. Collective once, when rank 0 knows the order.

        A step in which this rank only followed others is no measure.
        """
        self.steps += 1
        if verdict.ordered:
            self.follow(self.group.broadcast_object(self.observed(reports)))
        if is_own:
            self.usage.learn(reports)

    def follow(self, order: Sequence[str]) -> None:
        """Let buckets hold gradients in this order, from the next step on. Collective."""
        self.order = tuple(order)
        plan = self.planner.plan(self.order)
        agree_on_names("DDP", {"buckets": repr(plan)}, self.group)
        self._next = None if plan == self.layout.buckets else plan

    def count(self, times: StepTimes) -> None:
        """Add a step to the statistics."""
        self.last, self.total = times, self.total + times

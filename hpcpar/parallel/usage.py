"""How often each gradient comes in a step: once, or as often as in the first step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..comm.group import Group
from ..errors import ArgumentError

__all__ = ["Usage"]


class Usage:
    """What a step expects of each parameter.

    Parameters
    ----------
    names
        The parameters.
    static
        Whether every step is like the first: then parameters may come several times, those that
        do not come in the first never do, and nothing leaves before the end of the first.
    """

    def __init__(self, names: Iterable[str], static: bool) -> None:
        self._names, self._static = tuple(names), static
        self._counts: dict[str, int] | None = None if static else dict.fromkeys(self._names, 1)

    @property
    def unused(self) -> list[str]:
        """Parameters that never come."""
        if not self._static or self._counts is None:
            return []
        return [name for name, count in self._counts.items() if count == 0]

    def is_complete(self, name: str, count: int) -> bool:
        """Whether nothing comes after `count` gradients of `name`; never known in a first step."""
        return self._counts is not None and self._counts[name] == count

    def check_all(self, counts: Mapping[str, int], group: Group) -> None:
        """Do what `check` does for several."""
        if self._static or max(counts.values(), default=1) > 1:
            for name, count in counts.items():
                self.check(name, name, count, group)

    def complete_ones(self, counts: Mapping[str, int]) -> Iterable[str]:
        """Return those of which nothing comes after so many gradients."""
        if not self._static:  # each comes once
            return counts
        return [name for name, count in counts.items() if self.is_complete(name, count)]

    def check(self, first: str, name: str, count: int, group: Group) -> None:
        """Raise if the gradient of `first`, reported as `name`, comes once too often."""
        limit = count if self._counts is None else self._counts[first]
        if count <= limit:
            return
        if not self._static:
            raise ArgumentError(
                f"ddp.step: gradient {name!r} was reported twice in one step {group.here()}. "
                "Report each once; accumulate with ddp.no_sync()."
            )
        raise ArgumentError(
            f"ddp.step: gradient {name!r} was reported {count} times, in the first step {limit} "
            f"times {group.here()}. With static=True all steps are alike."
        )

    def short(self, reports: Mapping[str, int]) -> list[str]:
        """Return what has not come as often as it should, in a static step after the first."""
        if not self._static or self._counts is None:
            return []
        return [name for name, count in self._counts.items() if reports.get(name, 0) != count]

    def is_measure(self, reports: Mapping[str, int]) -> bool:
        """Whether these gradients show in what order they come in other steps too."""
        return self._static or len(reports) == len(self._names)

    def learn(self, reports: Mapping[str, int]) -> None:
        """Take the first step as the measure of all."""
        if self._counts is None:
            self._counts = {name: reports.get(name, 0) for name in self._names}

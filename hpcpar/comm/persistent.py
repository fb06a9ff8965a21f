"""A collective that is begun again and again on the same array: what was checked is kept."""

from __future__ import annotations

from .._arrays import Array
from ..errors import ArgumentError
from .backend import Operation
from .group import Group
from .reduce_requests import AllReduce
from .request import is_plain
from .work import Work

__all__ = ["PersistentAllReduce"]


class PersistentAllReduce:
    """An all_reduce in place; MPI calls such an operation persistent. Making one is local.

    It saves what a call costs before the data moves: on the node engine the ranks compare it in
    the same operation. The array is not locked while an operation is on its way.

    Parameters
    ----------
    group
        Its ranks begin it alike; each may begin an ordinary all_reduce instead.
    x
        Reduced in place, again and again.
    op
        As for `all_reduce`.

    Attributes
    ----------
    x
        The array.
    """

    def __init__(self, group: Group, x: Array, op: str) -> None:
        self.x = x
        self._runner = group._member("all_reduce")
        self._request = AllReduce(self._runner.view, x, op, None, x)
        self._work: Work | None = None
        self._kept: Operation | None = None
        if is_plain(x):
            kept = next(self._request.steps(None))
            assert isinstance(kept, Operation)
            kept.send = kept.recv = x  # which it hands back
            if self._runner.prepare(self._request, kept):
                self._kept = kept

    def start(self) -> Work:
        """Begin it. Collective; the result of the Work is the array.

        Raises
        ------
        ArgumentError
            It is on its way still.
        """
        if self._work is not None and not self._work.done():
            raise ArgumentError(f"all_reduce: begun again before it ended {self._runner.here()}.")
        self._work = self._runner.begin_again(self._request, self._kept)
        return self._work

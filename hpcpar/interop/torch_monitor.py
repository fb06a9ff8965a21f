"""A barrier that says who does not come."""

from __future__ import annotations

import time

import numpy as np

from ..comm.group import Group
from ..comm.work import Work
from ..errors import CollectiveTimeout, HpcparError

__all__ = ["meet"]

_TAG = 32_001


def meet(group: Group, seconds: float, wait_all_ranks: bool) -> None:
    """Return when all ranks are here. Collective.

    Parameters
    ----------
    group
        The ranks.
    seconds
        How long to wait.
    wait_all_ranks
        Whether rank 0 waits for all before it says who is missing; otherwise it names the first.

    Raises
    ------
    CollectiveTimeout
        On rank 0, with the ranks that did not come; on the others when it does not answer.
    """
    end = time.monotonic() + seconds
    if group.rank:
        _send(group, 0, seconds)
        try:
            _receive(group, 0, end)
        except HpcparError as error:
            raise CollectiveTimeout(
                f"Rank {group.rank} successfully reached monitoredBarrier, but received errors "
                f"while waiting for send/recv from rank 0: {error}"
            ) from error
        return
    missing = []
    for rank in range(1, group.size):
        if time.monotonic() >= end and not wait_all_ranks:
            raise CollectiveTimeout(f"Rank 0 timed out in monitoredBarrier after {seconds} s")
        try:
            _receive(group, rank, end)
        except HpcparError:
            missing.append(rank)
            if not wait_all_ranks:
                break
    if missing:
        names = f"Rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        raise CollectiveTimeout(
            f"[Rank 0]: {names} failed to pass monitoredBarrier in {int(1e3 * seconds)} ms"
        )
    for rank in range(1, group.size):
        _send(group, rank, seconds)


def _send(group: Group, rank: int, seconds: float) -> None:
    """Send a sign of life; if nobody takes it, that is seen by who waits for it."""
    limit = max(1e-3, seconds)
    work: Work = group.send(np.zeros(1, np.uint8), rank, tag=_TAG, async_op=True, timeout=limit)
    work.on_done(Work.exception)


def _receive(group: Group, rank: int, end: float) -> None:
    group.recv(rank, tag=_TAG, timeout=max(1e-3, end - time.monotonic()))

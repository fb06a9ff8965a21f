"""What ranks tell each other at the end of a synchronised step, in one small all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..comm.group import Group
from ..errors import ArgumentError, MismatchError, RankFailed

__all__ = ["Report", "Verdict", "explanation"]


@dataclass(frozen=True)
class Report:
    """How the step went on this rank.

    Attributes
    ----------
    weight
        Of its samples.
    weighted
        Whether it gave one.
    error
        What is wrong.
    ordered
        Whether rank 0 has seen all gradients arrive, each once.
    used
        Whether it has a gradient, by parameter; empty where nobody asks.
    """

    weight: float
    weighted: bool
    error: str | None
    ordered: bool
    used: Sequence[bool]

    def agree(self, group: Group) -> Verdict:
        """Sum the reports of all ranks. Collective."""
        ordered = self.ordered and group.rank == 0
        mine = [self.weight, self.weighted, self.error is not None, ordered, *self.used]
        sums = np.array(mine, np.float64)
        group.all_reduce(sums, "sum", out=sums)
        total, given, failed, known, *used = sums.tolist()
        return Verdict(total, int(given), bool(failed), bool(known), [n > 0 for n in used])


@dataclass(frozen=True)
class Verdict:
    """How the step went on all ranks.

    Attributes
    ----------
    weight
        Sum of the weights.
    given
        How many ranks gave one.
    failed
        Whether something is wrong on some rank.
    ordered
        Whether rank 0 has seen all gradients arrive, each once.
    used
        Whether any rank has a gradient, by parameter.
    """

    weight: float
    given: int
    failed: bool
    ordered: bool
    used: Sequence[bool]

    def is_split(self, size: int) -> bool:
        """Whether only some of `size` ranks gave a weight."""
        return 0 < self.given < size

    def check_weights(self, group: Group) -> None:
        """Raise if only some ranks gave a weight; on all ranks alike."""
        if self.is_split(group.size):
            raise MismatchError(
                f"ddp.step: ranks disagree on weight: {self.given} of {group.size} gave one"
                f" {group.here()}. Give it on all ranks or on none. No gradients were set."
            )


def explanation(error: str | None, is_mistake: bool, group: Group) -> Exception:
    """Return the error that ranks without an exception of their own raise alike. Collective.

    Parameters
    ----------
    error
        What is wrong on this rank.
    is_mistake
        Whether it is the caller's, and no exception of something else.
    """
    reports = group.all_gather_object([error, is_mistake])
    texts = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(reports) if text]
    message = f"ddp.step: {'; '.join(texts)} {group.here()}. No gradients were set."
    return ArgumentError(message) if all(kind for _, kind in reports) else RankFailed(message)

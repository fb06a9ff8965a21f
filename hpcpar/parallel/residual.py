"""Error feedback: what a hook has not sent yet, to be added to the next step's gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._arrays import Array
from ..comm.group import Group
from ..errors import ArgumentError
from .bucket import Bucket
from .buffers import Layout

__all__ = ["Residual"]


class Residual:
    """One array per gradient, zero at first, laid out as the buckets are; float32 for half types.

    Also for other things that a hook keeps of each gradient.

    Parameters
    ----------
    layout
        The buckets.
    group
        All copies.
    label
        What its arrays are called in states.

    References
    ----------
    Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes,
    ICML 2019.
    """

    def __init__(self, layout: Layout, group: Group, label: str = "residual") -> None:
        self._group, self._label = group, label
        self._lay_out(layout)

    def _lay_out(self, layout: Layout) -> None:
        wide = [np.promote_types(b.dtype, np.float32) for b in layout.buckets]
        flats = tuple(np.zeros(b.count, d) for b, d in zip(layout.buckets, wide, strict=True))
        self._layout = Layout(layout.buckets, flats)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The plan."""
        return self._layout.buckets

    def flat(self, index: int) -> Array:
        """Return what bucket `index` has not sent, shape ``(count,)``; written by the hook.

        Where steps have weights these are products with them.
        """
        return self._layout.flats[index]

    def keep_finite(self, index: int) -> None:
        """Drop what is not finite: it was sent, the step is lost, and later ones must not be."""
        np.nan_to_num(self.flat(index), copy=False, nan=0, posinf=0, neginf=0)

    def rebuilt(self, layout: Layout) -> None:
        """Move every gradient's to its new place."""
        before = self._layout.views
        self._lay_out(layout)
        for name, view in self._layout.views.items():
            view[...] = before[name]

    def state_dict(self) -> dict[str, Any]:
        """Return ``"<label>.<name>"``, the ranks' arrays stacked. Collective over the group."""
        return {
            f"{self._label}.{name}": self._group.all_gather(view[None], sizes="equal")
            for name, view in self._layout.views.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's; where the number of ranks is another, everybody the mean. Local.

        The mean over ranks, which is what the next steps still get, is the same then.
        """
        self.check_state(state)
        for name, view in self._layout.views.items():
            saved = state[f"{self._label}.{name}"]
            same = len(saved) == self._group.size
            view[...] = saved[self._group.rank] if same else saved.mean(axis=0)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ArgumentError if the state is that of other parameters. Local."""
        for name, view in self._layout.views.items():
            saved = state.get(f"{self._label}.{name}")
            if saved is None or saved.shape[1:] != view.shape:
                shape = "nothing" if saved is None else saved.shape[1:]
                raise ArgumentError(
                    f"load_state_dict: {self._label} of {name!r} has shape {shape}, must be "
                    f"{view.shape}. The state is that of other parameters."
                )

"""NumPy's functions of order and place by name: which rule answers for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UnsupportedError
from . import sorting, taking
from .base import Distributed
from .dispatch import register_rule

register_rule(np.nonzero)(sorting.nonzero)
register_rule(np.argwhere)(sorting.argwhere)
register_rule(np.flatnonzero)(sorting.flatnonzero)


def _plain(verb: str, options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value not in (None, False)]
    if given:
        raise UnsupportedError(f"{verb}: {', '.join(f'{name}=' for name in given)} has no rule.")


@register_rule(np.sort)
def _sort(a: Distributed, axis: int | None = -1, kind: Any = None, **options: Any) -> Any:
    _plain("sort", {"order": options.pop("order", None)})  # every kind gives the same values
    return sorting.sort(a, axis)


@register_rule(np.argsort)
def _argsort(a: Distributed, axis: int | None = -1, kind: Any = None, **options: Any) -> Any:
    _plain("argsort", {"order": options.pop("order", None)})  # it is stable in any case
    return sorting.argsort(a, axis)


@register_rule(np.unique)
def _unique(ar: Distributed, **options: Any) -> Any:
    if not options.pop("equal_nan", True):
        raise UnsupportedError("unique: equal_nan=False has no rule.")
    _plain("unique", options)
    return sorting.unique(ar)


@register_rule(np.take)
def _take(a: Distributed, indices: Any, axis: int | None = None, **options: Any) -> Any:
    if options.pop("mode", "raise") != "raise" or options.pop("out", None) is not None:
        raise UnsupportedError("take: out= and modes other than 'raise' have no rule.")
    return taking.take(a, indices, axis)

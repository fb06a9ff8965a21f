"""NumPy's functions and ufuncs on distributed arrays: which rule answers, or the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from . import elementwise, reductions, scans
from .base import Distributed, replicated
from .modes import current

__all__ = ["RULES", "call", "register_rule", "ufunc"]

#: What answers for NumPy's functions; ufuncs without a signature need no rule.
RULES: dict[Callable[..., Any], Callable[..., Any]] = {}
_REDUCTIONS: dict[Any, str] = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logical_or: "any",
    np.logical_and: "all",
}


def register_rule(
    function: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function the rule for one of NumPy's, or any other's. Local.

    Parameters
    ----------
    function
        As programs call it: ``numpy.linalg.det``, a ufunc with a signature.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcpar as hp
    >>> @hp.dtensor.register_rule(np.ptp)
    ... def ptp(x, axis=None):
    ...     return x.max(axis) - x.min(axis)
    >>> mesh = hp.init_device_mesh((1,), ("dp",))
    >>> float(np.ptp(hp.distribute(np.arange(4.0), mesh, hp.Shard(0))))
    3.0
    """

    def keep(rule: Callable[..., Any]) -> Callable[..., Any]:
        RULES[function] = rule
        return rule

    return keep


def call(function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Answer for a function of NumPy's."""
    rule = RULES.get(function)
    if rule is not None:
        return rule(*args, **options)
    return _without_rule(function, getattr(function, "__name__", str(function)), args, options)


def ufunc(
    function: np.ufunc, method: str, inputs: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Answer for a ufunc."""
    rest = dict(options)
    out = rest.pop("out", None)
    if method == "__call__" and function.signature is None:
        return _elementwise(function, inputs, out, rest)
    op = _REDUCTIONS.get(function)
    if op is not None and out is None and isinstance(inputs[0], Distributed):
        given = {"axis": 0, **rest}
        if method == "reduce" and set(given) <= {"axis", "keepdims", "dtype"}:
            return reductions.simple(op, inputs[0], given.pop("axis"), **given)
        if method == "accumulate" and op in scans.JOINS and set(given) <= {"axis", "dtype"}:
            return scans.accumulate(op, inputs[0], **given)
    if method == "__call__" and function in RULES and out is None:
        return RULES[function](*inputs, **rest)
    name = function.__name__ if method == "__call__" else f"{function.__name__}.{method}"
    return _without_rule(getattr(function, method), name, inputs, options)


def _elementwise(
    function: np.ufunc,
    inputs: tuple[Any, ...],
    out: tuple[Any, ...] | None,
    options: dict[str, Any],
) -> Any:
    if out is not None and all(x is None for x in out):
        out = None
    where = options.pop("where", True)
    if where is True:
        return elementwise.apply(function, inputs, out=out, **options)
    if out is None:
        raise UnsupportedError(
            f"{function.__name__}: where= without out= leaves elements undefined; give out."
        )

    def masked(*locals_: Any, out: Any) -> Any:
        *args, mask = locals_
        return function(*args, where=mask, out=out, **options)

    return elementwise.apply(masked, (*inputs, where), out=out, name=function.__name__)


def _without_rule(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Raise, or compute with whole arrays on every rank, as the policy says."""
    arrays = [x for x in _flat((args, options)) if isinstance(x, Distributed)]
    if any(x is not None for x in _flat(options.get("out"))):
        raise UnsupportedError(f"{name}: out= has no rule.")
    if name.endswith(".at"):  # NumPy writes there even if an array is read-only
        raise UnsupportedError(f"{name}: has no rule; nobody would see what it writes.")
    if current().fallback != "gather":
        raise UnsupportedError(
            f"{name}: no rule for {', '.join(str(x.layout) for x in arrays)}. Write it with "
            "functions that have one, give a rule with hp.dtensor.register_rule, or work inside "
            "hp.dtensor.fallback('gather'), which computes with whole arrays on every rank."
        )
    return _spread(function(*_gathered(args), **_gathered(dict(options))), arrays[0])


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, tuple | list):
        return [leaf for each in tree for leaf in _flat(each)]
    if isinstance(tree, Mapping):
        return [leaf for each in tree.values() for leaf in _flat(each)]
    return [tree]


def _gathered(tree: Any) -> Any:
    """Return the arguments with whole arrays, which cannot be written: nobody would see it."""
    if isinstance(tree, Distributed):
        whole = tree.moved_to(replicated(tree.layout).partition, "gather").view()
        whole.flags.writeable = False
        return whole
    return _mapped(_gathered, tree)


def _spread(tree: Any, first: Distributed) -> Any:
    """Return a result with its arrays replicated."""
    if isinstance(tree, np.ndarray | np.generic):
        return first.everywhere(np.asarray(tree))
    return _mapped(lambda each: _spread(each, first), tree)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree with its branches changed."""
    if isinstance(tree, Mapping):
        return {key: function(each) for key, each in tree.items()}
    if hasattr(tree, "_make"):  # a named tuple
        return tree._make(map(function, tree))
    return type(tree)(map(function, tree)) if isinstance(tree, tuple | list) else tree

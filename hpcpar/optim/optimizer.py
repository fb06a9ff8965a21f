"""The optimizer interface and what element-by-element optimizers share.

State is a flat dict: ``"step.<name>"`` (int, per parameter, so that parameters can join later),
``"<slot>.<name>"`` arrays, and ``"master.<name>"``, the float32 copy of a half-type parameter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from .._arrays import Array, namespace
from ..errors import ArgumentError

__all__ = ["Optimizer", "Reduce", "State", "blocks", "each_parameter", "init_slots", "require"]

State: TypeAlias = MutableMapping[str, Any]
#: ``reduce(values, op)``: `values` combined over the ranks that hold other parts; op "sum", "max".
Reduce: TypeAlias = Callable[[Array, str], Array]
Parts: TypeAlias = Iterator[tuple[Array, ...]]

_HALVES = ("float16", "bfloat16")
_FLOATS = (*_HALVES, "float32", "float64")
_BLOCK = 1 << 16  # elements: AdamW takes 28 ms for 10 M float32 so, 48 ms array by array


class Optimizer(ABC):
    """Updates parameters in place from gradients; holds settings, no arrays.

    Attributes
    ----------
    needs
        What an update of one element depends on. ``"element"``: itself, so any cut of a parameter
        can be updated by itself. ``"norm"``: sums over its parameter, taken through `reduce`.
        ``"whole"``: the whole parameter.
    """

    needs: ClassVar[Literal["element", "norm", "whole"]]

    @abstractmethod
    def init(self, params: Mapping[str, Array]) -> dict[str, Any]:
        """Return the state of `params`: a flat dict of arrays and numbers. Local.

        States of different parameters can be merged as dicts.
        """

    @abstractmethod
    def update(
        self,
        params: Mapping[str, Array],
        grads: Mapping[str, Array],
        state: State,
        *,
        lr: float,
        reduce: Reduce | None = None,
    ) -> None:
        """Write the next parameters to `params` and the next state to `state`. Local.

        Parameters
        ----------
        params
            Arrays to update in place (any layout).
        grads
            One gradient per parameter, same names and shapes; float32 is taken for half-type
            parameters too. Not changed.
        state
            From `init`.
        lr
            Learning rate of this step.
        reduce
            Sums over the other parts of cut parameters; only ``needs="norm"`` calls it, unless
            it is given, collective over whom it reduces.

        Raises
        ------
        ArgumentError
            A name without gradient, parameter or state; a shape or dtype that does not fit; a
            bad `lr`. Nothing has been changed then.
        """


def require(owner: str, **rules: tuple[float, bool, str]) -> None:
    """Check settings: name = (value, whether it is good, the rule in words).

    Raises
    ------
    ArgumentError
        One of them is not good.
    """
    for name, (value, good, rule) in rules.items():
        if not good:
            raise ArgumentError(f"{owner}: {name} is {value}, needs {rule}.")


def init_slots(params: Mapping[str, Array], slots: tuple[str, ...]) -> dict[str, Any]:
    """Return zero state with the given array slots per parameter. Local."""
    state: dict[str, Any] = {}
    for name, param in params.items():
        if param.dtype.name not in _FLOATS:
            raise ArgumentError(
                f"init: parameter {name!r} has dtype {param.dtype.name}, needs one of "
                f"{', '.join(_FLOATS)}."
            )
        state[f"step.{name}"] = 0
        computed_in = np.dtype(np.float32) if param.dtype.name in _HALVES else param.dtype
        if computed_in != param.dtype:
            state[f"master.{name}"] = param.astype(computed_in)
        for slot in slots:
            state[f"{slot}.{name}"] = namespace(param).zeros(param.shape, computed_in)
    return state


def each_parameter(
    params: Mapping[str, Array],
    grads: Mapping[str, Array],
    state: State,
    lr: float,
    slots: tuple[str, ...],
) -> Iterator[tuple[str, int, Parts]]:
    """Check the call, then yield each parameter's name, step (from 1) and blocks to update.

    Yields
    ------
    name, step
        The step is already counted in `state`.
    parts
        Tuples (weight, gradient, slot, ...) of equal shape, in the dtype computed in; weight and
        slots are to be updated in place. Exhaust them: half-type parameters are written from
        their float32 copies as the blocks pass.
    """
    _check_call(params, grads, state, lr, slots)
    for name, param in params.items():
        state[f"step.{name}"] += 1
        master = state.get(f"master.{name}", param)
        arrays = (master, *(state[f"{slot}.{name}"] for slot in slots))
        yield name, state[f"step.{name}"], _parts(param, grads[name], arrays)


def _parts(param: Array, grad: Array, arrays: tuple[Array, ...]) -> Parts:
    for param_part, grad_part, weight, *slots in blocks(param, grad, *arrays):
        yield weight, grad_part.astype(weight.dtype, copy=False), *slots
        if weight.dtype != param.dtype:
            param_part[...] = weight


def blocks(*arrays: Array) -> Parts:
    """Cut arrays into flat views that stay in cache (NumPy, contiguous), else yield them whole."""
    if namespace(arrays[0]) is not np or not all(a.flags.c_contiguous for a in arrays):
        yield arrays
        return
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, flat[0].size, _BLOCK):
        yield tuple(a[start : start + _BLOCK] for a in flat)


def _check_call(
    params: Mapping[str, Array],
    grads: Mapping[str, Array],
    state: State,
    lr: float,
    slots: tuple[str, ...],
) -> None:
    if not (math.isfinite(lr) and lr >= 0):
        raise ArgumentError(f"update: lr is {lr}, needs a finite number, 0 or more.")
    if params.keys() != grads.keys():
        _refuse_names(params, grads)
    for name, param in params.items():
        for slot in ("step", *slots):
            if f"{slot}.{name}" not in state:
                raise ArgumentError(
                    f"update: state has no {slot + '.' + name!r}. Add the parameter's state: "
                    "state.update(optimizer.init({name: param}))."
                )
        _check_grad(name, param, grads[name])


def _refuse_names(params: Mapping[str, Array], grads: Mapping[str, Array]) -> None:
    missing = [name for name in params if name not in grads]
    if missing:
        raise ArgumentError(
            f"update: grads has no {missing[0]!r} ({len(missing)} of {len(params)} parameters "
            "have no gradient). Pass frozen parameters in neither dict."
        )
    unknown = [name for name in grads if name not in params]
    raise ArgumentError(
        f"update: grads has {unknown[0]!r}, which is no parameter ({len(unknown)} such names). "
        "Pass only gradients of the parameters to update."
    )


def _check_grad(name: str, param: Array, grad: Array) -> None:
    if grad.shape != param.shape:
        raise ArgumentError(
            f"update: gradient {name!r} has shape {grad.shape}, needs the parameter's "
            f"{param.shape}."
        )
    wide_grad = param.dtype.name in _HALVES and grad.dtype == np.float32
    if grad.dtype != param.dtype and not wide_grad:
        raise ArgumentError(
            f"update: gradient {name!r} has dtype {grad.dtype.name}, needs the parameter's "
            f"{param.dtype.name} (or float32 for half types). Cast it."
        )

"""Layers made of layers, and putting wrappers into a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from .._arrays import Array
from ..errors import ArgumentError
from ..random import Key
from .layer import (
    Ctx,
    Layer,
    OnGrad,
    Params,
    Saved,
    backward_chain,
    forward_chain,
    init_children,
)

__all__ = ["Residual", "Sequential", "named_layers", "replace"]


class Sequential(Layer):
    """One layer after the other.

    Parameters
    ----------
    children
        Layers by name, or in order (names "0", "1", ...).

    Raises
    ------
    ArgumentError
        A name holds a dot: dots separate the levels of a parameter's name.

    Notes
    -----
    Saved: what each child saves.

    Examples
    --------
    >>> from hpcpar.nn import Linear, Sequential
    >>> from hpcpar.random import Key
    >>> sorted(Sequential([Linear(2, 3), Linear(3, 1, bias=False)]).init(Key(0)))
    ['0.bias', '0.weight', '1.weight']
    """

    def __init__(self, children: Mapping[str, Layer] | Sequence[Layer]) -> None:
        if not isinstance(children, Mapping):
            children = {str(i): child for i, child in enumerate(children)}
        for name in children:
            if "." in name:
                raise ArgumentError(f"Sequential: child name {name!r} holds a dot. Nest instead.")
        self.children = dict(children)

    def init(self, key: Key) -> dict[str, Array]:
        """Return the children's parameters under scoped names. Local."""
        return init_children(self, key)

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Run the children in order. Local."""
        return forward_chain(self, list(self.children), params, x, ctx)

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array | None:
        """Run the children's backward, last first. Local."""
        return backward_chain(self, list(self.children), params, saved, dy, on_grad)


class Residual(Layer):
    """``x + body(x)``; parameters keep the names that `body` gives them.

    Parameters
    ----------
    body
        Layer whose output has its input's shape.

    Notes
    -----
    Saved: what `body` saves.
    """

    def __init__(self, body: Layer) -> None:
        self.children = {"": body}

    def init(self, key: Key) -> dict[str, Array]:
        """Return the parameters of the body. Local."""
        return init_children(self, key)

    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Return ``x + body(x)``, shape (...) -> (...). Local.

        Raises
        ------
        ArgumentError
            The body changes the shape.
        """
        y, saved = self.children[""].forward(params, x, ctx)
        if y.shape != x.shape:
            raise ArgumentError(
                f"Residual.forward: body returned shape {y.shape}, needs its input's {x.shape}."
            )
        return x + y, saved

    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array | None:
        """Return ``dy`` plus the body's gradient. Local."""
        dx = self.children[""].backward(params, saved, dy, on_grad)
        return dy if dx is None else dy + dx


def named_layers(model: Layer, prefix: str = "") -> Iterator[tuple[str, Layer]]:
    """Yield every layer under `model` with its dotted name, parents first. Local.

    `model` itself comes first, as `prefix`. A wrapper and what it wraps have the same name.

    Examples
    --------
    >>> from hpcpar.nn import Linear, Sequential
    >>> [name for name, _ in named_layers(Sequential({"up": Linear(1, 2)}))]
    ['', 'up']
    """
    yield prefix, model
    for name, child in model.children.items():
        path = f"{prefix}.{name}" if prefix and name else prefix or name
        yield from named_layers(child, path)


def replace(model: Layer, pattern: str, wrap: Callable[[Layer], Layer]) -> Layer:
    """Return `model` with ``wrap(layer)`` in the place of each layer that matches. Local.

    Parameters
    ----------
    model
        Left as it is; layers on the way to a match are copied, all others are shared.
    pattern
        Dotted name; each part may hold ``*`` and ``?``, which do not cross dots. ``blocks.*`` are
        the blocks, not what is inside them.
    wrap
        Takes the layer, returns the one to use. Where a wrapper already sits, it is what `wrap`
        gets: the last one put in is the outermost.

    Raises
    ------
    ArgumentError
        Nothing matches.

    Examples
    --------
    >>> from hpcpar.nn import Linear, Residual, Sequential, replace
    >>> model = replace(Sequential([Linear(2, 2), Linear(2, 2)]), "1", Residual)
    >>> [type(child).__name__ for child in model.children.values()]
    ['Linear', 'Residual']
    """
    new = _replaced(model, pattern.split("."), wrap)
    if new is None:
        names = ", ".join(repr(name) for name in model.children) or "none"
        raise ArgumentError(
            f"replace: pattern {pattern!r} matches no layer of {type(model).__name__}. "
            f"Its children are {names}; named_layers lists all names."
        )
    return new


def _replaced(layer: Layer, parts: list[str], wrap: Callable[[Layer], Layer]) -> Layer | None:
    """Return the new layer, or None where nothing in it matches."""
    if not parts:
        return wrap(layer)
    found: dict[str, Layer] = {}
    for name, child in layer.children.items():
        if not name:
            new = _replaced(child, parts, wrap)
        elif fnmatchcase(name, parts[0]):
            new = _replaced(child, parts[1:], wrap)
        else:
            continue
        if new is not None:
            found[name] = new
    if not found:
        return None
    result = copy.copy(layer)
    result.children = {**layer.children, **found}
    return result

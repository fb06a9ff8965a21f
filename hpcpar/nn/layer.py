"""The layer interface, the context of a forward pass, and how names are scoped.

Shape suffixes: none; this file moves names, not numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from .._arrays import Array
from ..errors import ArgumentError
from ..random import Key

__all__ = [
    "Ctx",
    "Fill",
    "Layer",
    "OnGrad",
    "Params",
    "Saved",
    "Scoped",
    "backward_chain",
    "child_key",
    "collect",
    "forward_chain",
    "init_children",
    "scope",
    "scope_hook",
]

Params: TypeAlias = Mapping[str, Array]
Saved: TypeAlias = Any


class Fill(Protocol):
    """Computes the gradient of one parameter, where and when the hook wants it."""

    def __call__(self, out: Array | None = None, add: bool = False) -> Array:
        """Return the gradient, written to `out` or added to it.

        Parameters
        ----------
        out
            Array of the parameter's shape and of any float dtype: the gradient is computed in at
            least float32 and rounded once, to `out`'s dtype. None: a new array of the
            parameter's dtype.
        add
            Add to what `out` holds (accumulation over microbatches).

        Raises
        ------
        ArgumentError
            `out` has another shape, or `add` without `out`.
        """
        ...


OnGrad: TypeAlias = Callable[[str, Fill], None]


@dataclass(frozen=True, eq=False)
class Ctx:
    """What a forward pass knows beside parameters and input.

    Parameters
    ----------
    train
        Whether dropout is on.
    key
        Key of the dropout masks; needed only by ``train=True`` with dropout above 0.
    step
        Training step: every step has other masks.
    batch_start
        Index in the global batch of this input's first sample. Masks are a function of the
        global element index, so a rank (or a microbatch) that passes where its slice starts
        gets the very mask that one process gets for the whole batch.
    positions
        Positions of the tokens along the sequence, shape (T,), rising; None is ``0..T-1``.
    path
        Dotted name of the layer that is running; kept by the containers.

    Examples
    --------
    >>> Ctx(train=True, step=3).child("blocks").child("0").path
    'blocks.0'
    """

    train: bool = False
    key: Key | None = None
    step: int = 0
    batch_start: int = 0
    positions: Array | None = None
    path: str = ""

    def child(self, name: str) -> Ctx:
        """Return the context of the child `name`; "" is this context itself. Local."""
        if not name:
            return self
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    def mask_key(self) -> Key:
        """Return the key of this layer's masks in this step. Local.

        Raises
        ------
        ArgumentError
            The context has no key.
        """
        if self.key is None:
            raise ArgumentError(
                f"forward: ctx.key is None, layer {self.path!r} draws dropout masks from it. "
                "Pass Ctx(train=True, key=Key(seed), step=step)."
            )
        return self.key.child(self.path).child(self.step)


class Layer(ABC):
    """A forward and a backward function over explicit parameters; holds no arrays.

    Attributes
    ----------
    children
        Sub-layers by name. A container looks them up here at each call, so that
        `hpcpar.nn.replace` can put wrappers in. A wrapper names what it wraps "": that name adds
        nothing to the names of parameters.

    Notes
    -----
    Parameters are a flat mapping with dotted names. Layers never write to their arguments.
    """

    children: Mapping[str, Layer] = MappingProxyType({})

    @abstractmethod
    def init(self, key: Key) -> dict[str, Array]:
        """Return fresh parameters in host memory, float32. Local.

        A parameter's values depend on `key` and on its dotted name only.
        """

    @abstractmethod
    def forward(self, params: Params, x: Array, ctx: Ctx) -> tuple[Array, Saved]:
        """Return the output, and what backward needs: activations, never parameters. Local."""

    @abstractmethod
    def backward(self, params: Params, saved: Saved, dy: Array, on_grad: OnGrad) -> Array | None:
        """Return the gradient of the input (None where the input is integer ids). Local.

        Calls ``on_grad(name, fill)`` exactly once per parameter, as soon as all that `fill`
        needs is there. `fill` may be called at once, later or never.
        """


class Scoped(Mapping[str, Array]):
    """The parameters of one child: a view that puts ``prefix`` before each name."""

    __slots__ = ("base", "prefix")

    def __init__(self, base: Params, prefix: str) -> None:
        self.base = base
        self.prefix = prefix

    def __getitem__(self, name: str) -> Array:
        return self.base[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        start = len(self.prefix)
        return (name[start:] for name in self.base if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def scope(params: Params, name: str) -> Params:
    """Return a view of the parameters of the child `name`; no array is touched. Local.

    Examples
    --------
    >>> import numpy as np
    >>> list(scope({"up.weight": np.ones(2), "down.weight": np.ones(3)}, "up"))
    ['weight']
    """
    if not name:
        return params
    if isinstance(params, Scoped):  # one level whatever the depth: a look-up is one dict access
        return Scoped(params.base, f"{params.prefix}{name}.")
    return Scoped(params, name + ".")


def scope_hook(on_grad: OnGrad, name: str) -> OnGrad:
    """Return the hook for the child `name`: it reports under the full name. Local."""
    if not name:
        return on_grad
    prefix = name + "."
    return lambda local, fill: on_grad(prefix + local, fill)


def child_key(key: Key, name: str) -> Key:
    """Return the key of a child, one step per part of its dotted name. Local.

    So the values do not depend on how containers are nested, nor on who holds them.
    """
    for part in name.split(".") if name else ():
        key = key.child(part)
    return key


def init_children(layer: Layer, key: Key) -> dict[str, Array]:
    """Return the parameters of all children of `layer` under scoped names. Local."""
    params: dict[str, Array] = {}
    for name, child in layer.children.items():
        prefix = f"{name}." if name else ""
        for local, value in child.init(child_key(key, name)).items():
            params[prefix + local] = value
    return params


def forward_chain(
    layer: Layer, names: Sequence[str], params: Params, x: Array, ctx: Ctx
) -> tuple[Array, list[Saved]]:
    """Run the children `names` of `layer` one after the other. Local.

    Returns
    -------
    y
        The last child's output.
    saved
        What each child saved, for `backward_chain`.
    """
    saved = []
    for name in names:
        x, kept = layer.children[name].forward(scope(params, name), x, ctx.child(name))
        saved.append(kept)
    return x, saved


def backward_chain(
    layer: Layer,
    names: Sequence[str],
    params: Params,
    saved: Sequence[Saved],
    dy: Array,
    on_grad: OnGrad,
) -> Array | None:
    """Run the backward of `forward_chain`, last child first; returns the input's gradient. Local.

    Only the first child may have an input without gradient.
    """
    grad: Any = dy
    for name, kept in zip(reversed(names), reversed(saved), strict=True):
        hook = scope_hook(on_grad, name)
        grad = layer.children[name].backward(scope(params, name), kept, grad, hook)
    result: Array | None = grad
    return result


def collect(grads: MutableMapping[str, Array]) -> OnGrad:
    """Return the simplest hook: gradients go to `grads`, added to what is there. Local.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.nn import Linear, collect
    >>> layer, params, grads = Linear(1, 1, bias=False), {"weight": np.array([[2.0]])}, {}
    >>> for _ in range(2):
    ...     y, saved = layer.forward(params, np.array([[3.0]]), Ctx())
    ...     dx = layer.backward(params, saved, np.ones_like(y), collect(grads))
    >>> grads["weight"].item(), dx.item()
    (6.0, 2.0)
    """

    def _on_grad(name: str, fill: Fill) -> None:
        if name in grads:
            fill(grads[name], add=True)
        else:
            grads[name] = fill()

    return _on_grad

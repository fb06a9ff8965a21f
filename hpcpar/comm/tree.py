"""Trees of arrays: dict, list, tuple and namedtuple, nested, with an array or scalar at each leaf.

A verb flattens a tree, packs the leaves into one operation and gives the same structure back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from ..errors import ArgumentError, UnsupportedError

__all__ = ["MAX_DEPTH", "Structure", "flatten", "is_tree", "unflatten"]

MAX_DEPTH = 100
"""How deep a tree may nest; a tree that contains itself is caught by it."""

_CONTAINERS = (dict, list, tuple)
_DICTS = (dict, OrderedDict)
_NO_LEAF = (type(None), str, bytes, bytearray, set, frozenset)


@dataclass(frozen=True)
class Structure:
    """The shape of a tree: what `flatten` takes away and `unflatten` puts back.

    Parameters
    ----------
    kind : type or None
        The container's class; None for a leaf.
    keys : tuple
        Keys of a dict in its order, fields of a namedtuple; empty otherwise.
    children : tuple of Structure
        One per member.

    Examples
    --------
    >>> leaves, structure = flatten({"w": 1.0, "b": [2.0, 3.0]})
    >>> structure.paths()
    ("['w']", "['b'][0]", "['b'][1]")
    """

    kind: type | None
    keys: tuple[str | int, ...] = ()
    children: tuple[Structure, ...] = ()

    @cached_property
    def num_leaves(self) -> int:
        """How many leaves the tree has."""
        return 1 if self.kind is None else sum(child.num_leaves for child in self.children)

    def paths(self) -> tuple[str, ...]:
        """Return one text per leaf, in leaf order: what to write behind the tree's name."""
        return tuple(self._paths(""))

    def _paths(self, prefix: str) -> Iterator[str]:
        if self.kind is None:
            yield prefix
        steps = self.keys or range(len(self.children))
        form = _step_form(self.kind)
        for step, child in zip(steps, self.children, strict=True):
            yield from child._paths(prefix + form.format(step))

    def digest(self) -> bytes:
        """Return 16 bytes that are equal for equal structures, in every process and run."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        name = "" if self.kind is None else self.kind.__name__
        text = repr((name, self.keys, [child._digest for child in self.children]))
        from hashlib import blake2b  # loads OpenSSL: not for programs that never compare

        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


_LEAF = Structure(None)


def is_tree(x: Any) -> bool:
    """Say whether `x` is a container (an array or a scalar is not).  Local.

    Parameters
    ----------
    x : object
        Anything.

    Returns
    -------
    bool
        True for dict, list, tuple and their subclasses; `flatten` may still refuse those.
    """
    return isinstance(x, _CONTAINERS)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Take a tree apart.  Local.

    Parameters
    ----------
    tree : array, scalar, dict, list, tuple or namedtuple
        Dict keys are str or int; members come in the dict's own order.

    Returns
    -------
    leaves : list
        The arrays and scalars, not copied.
    structure : Structure
        What `unflatten` needs; hashable.

    Raises
    ------
    UnsupportedError
        A leaf is None, text, bytes or a set, or a container is of another class.
    ArgumentError
        A key is neither str nor int, or the tree nests deeper than `MAX_DEPTH`.

    Examples
    --------
    >>> leaves, structure = flatten({"w": 1.0, "b": (2.0, 3.0)})
    >>> leaves
    [1.0, 2.0, 3.0]
    >>> unflatten(structure, [10 * leaf for leaf in leaves])
    {'w': 10.0, 'b': (20.0, 30.0)}
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, [])


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Put leaves back into a structure.  Local.

    Parameters
    ----------
    structure : Structure
        From `flatten`.
    leaves : sequence
        One value per leaf, in the order of `flatten`.

    Returns
    -------
    object
        New containers of the classes that were taken apart.

    Raises
    ------
    ArgumentError
        The number of leaves is another one.
    """
    if len(leaves) != structure.num_leaves:
        raise ArgumentError(
            f"unflatten: leaves has {len(leaves)} values, the structure {structure.num_leaves}. "
            "Pass one value per leaf."
        )
    return _unflatten(structure, iter(leaves))


def _flatten(tree: Any, leaves: list[Any], path: list[tuple[str, Any]]) -> Structure:
    if not isinstance(tree, _CONTAINERS):
        if isinstance(tree, _NO_LEAF):
            _refuse(tree, path, "a leaf must be an array or a number", "Leave it out of the tree.")
        leaves.append(tree)
        return _LEAF
    if len(path) >= MAX_DEPTH:
        raise ArgumentError(
            f"tree: x nests deeper than {MAX_DEPTH} levels (or contains itself). Flatten it."
        )
    keys = _keys(tree, path)
    form = _step_form(type(tree))
    children = []
    members = tree.values() if isinstance(tree, dict) else tree
    for step, member in zip(keys or range(len(tree)), members, strict=True):
        path.append((form, step))
        children.append(_flatten(member, leaves, path))
        path.pop()
    return Structure(type(tree), keys, tuple(children))


def _keys(tree: Any, path: list[tuple[str, Any]]) -> tuple[Any, ...]:
    kind = type(tree)
    if kind in _DICTS:
        _check_keys(tree, path)
        return tuple(tree)
    if _is_named(kind):
        fields: tuple[str, ...] = kind._fields
        return fields
    if kind is not list and kind is not tuple:
        _refuse(tree, path, "a container must be dict, list, tuple or namedtuple", "Convert it.")
    return ()


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    kind = structure.kind
    if kind is None:
        return next(leaves)
    members = [_unflatten(child, leaves) for child in structure.children]
    if kind in _DICTS:
        return kind(zip(structure.keys, members, strict=True))
    return kind(*members) if _is_named(kind) else kind(members)


def _is_named(kind: type | None) -> bool:
    """Say whether this is a namedtuple's class; `_fields` is the only mark it has."""
    return kind is not None and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _step_form(kind: type | None) -> str:
    return ".{}" if _is_named(kind) else "[{!r}]"


def _place(path: list[tuple[str, Any]]) -> str:
    return "x" + "".join(form.format(step) for form, step in path)


def _check_keys(keys: dict[Any, Any], path: list[tuple[str, Any]]) -> None:
    for key in keys:
        if type(key) is not str and type(key) is not int:
            raise ArgumentError(
                f"tree: {_place(path)} has the key {key!r} of type {type(key).__name__}; "
                "keys must be str or int, so that all ranks can compare them. Rename it."
            )


def _refuse(tree: Any, path: list[tuple[str, Any]], rule: str, step: str) -> NoReturn:
    kind = "None" if tree is None else f"a {type(tree).__name__}"
    raise UnsupportedError(f"tree: {_place(path)} is {kind}; {rule}. {step}")

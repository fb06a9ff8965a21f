"""Object verbs: arrays and plain containers through the safe codec, as bytes through the verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import Array
from ..errors import ArgumentError, HpcparError, UnsupportedError
from . import codec, where
from .sizes import starts

if TYPE_CHECKING:
    from .group import Group

__all__ = ["all_gather", "all_to_all", "broadcast", "gather", "recv", "scatter", "send"]


def _encoded(group: Group, verb: str, obj: Any, allow_pickle: bool, inside: str = "") -> Array:
    try:
        data = codec.join(codec.encode(obj, allow_pickle=allow_pickle))
    except HpcparError as error:  # say which verb refuses it, and where
        text = str(error).replace(f"encode: obj{inside}", "encode: obj", 1)
        error.args = (text.replace("encode:", f"{verb}:", 1),)
        where.place(error, group.here())
        raise
    return np.frombuffer(data, np.uint8)


def _refused(verb: str, root: int, reason: str) -> UnsupportedError:
    return UnsupportedError(f"{verb}: root {root} refused: {reason.removeprefix(f'{verb}: ')}")


def _decoded(data: Array, allow_pickle: bool) -> Any:
    return codec.decode(data.data, allow_pickle=allow_pickle)


def _cut(data: Array, sizes: Sequence[int], allow_pickle: bool) -> list[Any]:
    begins = starts(sizes)
    return [_decoded(data[b : b + n], allow_pickle) for b, n in zip(begins, sizes, strict=True)]


def _is_fake(group: Group) -> bool:
    """Whether no data moves: then every peer is taken to pass the object that this rank passes."""
    return group.backend == "fake"


def _encoded_by_all(
    group: Group, verb: str, encode: Callable[[], list[Array]]
) -> tuple[list[Array], list[int]]:
    """Return my encoded objects and every rank's total length; where one rank cannot, all raise."""
    error: HpcparError | None = None
    each: list[Array] = []
    try:
        each = encode()
    except HpcparError as refused:
        error = refused
    mine = -1 if error is not None else sum(data.size for data in each)
    lengths = [int(n) for n in group.all_gather(np.array([mine]), sizes=(1,) * group.size)]
    if _is_fake(group):
        lengths = [mine] * group.size
    if error is not None:
        raise error
    if -1 in lengths:
        rank = lengths.index(-1)
        raise UnsupportedError(f"{verb}: the object of rank {rank} cannot be sent {group.here()}.")
    return each, lengths


def broadcast(group: Group, obj: Any, root: int, allow_pickle: bool) -> Any:
    """Copy the root's object to every rank; an object that cannot travel is refused on all."""
    if group.rank != root:
        return _received(group.broadcast(root=root), root, allow_pickle)
    try:
        payload = _encoded(group, "broadcast_object", (True, obj), allow_pickle, "[1]")
    except HpcparError as error:
        note = _encoded(group, "broadcast_object", (False, str(error)), False)
        group.broadcast(note, root=root)
        raise
    got = group.broadcast(payload, root=root)
    return _received(payload if _is_fake(group) else got, root, allow_pickle)


def _received(data: Array, root: int, allow_pickle: bool) -> Any:
    fine, value = _decoded(data, allow_pickle)
    if not fine:
        raise _refused("broadcast_object", root, value)
    return value


def all_gather(group: Group, obj: Any, allow_pickle: bool) -> list[Any]:
    """Return every rank's object."""
    verb = "all_gather_object"
    (data,), sizes = _encoded_by_all(
        group, verb, lambda: [_encoded(group, verb, obj, allow_pickle)]
    )
    joined = group.all_gather(data, sizes=sizes)
    if _is_fake(group):
        return [obj] * group.size
    return _cut(joined, sizes, allow_pickle)


def gather(group: Group, obj: Any, root: int, allow_pickle: bool) -> list[Any] | None:
    """Return every rank's object on the root."""
    verb = "gather_object"
    (data,), sizes = _encoded_by_all(
        group, verb, lambda: [_encoded(group, verb, obj, allow_pickle)]
    )
    joined = group.gather(data, root=root, sizes=sizes)
    if joined is not None and _is_fake(group):
        return [obj] * group.size
    return None if joined is None else _cut(joined, sizes, allow_pickle)


def _each(group: Group, objs: Any, verb: str, allow_pickle: bool) -> list[Array]:
    if not isinstance(objs, Sequence) or len(objs) != group.size:
        raise ArgumentError(f"{verb}: objs must be a sequence of {group.size}, one per rank.")
    return [_encoded(group, verb, obj, allow_pickle) for obj in objs]


def scatter(group: Group, objs: Sequence[Any] | None, root: int, allow_pickle: bool) -> Any:
    """Give each rank one of the root's objects; what the root refuses is refused on all."""
    if group.rank != root:
        return _scattered(group.scatter(root=root), root, allow_pickle)
    try:
        each = _each(group, objs, "scatter_object", allow_pickle)
    except HpcparError as error:
        note = np.concatenate(
            [np.zeros(1, np.uint8), _encoded(group, "scatter_object", str(error), False)]
        )
        group.scatter(np.tile(note, group.size), root=root, sizes=[note.size] * group.size)
        raise
    marked = [np.concatenate([np.ones(1, np.uint8), data]) for data in each]
    mine = group.scatter(np.concatenate(marked), root=root, sizes=[m.size for m in marked])
    if _is_fake(group):
        mine = marked[root]
    return _scattered(mine, root, allow_pickle)


def _scattered(data: Array, root: int, allow_pickle: bool) -> Any:
    value = _decoded(data[1:].copy(), allow_pickle)
    if not data[0]:
        raise _refused("scatter_object", root, value)
    return value


def all_to_all(group: Group, objs: Sequence[Any], allow_pickle: bool) -> list[Any]:
    """Send ``objs[r]`` to rank r and return what comes, by rank."""
    verb = "all_to_all_object"
    each, _ = _encoded_by_all(group, verb, lambda: _each(group, objs, verb, allow_pickle))
    lengths = np.array([data.size for data in each])
    sizes = [int(n) for n in group.all_to_all(lengths, sizes=(1,) * group.size)]
    joined = group.all_to_all(np.concatenate(each), sizes=[int(n) for n in lengths])
    if _is_fake(group):
        return [objs[group.rank]] * group.size
    return _cut(joined, sizes, allow_pickle)


def send(group: Group, obj: Any, dst: int, tag: int, allow_pickle: bool) -> None:
    """Send an object to one rank."""
    group.send(_encoded(group, "send_object", obj, allow_pickle), dst, tag=tag)


def recv(group: Group, src: int | None, tag: int | None, allow_pickle: bool) -> Any:
    """Receive an object."""
    return _decoded(group.recv(src, tag=tag), allow_pickle)

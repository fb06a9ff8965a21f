"""Arrays of asynchronous operations are read-only until these are done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .._arrays import Array, is_array
from . import tree

__all__ = ["ArrayLocks"]


class ArrayLocks:
    """Makes arrays read-only; the last release of an array makes it writable again.

    Views that the caller made before stay writable: only the array that was given is locked. Arrays
    on the memory of something that lends none to write to are not: NumPy would not unlock them.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._counts: dict[int, tuple[int, Array]] = {}

    def lock(self, given: tuple[Any, ...]) -> Callable[[], None]:
        """Lock the NumPy arrays of `given`: arrays, trees of arrays, None or something else.

        Returns
        -------
        callable
            Undoes it; to be called once.
        """
        arrays = [a for one in given for a in _arrays_of(one)]
        with self._mutex:
            locked = [a for a in arrays if self._lock(a)]
        return lambda: self._release(locked)

    def _lock(self, array: Array) -> bool:
        count, _ = self._counts.get(id(array), (0, array))
        if count == 0 and not (array.flags.writeable and _can_unlock(array)):
            return False  # the caller's own read-only array stays so
        array.flags.writeable = False
        self._counts[id(array)] = (count + 1, array)
        return True

    def _release(self, arrays: list[Array]) -> None:
        with self._mutex:
            for array in arrays:
                count, _ = self._counts.pop(id(array))
                self._counts[id(array)] = (count - 1, array)
            while self._unlock_any():
                pass

    def _unlock_any(self) -> bool:
        """Unlock what may be; what that frees, such as views of it, may be unlocked next."""
        free = [k for k, (count, a) in self._counts.items() if count == 0 and _unlocked(a)]
        for key in free:
            del self._counts[key]
        return bool(free)


def _can_unlock(array: Array) -> bool:
    """Say whether NumPy would make it writable again: it asks the owner of the memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and not owner.flags.owndata:
        owner = owner.base
    if isinstance(owner, np.ndarray):
        return True
    try:
        return not memoryview(owner).readonly
    except TypeError:  # a tensor of another library, say
        return False


def _unlocked(array: Array) -> bool:
    try:
        array.flags.writeable = True
    except ValueError:  # a view whose base another operation still holds: at a later release
        return False
    return True


def _arrays_of(given: Any) -> list[Array]:
    if given is None:
        return []
    leaves = [given] if is_array(given) else tree.flatten(given)[0]
    return [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]

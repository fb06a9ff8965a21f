"""Where one way of the node engine becomes faster than another: built in, or measured and kept.

`hpcpar tune` measures a table on a machine and keeps it in a file, by the name of the processor.
Rank 0's table holds for all ranks of a node. Results do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    from .group import Group

__all__ = ["Tuning", "apply", "built_in"]

_KIB = 1 << 10
_LEAST, _MOST, _LINE = 16 * _KIB, 512 * _KIB, 64  # of a chunk; the core's slots hold no more


@dataclass(frozen=True)
class Tuning:
    """Switch points of the node engine.

    Attributes
    ----------
    chunk : int
        Bytes that go through a slot at a time, in verbs that reduce.
    copy_chunk : int
        The same in verbs that only copy, where ranks fit the cores.
    far_ns : int
        Nanoseconds that another core's cache line may take; beyond that data goes through memory.
    stream : int
        Bytes from which on results are written past the caches.
    lend : int
        Bytes from which on other ranks may read an array where it lies, through the kernel, if that
        was faster lately.
    """

    chunk: int = 512 * _KIB
    copy_chunk: int = 128 * _KIB
    far_ns: int = 100
    stream: int = 2048 * _KIB
    lend: int = 512 * _KIB

    def __post_init__(self) -> None:
        for name in ("chunk", "copy_chunk"):
            value = getattr(self, name)
            if not _is_whole(value) or not _LEAST <= value <= _MOST or value % _LINE:
                raise ArgumentError(
                    f"tuning: {name} {value!r} must be bytes in {_LEAST}..{_MOST}, a multiple of "
                    f"{_LINE}."
                )
        if self.copy_chunk > self.chunk:
            raise ArgumentError(
                f"tuning: copy_chunk {self.copy_chunk} must be <= chunk {self.chunk}."
            )
        for name, most in (("far_ns", 10**6), ("stream", 2**62), ("lend", 2**62)):
            value = getattr(self, name)
            if not _is_whole(value) or not 1 <= value <= most:
                raise ArgumentError(f"tuning: {name} {value!r} must be an int in 1..{most}.")

    def as_tuple(self) -> tuple[int, int, int, int, int]:
        """Return it as the core takes it, in the order of the attributes."""
        return self.chunk, self.copy_chunk, self.far_ns, self.stream, self.lend


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def built_in(l2: int | None = None) -> Tuning:
    """Return what is taken without a table: chunks that a core's own cache holds. Local.

    Parameters
    ----------
    l2 : int, optional
        Bytes of a core's second cache; read from the system by default.

    Examples
    --------
    >>> built_in(1 << 21).chunk, built_in(1 << 18).chunk, built_in(1 << 18).copy_chunk
    (524288, 262144, 65536)
    """
    size = _l2_bytes() if l2 is None else l2
    chunk = min(_MOST, max(4 * _LEAST, size // (4 * _LINE) * (4 * _LINE)))
    return Tuning(chunk=chunk, copy_chunk=chunk // 4)


def _l2_bytes() -> int:
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index2/size", encoding="ascii") as file:
            return int(file.read().strip().removesuffix("K")) * _KIB
    except (OSError, ValueError):
        return _MOST


def apply(group: Group, tuning: Tuning) -> None:
    """Give the node engine other switch points. Local; between calls, on all ranks alike."""
    group._member("tune").backend.tune(tuning.as_tuple())

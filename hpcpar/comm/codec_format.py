"""The bytes of a coded object: preamble, sizes and alignment, shared by writer and reader."""

from __future__ import annotations

import struct
from typing import TypeAlias

__all__ = ["ALIGN", "COMPLEX", "FLOAT", "INLINE", "MAGIC", "MAX_DEPTH", "PREAMBLE", "VERSION"]
__all__ += ["Part", "padded"]

MAGIC, VERSION = b"hpob", 1
PREAMBLE = struct.Struct("<4sIQQ")
"""Magic, version, bytes of the header, bytes of the whole message."""

MAX_DEPTH = 100
"""How deep containers may nest; far below Python's recursion limit."""

INLINE = 512
"""Payloads up to here are copied into the header: an aligned slot would cost as much."""

ALIGN = 64
FLOAT, COMPLEX = struct.Struct("<d"), struct.Struct("<dd")

Part: TypeAlias = bytes | bytearray | memoryview


def padded(n: int) -> int:
    """Round `n` up to a multiple of `ALIGN`.  Local."""
    return -(-n // ALIGN) * ALIGN

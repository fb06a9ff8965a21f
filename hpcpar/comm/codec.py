"""Python objects as bytes without pickle: what `broadcast_object` and its sisters send.

A message is one preamble, one header, then the large buffers, each on a 64-byte boundary::

    magic "hpob" | version | header bytes | total bytes
    header: one tag byte per value, lengths as base-128 numbers, small payloads inline
    body:   payloads above 512 bytes, in the order of their tags

Decoding trusts nothing: every length is checked against the bytes that are there before anything
is allocated, nesting is limited, and no code of the sender is run unless the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ArgumentError, HpcparError
from .codec_format import MAX_DEPTH, Part
from .codec_read import Decoder
from .codec_write import Encoder

__all__ = ["MAX_DEPTH", "decode", "encode", "join"]


def encode(obj: Any, *, allow_pickle: bool = False) -> list[Part]:
    """Turn an object into byte parts.  Local.

    Parameters
    ----------
    obj : object
        None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset,
        slice, range, Ellipsis; NumPy scalars, dtypes and arrays without Python objects; SciPy
        csr, csc, coo, bsr and dia matrices and arrays; nested as you like. An object met twice is
        sent twice.
    allow_pickle : bool
        Send every other leaf by pickle (protocol 5).

    Returns
    -------
    list of bytes-like
        Their concatenation (`join`) is the message. Large contiguous arrays and bytes are views of
        the object, not copies: do not change it until the parts are sent.

    Raises
    ------
    UnsupportedError
        A leaf of another type; the message says where it is.
    ArgumentError
        The object contains itself, or nests deeper than `MAX_DEPTH`.

    Examples
    --------
    >>> decode(join(encode({"step": 3, "loss": [0.5, None]})))
    {'step': 3, 'loss': [0.5, None]}
    """
    encoder = Encoder(allow_pickle)
    encoder.put(obj)
    return encoder.parts()


def join(parts: Sequence[Part]) -> bytes:
    """Concatenate the parts of a message (one copy).  Local.

    Parameters
    ----------
    parts : sequence of bytes-like
        What `encode` returned.

    Returns
    -------
    bytes
        The message that `decode` reads.
    """
    return b"".join(parts)


def decode(data: Part, *, allow_pickle: bool = False) -> Any:
    """Rebuild the object from one message.  Local.

    Parameters
    ----------
    data : bytes, bytearray or contiguous memoryview
        One whole message.
    allow_pickle : bool
        Accept leaves sent by pickle. Unpickling runs code that the sender chose.

    Returns
    -------
    object
        It shares no memory with `data`; arrays are writable.

    Raises
    ------
    ArgumentError
        The message is cut short, damaged, or not a message.
    UnsupportedError
        It holds a pickle and `allow_pickle` is False.
    BackendUnavailable
        It holds something that needs a library missing here (SciPy, ml_dtypes).
    """
    try:
        return Decoder(memoryview(data).cast("B"), allow_pickle).message()
    except HpcparError:
        raise
    except Exception as exc:  # whatever NumPy, SciPy or pickle say about hostile bytes
        raise ArgumentError(
            f"decode: data of {len(data)} bytes is damaged: {type(exc).__name__}: {exc}. "
            "Send it again; check that every rank runs the same hpcpar."
        ) from exc

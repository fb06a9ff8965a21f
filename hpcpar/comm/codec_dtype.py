"""NumPy dtypes as plain values, for the object codec: strings and tuples, never code or pickle."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BackendUnavailable, UnsupportedError

__all__ = ["check_shape", "describe_dtype", "restore_dtype"]

# What dtype.str gives for built-in types, and nothing else that np.dtype() would parse ("O",
# "f8,f8", ...): the text comes from a peer.
_SIMPLE = re.compile(r"[<>|][?biufcSUVmM]\d+(\[\d*[A-Za-z]+\])?")


def describe_dtype(dtype: np.dtype[Any]) -> Any:
    """Describe a dtype by strings, integers and tuples of them.  Local.

    Parameters
    ----------
    dtype : numpy.dtype
        Any dtype without Python objects: built-in, structured, sub-array, or from ml_dtypes;
        both byte orders.

    Returns
    -------
    str or tuple
        What `restore_dtype` turns back into an equal dtype.

    Raises
    ------
    UnsupportedError
        The dtype holds Python objects or belongs to an unknown library.

    Examples
    --------
    >>> import numpy as np
    >>> describe_dtype(np.dtype(">i4"))
    '>i4'
    """
    if dtype.hasobject:
        raise UnsupportedError(f"dtype {dtype} holds Python objects")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ("array", describe_dtype(base), shape)
    if dtype.names is not None:
        return _describe_fields(dtype)
    if dtype.type.__module__ == "ml_dtypes":
        return ("ml_dtypes", dtype.type.__name__, dtype.isnative)
    if dtype.isbuiltin != 2 and _SIMPLE.fullmatch(dtype.str):
        return dtype.str
    raise UnsupportedError(f"dtype {dtype} is not a NumPy or ml_dtypes type")


def _describe_fields(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    assert dtype.fields is not None
    fields = []
    for name in dtype.names or ():
        member, offset, *title = dtype.fields[name]
        fields.append((name, describe_dtype(member), offset, title[0] if title else None))
    record = dtype.type is np.record
    return ("fields", tuple(fields), dtype.itemsize, dtype.isalignedstruct, record)


def restore_dtype(text: Any) -> np.dtype[Any]:
    """Build the dtype that `describe_dtype` described.  Local.

    Parameters
    ----------
    text : str or tuple
        A description; it may come from a peer and is checked.

    Returns
    -------
    numpy.dtype
        Never one with Python objects.

    Raises
    ------
    ValueError
        (or TypeError) It is not a description.
    BackendUnavailable
        ml_dtypes is needed and missing, or too old to know the type.
    """
    if isinstance(text, str):
        if not _SIMPLE.fullmatch(text):
            raise ValueError(f"{text!r} is not a dtype")
        return np.dtype(text)
    kind, *rest = text
    return _BUILDERS[kind](*rest)


def check_shape(shape: Any) -> tuple[int, ...]:
    """Return `shape` if it is an array shape, for it may come from a peer.  Local.

    Raises
    ------
    ValueError
        It is not a tuple of at most 64 integers from 0 to 2**63 - 1.
    """
    if type(shape) is not tuple or len(shape) > 64:
        raise ValueError(f"{type(shape).__name__} is not a shape")
    if not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise ValueError("a shape with a length that is not in 0 .. 2**63 - 1")
    return shape


def _restore_array(base: Any, shape: Any) -> np.dtype[Any]:
    return np.dtype((restore_dtype(base), check_shape(shape)))


def _restore_fields(fields: Any, itemsize: int, aligned: bool, record: bool) -> np.dtype[Any]:
    names, members, offsets, titles = zip(*fields, strict=True) if fields else ((), (), (), ())
    layout: dict[str, Any] = {
        "names": list(names),
        "formats": [restore_dtype(member) for member in members],
        "offsets": list(offsets),
        "titles": [_title(title) for title in titles],
        "itemsize": itemsize,
    }
    dtype = np.dtype(layout, align=bool(aligned))  # type: ignore[call-overload]
    return np.dtype((np.record, dtype)) if record else dtype


def _title(title: Any) -> str | None:
    if title is None or isinstance(title, str):
        return title
    raise ValueError(f"{title!r} is not a field title")


def _restore_ml(name: str, native: bool) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise BackendUnavailable(
            f"decode: an array of dtype {name} needs ml_dtypes on this rank. "
            "Install it: pip install ml_dtypes."
        ) from None
    kind = getattr(ml_dtypes, name, None)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise BackendUnavailable(
            f"decode: ml_dtypes {ml_dtypes.__version__} on this rank has no dtype {name!r}. "
            "Install the same version on every rank."
        )
    return np.dtype(kind) if native else np.dtype(kind).newbyteorder("S")


_BUILDERS: dict[str, Callable[..., np.dtype[Any]]] = {
    "array": _restore_array,
    "fields": _restore_fields,
    "ml_dtypes": _restore_ml,
}

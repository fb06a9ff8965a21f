"""What is this array: NumPy, CuPy or DLPack; its dtype, layout and the owner of its memory.

CuPy, torch and JAX arrays are recognised through ``sys.modules``: nothing here imports them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import ArgumentError, UnsupportedError

__all__ = [
    "DTYPE_NAMES",
    "Array",
    "adopt",
    "as_bytes",
    "contiguous",
    "dtype_code",
    "dtype_name",
    "is_array",
    "memory_overlaps",
    "namespace",
    "same_memory",
]

Array: TypeAlias = npt.NDArray[Any]
Restore: TypeAlias = Callable[[Array], Any]

#: Names by record code; the order is part of the flight recorder's format.
DTYPE_NAMES = (
    *("none", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "other"),
)
_CODES = {name: code for code, name in enumerate(DTYPE_NAMES)}
_OTHER = _CODES["other"]
_OVERLAP_WORK = 10_000  # candidate solutions to try before overlap is taken for granted
_SCALARS = (bool, int, float, complex)


def as_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype of a name, also of "bfloat16", which NumPy alone does not know."""
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(dtype)
    return found


@lru_cache(256)  # NumPy builds the name anew each time, which takes microseconds
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of `dtype`, which leaves the byte order out."""
    return dtype.name


@lru_cache(256)
def dtype_code(dtype: np.dtype[Any]) -> int:
    """Return the flight recorder's code of `dtype`."""
    return _CODES.get(dtype.name, _OTHER)


def namespace(x: Any) -> ModuleType:
    """Return the array module of `x`: ``cupy`` for CuPy arrays, else ``numpy``.

    Examples
    --------
    >>> import numpy as np
    >>> namespace(np.ones(2)) is np
    True
    """
    return sys.modules["cupy"] if _is_cupy(x) else np


def _is_cupy(x: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def is_array(x: Any) -> bool:
    """Whether `x` is an array or a scalar that the verbs take as it is (no tree)."""
    return isinstance(x, (np.ndarray, np.generic, *_SCALARS)) or hasattr(x, "__dlpack__")


def adopt(x: Any, verb: str, name: str = "x") -> tuple[Array, Restore | None]:
    """Return `x` as a NumPy array on the same memory, and how to turn a result into its kind.

    Parameters
    ----------
    x
        NumPy array or scalar, Python number, or a CPU array with ``__dlpack__``.
    verb, name
        For messages.

    Returns
    -------
    array
        No copy is made of arrays; numbers become 0-d arrays.
    restore
        None where the result is handed out as it is (NumPy arrays).

    Raises
    ------
    UnsupportedError
        Object arrays, masked arrays, lists, GPU arrays.
    """
    if type(x) is np.ndarray:
        return _plain(x, verb, name), None
    if isinstance(x, np.ma.MaskedArray):
        raise UnsupportedError(f"{verb}: {name} is a masked array. Send .data and .mask yourself.")
    if isinstance(x, np.ndarray):
        return _plain(np.asarray(x), verb, name), None
    if isinstance(x, np.generic):
        return _plain(np.asarray(x), verb, name), _numpy_scalar
    if isinstance(x, _SCALARS):
        return _plain(np.asarray(x), verb, name), _python_scalar
    if _is_cupy(x):
        raise UnsupportedError(
            f"{verb}: {name} is a CuPy array; this version moves arrays in host memory only. "
            "Pass cupy.asnumpy(x)."
        )
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(x, verb, name)
    raise UnsupportedError(
        f"{verb}: {name} is a {type(x).__name__}, not an array or a number. "
        "Convert it with numpy.asarray, or use the *_object verb."
    )


def _plain(array: Array, verb: str, name: str) -> Array:
    if array.dtype.hasobject:
        raise UnsupportedError(
            f"{verb}: {name} has dtype object, which holds Python objects. "
            "Use a numeric dtype, or the *_object verb."
        )
    return array


def _numpy_scalar(array: Array) -> Any:
    return array[()]


def _python_scalar(array: Array) -> Any:
    return array.item() if array.ndim == 0 else array


def _from_dlpack(x: Any, verb: str, name: str) -> tuple[Array, Restore]:
    module = sys.modules.get(type(x).__module__.partition(".")[0])
    if module is not None and module.__name__ == "torch":
        return _from_torch(x, module, verb, name)
    try:
        array = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as exc:
        raise UnsupportedError(f"{verb}: {name} cannot be read through DLPack: {exc}.") from exc
    return _plain(array, verb, name), _dlpack_restorer(type(x), module)


def _dlpack_restorer(kind: type, module: ModuleType | None) -> Restore:
    if module is not None and module.__name__ in ("jax", "jaxlib"):
        module = sys.modules["jax.numpy"]
    from_dlpack = getattr(module, "from_dlpack", None) or getattr(kind, "from_dlpack", None)
    return from_dlpack if callable(from_dlpack) else _identity


def _identity(array: Array) -> Any:
    return array


def _from_torch(x: Any, torch: ModuleType, verb: str, name: str) -> tuple[Array, Restore]:
    if x.device.type != "cpu":
        raise UnsupportedError(f"{verb}: {name} is a tensor on {x.device}. Pass x.cpu().")
    x = x.detach()
    if x.dtype is not torch.bfloat16:
        return np.from_dlpack(x), torch.from_dlpack
    import ml_dtypes  # NumPy refuses bfloat16 through DLPack: carry the bits as int16

    array = np.from_dlpack(x.view(torch.int16)).view(ml_dtypes.bfloat16)
    return array, lambda a: torch.from_dlpack(a.view(np.int16)).view(torch.bfloat16)


def contiguous(x: Array) -> Array:
    """Return `x` itself if it is C-contiguous, aligned and native, else such a copy."""
    flags = x.flags
    if flags.c_contiguous and flags.aligned and x.dtype.isnative:
        return x
    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C")


def as_bytes(x: Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of a C-contiguous array as a flat view."""
    if x.nbytes == 0:
        return np.empty(0, np.uint8)
    return x.reshape(-1).view(np.uint8)


def same_memory(a: Array, b: Array) -> bool:
    """Whether `a` and `b` are the same elements at the same places (in-place use)."""
    return a is b or (
        a.dtype == b.dtype
        and a.shape == b.shape
        and (a.strides == b.strides or (a.flags.c_contiguous and b.flags.c_contiguous))
        and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    )


def memory_overlaps(a: Array, b: Array) -> bool:
    """Whether any byte belongs to both; exact for strided views, bounded work."""
    if a.size == 0 or b.size == 0 or not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, _OVERLAP_WORK)  # type: ignore[arg-type]  # any int is fine
    except np.exceptions.TooHardError:
        return True


def check_axis(axis: int, ndim: int, verb: str) -> int:
    """Return `axis` in ``0..ndim-1``, or raise ArgumentError."""
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        raise ArgumentError(f"{verb}: axis {axis!r} must be an integer.")
    if not -ndim <= axis < ndim:
        raise ArgumentError(f"{verb}: axis {axis} is out of range for an array of {ndim} axes.")
    return int(axis) % ndim


def count_of(shape: tuple[int, ...]) -> int:
    """Return the number of elements of `shape` as a Python int."""
    return math.prod(shape)

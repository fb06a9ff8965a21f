"""SciPy sparse matrices and arrays as plain values, for the object codec.

SciPy is recognised through `sys.modules`: who has not imported it cannot hold its objects.
"""

from __future__ import annotations

import sys
from typing import Any

from ..errors import BackendUnavailable

__all__ = ["describe_sparse", "restore_sparse"]

_PARTS = {
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "coords"),
    "csc": ("data", "indices", "indptr"),
    "csr": ("data", "indices", "indptr"),
    "dia": ("data", "offsets"),
}
_NAMES = {f"{form}_{kind}": parts for form, parts in _PARTS.items() for kind in ("array", "matrix")}


def describe_sparse(obj: Any) -> tuple[str, tuple[int, ...], dict[str, Any]] | None:
    """Take a sparse matrix or array apart.  Local.

    Parameters
    ----------
    obj : object
        Anything.

    Returns
    -------
    tuple or None
        Class name, shape, and the member arrays by name (not copied); None when `obj` is no
        csr, csc, coo, bsr or dia matrix or array of SciPy.
    """
    sparse = sys.modules.get("scipy.sparse")
    name = type(obj).__name__
    if sparse is None or name not in _NAMES or type(obj) is not getattr(sparse, name, None):
        return None
    shape = tuple(int(n) for n in obj.shape)
    return name, shape, {part: getattr(obj, part) for part in _NAMES[name]}


def restore_sparse(name: str, shape: tuple[int, ...], parts: dict[str, Any]) -> Any:
    """Build the sparse object that `describe_sparse` took apart.  Local.

    Every index is checked against the shape: the parts may come from a peer, and SciPy's
    compiled loops trust them.

    Raises
    ------
    BackendUnavailable
        SciPy is not installed.
    ValueError
        (or KeyError, TypeError) The parts do not fit together.
    """
    try:
        from scipy import sparse
    except ImportError:
        raise BackendUnavailable(
            f"decode: a scipy.sparse {name} needs SciPy on this rank. "
            "Install it: pip install scipy."
        ) from None
    members = tuple(parts[part] for part in _NAMES[name])
    obj = getattr(sparse, name)(members, shape=shape)
    if "indptr" in parts:
        obj.check_format(full_check=True)
    return obj

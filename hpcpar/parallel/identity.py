"""Do all ranks hold the same parameters? Compared once, by digest, before anything travels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from .._arrays import Array
from ..comm.agree import Header, disagreement, mismatch
from ..comm.group import Group

__all__ = ["agree_on_names", "describe_params"]


def agree_on_names(verb: str, described: Mapping[str, str], group: Group) -> list[str]:
    """Check that `described` is equal on all ranks; return its keys in rank 0's order.

    Collective over `group`. 64 bytes travel per rank where the ranks agree.

    Parameters
    ----------
    verb
        For messages.
    described
        What must agree, by name; the order of the names may differ between ranks.

    Raises
    ------
    MismatchError
        On all ranks, with the first name that differs and each rank's value of it.
    """
    names = list(described)
    mine = _digest(sorted(described.items())) + _digest(names)
    gathered = group.all_gather(np.frombuffer(mine, np.uint8), sizes="equal")
    content, order = gathered.reshape(group.size, 2, -1).transpose(1, 0, 2)
    if (content != content[0]).any():
        raise mismatch(_difference(verb, described, group), group.here())
    if (order != order[0]).any():
        names = group.broadcast_object(names)
    return names


def _digest(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=32).digest()


def _difference(verb: str, described: Mapping[str, str], group: Group) -> str:
    reports = group.all_gather_object(dict(described))
    names = list(dict.fromkeys(name for report in reports for name in report))
    headers = []
    for seq, report in enumerate(reports):
        fields = [f"{name!r}={report.get(name, 'nothing')}" for name in names]
        headers.append(Header.make([f"verb={verb}", *fields], [], -1, 1.0, seq))
    return disagreement(headers) or f"{verb}: ranks disagree"


def describe_params(params: Mapping[str, Array], prefix: str = "") -> dict[str, str]:
    """Say what must be equal on all ranks, in any order. Local.

    Parameters
    ----------
    params
        Arrays by name; a tie, one array of several names, is named by all of them.
    prefix
        Of the names in what is returned.
    """
    names_of: dict[int, list[str]] = {}
    for name, array in params.items():
        names_of.setdefault(id(array), []).append(name)
    described = {}
    for name, array in params.items():
        ties = sorted(set(names_of[id(array)]) - {name})
        tied = f" tied to {', '.join(ties)}" if ties else ""
        described[prefix + name] = f"{array.dtype.name}{array.shape}{tied}"
    return described

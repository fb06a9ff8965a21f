"""Do the ranks mean the same call? Headers that travel before the data, and their comparison."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import MismatchError

__all__ = [
    "HEADER_NBYTES",
    "UNKNOWN_SEQ",
    "Header",
    "describe_call",
    "different_sites",
    "disagreement",
]

HEADER_NBYTES = 256
UNKNOWN_SEQ = 2**64 - 1
_FIXED = struct.Struct("<16sqdQI")
_ROOM = HEADER_NBYTES - _FIXED.size
_SEP = "\x1f"


@dataclass(frozen=True)
class Header:
    """What one rank says about its call.

    Attributes
    ----------
    digest : bytes
        16 bytes over the fields that must agree.
    length : int
        Length along the axis that may differ, or -1.
    weight : float
        This rank's weight of a weighted mean.
    seq : int
        Operation number in the group, or UNKNOWN_SEQ.
    text : str
        The agreed fields ("verb=all_reduce", ...) and then local ones, for messages and for
        shapes that only one rank knows; cut to what fits.
    full_nbytes : int
        Length of the text before it was cut.
    """

    digest: bytes
    length: int
    weight: float
    seq: int
    text: str
    full_nbytes: int

    @classmethod
    def make(
        cls, agreed: Sequence[str], local: Sequence[str], length: int, weight: float, seq: int
    ) -> Header:
        """Build the header of a call from its agreed and local "field=value" texts."""
        from hashlib import blake2b  # loads OpenSSL: not for programs that never compare

        same = _SEP.join(agreed)
        digest = blake2b(same.encode(), digest_size=16).digest()
        text = _SEP.join((same, *local))
        return cls(digest, length, weight, seq, text, len(text.encode()))

    def pack(self) -> bytes:
        """Return exactly HEADER_NBYTES bytes."""
        text = self.text.encode()[:_ROOM]
        fixed = _FIXED.pack(self.digest, self.length, self.weight, self.seq, self.full_nbytes)
        return (fixed + text).ljust(HEADER_NBYTES, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Read what `pack` wrote."""
        digest, length, weight, seq, full = _FIXED.unpack_from(data)
        raw = data[_FIXED.size : _FIXED.size + min(full, _ROOM)]
        return cls(digest, length, weight, seq, raw.decode(errors="ignore"), full)

    @property
    def cut(self) -> bool:
        """Whether the text did not fit."""
        return self.full_nbytes > _ROOM

    def with_text(self, text: bytes) -> Header:
        """Return the header with its whole text, which came after it."""
        whole = text[: self.full_nbytes].decode()
        return Header(self.digest, self.length, self.weight, self.seq, whole, self.full_nbytes)

    def field(self, name: str) -> str | None:
        """Return the value of "name=value" in the text."""
        return self.fields().get(name)

    def fields(self) -> dict[str, str]:
        """Return the text's fields in order."""
        return dict(part.partition("=")[::2] for part in self.text.split(_SEP) if "=" in part)


def disagreement(headers: Sequence[Header]) -> str | None:
    """Return None if all ranks agree, else a message that names each rank's call.

    Examples
    --------
    >>> a = Header.make(["verb=all_reduce", "shape=(4,)"], [], -1, 1.0, 7)
    >>> b = Header.make(["verb=all_reduce", "shape=(6,)"], [], -1, 1.0, 7)
    >>> disagreement([a, b])
    'all_reduce: ranks disagree on shape: rank 0 has (4,), rank 1 has (6,)'
    """
    if all(h.digest == headers[0].digest for h in headers):
        return None
    fields = [h.fields() for h in headers]
    verbs = {f.get("verb", "?") for f in fields}
    if len(verbs) > 1:
        calls = _ranks_by_value([describe_call(h) for h in headers])
        return f"collective: ranks disagree on the verb: {calls}"
    for name in fields[0]:
        values = [f.get(name, "nothing") for f in fields]
        if name != "site" and len(set(values)) > 1:
            return f"{verbs.pop()}: ranks disagree on {name}: {_ranks_by_value(values)}"
    return f"{verbs.pop()}: ranks disagree: {_ranks_by_value([describe_call(h) for h in headers])}"


def different_sites(headers: Sequence[Header]) -> str | None:
    """Return who makes an agreed call from which line of the program, or None if it is one line.

    Examples
    --------
    >>> a = Header.make(["verb=all_reduce"], ["site=a.py:1"], -1, 1.0, 7)
    >>> b = Header.make(["verb=all_reduce"], ["site=a.py:3"], -1, 1.0, 7)
    >>> different_sites([a, b])
    'all_reduce: the same call comes from different lines: rank 0 has a.py:1, rank 1 has a.py:3'
    """
    sites = [h.field("site") or "?" for h in headers]
    if len(set(sites)) == 1:
        return None
    said = "the same call comes from different lines"
    return f"{headers[0].field('verb')}: {said}: {_ranks_by_value(sites)}"


def describe_call(header: Header) -> str:
    """Return the number, the verb and the fields of a rank's call."""
    fields = header.fields()
    inner = ", ".join(f"{k} {v}" for k, v in fields.items() if k not in ("verb", "site"))
    site = f" at {fields['site']}" if "site" in fields else ""
    number = f"#{header.seq} " if header.seq != UNKNOWN_SEQ else ""
    return f"{number}{fields.get('verb', '?')}({inner}){site}"


def _ranks_by_value(values: Sequence[str]) -> str:
    """Say who has what, shortly: at most four values, ranks grouped."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    shown = [f"{_rank_list(r)} {value}" for value, r in list(ranks.items())[:4]]
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return ", ".join(shown) + more


def _rank_list(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"ranks {shown} have"


def mismatch(message: str, where: str) -> MismatchError:
    """Return the error that every rank raises for `message`."""
    return MismatchError(f"{message} {where}. No data was moved; the group still works.")

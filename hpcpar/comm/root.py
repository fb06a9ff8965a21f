"""Work that one rank does for all: on_root, root_first; and the rank-aware log."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..errors import HpcparError, RankFailed
from .group import Group
from .request import check_rank
from .world import current

__all__ = ["RankFilter", "log", "on_root", "root_first"]

T = TypeVar("T")
_HOUSE = {cls.__name__: cls for cls in HpcparError.__subclasses__()}


class RankFilter(logging.Filter):
    """Gives log records the fields ``rank`` and ``size``; lets INFO and below pass on rank 0 only.

    Warnings and errors pass on every rank.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Fill the fields in; return whether the record passes."""
        rank, size = _rank_and_size()
        vars(record).update(rank=rank, size=size)
        return record.levelno > logging.INFO or rank == 0


def _rank_and_size() -> tuple[int, int]:
    try:
        group = current()
    except HpcparError:  # not started: as a world of one
        return 0, 1
    return group.rank, group.size


#: The library's logger; its records know rank and size, and INFO passes on rank 0 only.
log = logging.getLogger("hpcpar")
log.addFilter(RankFilter())


def on_root(
    fn: Callable[[], T], *, root: int = 0, group: Group | None = None, allow_pickle: bool = False
) -> T:
    """Call `fn` on the root only and return its result, or raise its exception, on every rank.

    Collective over `group`. Waiting for the root has no deadline.

    Parameters
    ----------
    fn : callable
        Returns what an object verb can send; see `broadcast_object`.

    Raises
    ------
    Exception
        What `fn` raised: the exception itself on the root; elsewhere the same class where it is
        one of hpcpar's or Python's own, else RuntimeError, with the same message.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> import hpcpar as hp
    >>> run_ranks(2, lambda g: hp.on_root(lambda: sum(range(5))))
    [10, 10]
    """
    group = group or current()
    check_rank(root, group.size, "on_root", "root")
    error: Exception | None = None
    outcome: tuple[str, Any] = ("", None)
    if group.rank == root:
        try:
            outcome = ("", fn())
        except Exception as raised:  # travels to all ranks
            error, outcome = raised, (type(raised).__name__, str(raised))
    with group.without_deadline():
        kind, value = group.broadcast_object(outcome, root=root, allow_pickle=allow_pickle)
    if error is not None:
        raise error
    if kind:
        raise _same_class(kind, f"{value} [on rank {root}]")
    result: T = value
    return result


def _same_class(name: str, message: str) -> Exception:
    found = _HOUSE.get(name) or getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(message)
        except TypeError:  # a class that a message alone does not make, such as UnicodeDecodeError
            pass
    return RuntimeError(f"{name}: {message}")


@contextmanager
def root_first(*, root: int = 0, group: Group | None = None) -> Iterator[None]:
    """Let the root run the block alone, and the other ranks after it.

    Collective over `group`: for work that fills a cache which the others then find, such as a
    download. Waiting for the root has no deadline. If the block raises on the root, the others
    raise RankFailed and do not run it.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> import hpcpar as hp
    >>> order = []
    >>> def body(group):
    ...     with hp.root_first():
    ...         order.append(group.rank)
    >>> _ = run_ranks(2, body)
    >>> order
    [0, 1]
    """
    group = group or current()
    check_rank(root, group.size, "root_first", "root")
    if group.rank != root:
        with group.without_deadline():
            _let_in(group, root, "")
        yield
        return
    message = ""
    try:
        yield
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        raise
    finally:
        _let_in(group, root, message)


def _let_in(group: Group, root: int, message: str) -> None:
    said = group.broadcast_object(message, root=root)
    if said and group.rank != root:
        raise RankFailed(f"root_first: rank {root} failed in its block: {said} {group.here()}.")

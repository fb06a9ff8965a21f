"""The ranks of a node hand each other their windows, or agree that they cannot.

Every rank of the job takes the same exchanges over the bootstrap, whatever happens to it, so that
what fails on one rank is known to all and nobody waits for a rank that has given up.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from mmap import mmap
from typing import NamedTuple, TypedDict

from ..errors import ArgumentError, BackendUnavailable, GroupFailed, HpcparError, RankFailed
from .bootstrap import Bootstrap
from .window import DEFAULT_LENGTH, Window, fit_length, longest_file, mappable_bytes, skewed
from .window_ways import FileWay, Place, SocketWay, Way

__all__ = ["NodeWindows", "open_windows"]

_log = logging.getLogger("hpcpar")
#: What HPCPAR_SHM may say, and which ways it allows, in the order in which they are tried.
_WAYS = {"": ("socket", "file"), "socket": ("socket",), "file": ("file",), "none": ()}


class NodeWindows:
    """The windows of the ranks that share a node, mapped into this process.

    Attributes
    ----------
    ranks : tuple of int
        Global ranks on my node, in order.
    index : int
        My place among them.
    how : {"socket", "file", "none"}
        How the windows were handed over; with "none" there are none, on no rank of the node.
    why : str
        What else was tried and why it failed, or what was asked for; may be empty.
    length : int
        Bytes of each window.
    key : bytes
        16 random bytes of the job.
    pid : int
        The process whose windows they are.
    backend : str
        Name of the backend that they make.
    in_threads : bool
        False: the ranks are processes.
    """

    backend = "node"
    in_threads = False

    def __init__(self, place: Place, way: Way | None, why: str) -> None:
        self.ranks, self.index, self.key = place.members, place.index, place.key
        self.length = place.length
        self.how, self.why = way.name if way else "none", why
        self._way = way
        self.pid = os.getpid()
        # A forked child holds sockets and locks, which would hide the death of its parent.
        if way is not None:
            os.register_at_fork(after_in_child=partial(_drop_ties, weakref.ref(way)))

    @property
    def _windows(self) -> dict[int, Window]:
        return self._way.windows if self._way else {}

    @property
    def buffers(self) -> tuple[mmap, ...]:
        """Return one writable buffer per member; empty without windows. Local.

        Raises
        ------
        GroupFailed
            This process was forked from the one that made the windows.
        """
        self._check_process()
        return tuple(self._windows[index].buffer for index in sorted(self._windows))

    @property
    def fds(self) -> tuple[int, ...]:
        """Return what tells of each member's death, -1 for myself. Local.

        A socket that hangs up, or a file whose lock comes free, as windows were handed over.
        Empty without windows.

        Raises
        ------
        GroupFailed
            This process was forked from the one that made the windows.
        """
        self._check_process()
        if self._way is None or not self._windows:
            return ()
        ties = self._way.ties()
        return tuple(-1 if i == self.index else ties[i] for i in range(len(self.ranks)))

    def fileno(self) -> int:
        """Return the descriptor of my own window; -1 without windows. Local."""
        self._check_process()
        return self._windows[self.index].fileno() if self._windows else -1

    def grow(self, nbytes: int) -> None:
        """Reserve the first `nbytes` bytes of my own window. Local; what is reserved stays.

        Raises
        ------
        MemoryError
            The machine has not that much left, or the window is not that long.
        GroupFailed
            The windows are closed, or this process was forked from the one that made them.
        """
        self._own().grow(nbytes)

    def reserve(self, at: int, nbytes: int) -> None:
        """Reserve any part of my own window. Local.

        Raises
        ------
        MemoryError
            The machine has not that much left.
        GroupFailed
            The windows are closed, or this process was forked from the one that made them.
        """
        self._own().reserve(at, nbytes)

    def touch(self, place: int, at: int, nbytes: int) -> None:
        """Get memory for pages of anybody's window, near me where that can be. Local.

        Raises
        ------
        MemoryError
            The machine has not that much left.
        """
        self._own()
        self._windows[place].touch(at, nbytes)

    def give_back(self, at: int, nbytes: int) -> None:
        """Give memory of my own window back to the machine. Local."""
        self._own().give_back(at, nbytes)

    def _own(self) -> Window:
        self._check_process()
        if not self._windows:
            raise GroupFailed("node engine: the shared memory is closed.")
        return self._windows[self.index]

    def fail(self, reason: BaseException) -> None:
        """Keep nothing: a process that fails ends the job, and says why itself."""

    def loss(self, rank: int) -> RankFailed:
        """Return the error of who waits for member `rank` of a group, which is gone."""
        return RankFailed(f"rank {rank} has left or died, and is missing here.")

    def close(self) -> None:
        """Hang up and unmap. Local; a second call does nothing.

        A buffer of which somebody holds a view stays mapped until the last view is gone. In a
        forked child the parent's connections stay.
        """
        if self._way is not None:
            self._way.close()

    def _check_process(self) -> None:
        if os.getpid() != self.pid:
            raise GroupFailed(
                f"node engine: the shared memory is process {self.pid}'s, and process "
                f"{os.getpid()} was forked from it. Communicate from the parent only, or start "
                "the child with the 'spawn' method."
            )


def open_windows(
    bootstrap: Bootstrap,
    env: Mapping[str, str],
    *,
    length: int = DEFAULT_LENGTH,
    timeout: float = 60.0,
) -> NodeWindows:
    """Make my window and map those of the ranks on my node.

    Collective over the bootstrap's ranks, of whatever node. Ranks share a node if host name and
    boot id are the same. A failure on one rank of a node leaves all ranks of this node without
    windows, and the log says why.

    Parameters
    ----------
    bootstrap : Bootstrap
    env : mapping
        The environment; ``HPCPAR_SHM`` (socket, file or none: the only way to try) and
        ``HPCPAR_NODE`` (required: no windows are an error) of rank 0 hold for all.
    length : int
        Bytes of each window, a multiple of the page size. They are address space, not memory; less
        where a limit of a process asks for less.
    timeout : float
        Seconds for one way to hand over, once all ranks have come.

    Raises
    ------
    ArgumentError
        ``HPCPAR_SHM`` or ``HPCPAR_NODE`` has an unknown value; on all ranks.
    BackendUnavailable
        Windows are required, and a node has none; on all ranks.
    """
    card = _my_card(env, bootstrap.host, length)
    rows = bootstrap.all_gather(json.dumps(card).encode())
    cards: list[_Card] = [json.loads(row) for row in rows]
    here = f"[rank {bootstrap.rank}/{bootstrap.size}]"
    shm, required = _agreed(cards[0], here)
    place = _find_place(cards, bootstrap.rank)
    talk = _Talk(bootstrap, place.members)
    way = _first_way(talk, shm, place, env, timeout)
    if required and not talk.all_have:
        if way is not None:
            way.close()
        raise BackendUnavailable(
            "init: HPCPAR_NODE=required, but not all ranks of a node can share memory "
            f"({_join(shm, talk.anywhere)}) {here}. Unset HPCPAR_NODE to go on without the node "
            "engine, or start the ranks of a node as one user, in one container."
        )
    windows = NodeWindows(place, way, _join(shm, talk.problems))
    _report(windows, bootstrap.host)
    return windows


class _Card(TypedDict):
    """What a rank tells all others first."""

    node: str
    net: str
    shm: str
    required: str
    key: str
    length: int
    file: int
    room: int


def _my_card(env: Mapping[str, str], host: str, length: int) -> _Card:
    return _Card(
        node=f"{host} {_boot_id()}",
        net=_net_namespace(),
        shm=env.get("HPCPAR_SHM", ""),
        required=env.get("HPCPAR_NODE", ""),
        key=secrets.token_hex(16),
        length=length,
        file=longest_file(),
        room=mappable_bytes(),
    )


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _net_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def _agreed(card: _Card, here: str) -> tuple[str, bool]:
    """Check the settings of rank 0, which hold for all."""
    for name, value, known in (
        ("HPCPAR_SHM", card["shm"], tuple(_WAYS)),
        ("HPCPAR_NODE", card["required"], ("", "required")),
    ):
        if value not in known:
            raise ArgumentError(
                f"init: {name}={value!r} must be one of {', '.join(known[1:])} {here}. Set it to "
                "one of these, or unset it."
            )
    return card["shm"], card["required"] == "required"


def _find_place(cards: Sequence[_Card], rank: int) -> Place:
    members = tuple(r for r, card in enumerate(cards) if card["node"] == cards[rank]["node"])
    mine = [cards[r] for r in members]
    length = fit_length(
        min(card["length"] for card in mine),
        min(card["file"] for card in mine),
        min(card["room"] for card in mine),
        len(members),
    )
    return Place(
        members,
        members.index(rank),
        bytes.fromhex(cards[0]["key"]),
        skewed(length),
        len({card["net"] for card in mine}) == 1,
    )


class _Talk:
    """Takes the steps of a way together with all ranks of the job.

    Attributes
    ----------
    problems : list of str
        Why ways failed on my node; the same on all its ranks.
    anywhere : list of str
        Why ways failed first on some node; the same on all ranks.
    all_have : bool
        Whether every node has found its way.
    """

    def __init__(self, bootstrap: Bootstrap, members: Sequence[int]) -> None:
        self._bootstrap, self._members = bootstrap, members
        self.problems: list[str] = []
        self.anywhere: list[str] = []
        self.all_have = False

    def carry(self, way: Way, *, idle: bool) -> bool:
        """Take the steps, or only wait for other nodes if `idle`; return whether mine succeeded.

        What the way made is dropped if it failed.
        """
        values: list[str] = []
        problem, elsewhere, done = "", "", False
        try:
            for step in way.steps():
                work = None if idle or problem else partial(step, values)
                values, problem, elsewhere = self._take(work, problem)
            done = not idle and not problem
        finally:
            way.settle()
            if not done:
                way.close()
        self.problems += [f"{way.name}: {problem}"] if problem else []
        self.anywhere += [f"{way.name}: {elsewhere}"] if elsewhere else []
        self.all_have = not elsewhere
        return done

    def _take(self, work: Callable[[], str] | None, problem: str) -> tuple[list[str], str, str]:
        """Return what a step gave on my node's ranks, its first problem, and that of any node."""
        mine = _Row("", problem, False)
        try:
            mine = mine._replace(value=work() if work else "")
        except Exception as error:  # every rank learns it, and none waits for this one
            kind = "" if isinstance(error, HpcparError) else f"{type(error).__name__}: "
            text = f"rank {self._bootstrap.rank}: {kind}{error}"
            mine = _Row("", text, isinstance(error, ConnectionError))
        data = self._bootstrap.all_gather(json.dumps(mine).encode())
        rows = [_Row(*json.loads(row)) for row in data]
        near = [rows[rank] for rank in self._members]
        return [row.value for row in near], _cause(near), _cause(rows)


class _Row(NamedTuple):
    """What a rank tells after a step; an echo is a problem that is only the end of another's."""

    value: str
    problem: str
    echo: bool


def _cause(rows: Sequence[_Row]) -> str:
    failed = sorted((row for row in rows if row.problem), key=lambda row: row.echo)
    return failed[0].problem if failed else ""


def _first_way(
    talk: _Talk, shm: str, place: Place, env: Mapping[str, str], timeout: float
) -> Way | None:
    """Return the first way by which my node hands over; all nodes try the same number of ways."""
    found = None
    for name in _WAYS[shm]:
        way = SocketWay(place, timeout) if name == "socket" else FileWay(place, env)
        if talk.carry(way, idle=found is not None):
            found = way
        if talk.all_have:
            break
    return found


def _join(shm: str, problems: Sequence[str]) -> str:
    asked = [f"HPCPAR_SHM={shm}"] if shm else []
    return "; ".join([*asked, *problems])


def _report(windows: NodeWindows, host: str) -> None:
    if windows.index:
        return
    who = f"node engine: {len(windows.ranks)} ranks on {host}"
    why = f" ({windows.why})" if windows.why else ""
    if windows.how != "none":
        _log.info("%s share memory by %s%s", who, windows.how, why)
    elif windows.why == "HPCPAR_SHM=none":
        _log.info("%s share no memory%s", who, why)
    else:
        _log.warning("%s share no memory%s and go through MPI, which is slower", who, why)


def _drop_ties(ref: weakref.ref[Way]) -> None:
    way = ref()
    if way is not None:
        way.drop_ties()

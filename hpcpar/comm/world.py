"""Start and end: init, shutdown, as_group, and the default group."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import (
    ArgumentError,
    BackendUnavailable,
    GroupFailed,
    LaunchError,
    MismatchError,
    RankFailed,
)
from . import launch, tuning_file
from .backend import Backend
from .fake import FakeBackend
from .group import Group, current_group
from .home import Home
from .layout import Memory, NoMemory
from .progress import Bell, Progress
from .settings import Settings, check_timeout
from .threads import MAX_RANKS, Seat, Shared, start_ranks
from .tuning import Tuning

if TYPE_CHECKING:
    from .._core import Recorder
    from .bootstrap import Bootstrap
    from .node_place import NodePlace

__all__ = [
    *("current", "find_default", "group_of_one", "init", "on_mpi", "on_store", "rank", "run_ranks"),
    *("shutdown", "size", "world"),
]

_DRAIN_SECONDS = 30.0
_TIMEOUT = "HPCPAR_TIMEOUT"


@dataclass
class World:
    """What `init` made: the group and how to undo it."""

    group: Group
    settings: Settings
    given: Any
    close: list[Callable[[], None]] = field(default_factory=list)
    last: list[Callable[[], None]] = field(default_factory=list)

    def free(self) -> None:
        """End it: drain, free its groups, stop its thread."""
        _close(self)


class _Place:
    """Holds the world of a process, or of one thread that plays a rank."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world
        self._alone: Group | None = None

    def group_of_one(self) -> Group:
        """Return the group for libraries in a program that started nothing, always the same."""
        if self._alone is None:
            self._alone = _on_one_thread(Settings()).group
        return self._alone


# The default is one object that all contexts of the process share, so that threads which the user
# starts see the world that the main thread initialised.
_place: ContextVar[_Place] = ContextVar("hpcpar_world", default=_Place())  # noqa: B039


def init(
    *,
    comm: Any = None,
    backend: str = "auto",
    timeout: float | None = 1800.0,
    check: str = "auto",
    deterministic: bool = False,
) -> Group:
    """Start hpcpar and return the world group, which becomes the default group.

    Collective over the job. Plain ``python script.py`` is a world of one and loads no MPI. Called
    again with the same arguments it returns the same group.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        The ranks to use; duplicated. None: all ranks that were launched together.
    backend : {"auto", "mpi", "node", "threads", "fake"}
        Who carries the data; "fake" plays ``HPCPAR_FAKE=rank/size`` without data.
    timeout : float or None
        Default deadline of a call, seconds; None = never. ``HPCPAR_TIMEOUT`` of rank 0 replaces
        the default.
    check : {"auto", "full", "off"}
        When ranks compare their calls before data moves, on backends that can choose.
    deterministic : bool
        Bits independent of the layout of ranks over nodes.

    Returns
    -------
    Group

    Raises
    ------
    ArgumentError
        Unknown value, or `init` was called before with other arguments.
    LaunchError
        Several processes were started, but each is a world of one.
    BackendUnavailable
        MPI is needed and cannot be loaded.
    MismatchError
        The ranks call with different arguments or run different versions.

    Examples
    --------
    >>> import hpcpar as hp
    >>> hp.init().size
    1
    """
    settings = Settings(backend, timeout, check, deterministic)  # type: ignore[arg-type]
    place = _place.get()
    if place.world is None:
        place.world = _start(settings, comm)
        current_group.set(place.world.group)
    elif place.world.settings != settings or place.world.given is not comm:
        raise ArgumentError(
            f"init: called before with {place.world.settings.describe()}, now with "
            f"{settings.describe()}. Call shutdown() first, or use the same arguments."
        )
    return place.world.group


def _start(settings: Settings, comm: Any) -> World:
    env = os.environ
    if settings.backend == "fake":
        return _alone(settings, FakeBackend(*_fake_place(env.get("HPCPAR_FAKE", "0/1"))))
    threads = settings.backend == "threads" or not launch.is_launched(env)
    if comm is None and settings.backend != "mpi" and threads:
        launch.check_world(env, 1)
        return _on_one_thread(settings)
    from . import watch  # with the guard and what it needs: only jobs of several ranks do
    from .bootstrap import load_mpi

    mpi = load_mpi()
    launch.check_world(env, mpi.COMM_WORLD.Get_size(), mpi.get_vendor()[0])
    world = on_mpi(settings, comm if comm is not None else mpi.COMM_WORLD)
    world.given = comm
    world.close.insert(0, watch.install_guard(world.group))
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        logging.getLogger("hpcpar").warning(
            "MPI runs below MPI_THREAD_MULTIPLE: asynchronous operations advance in wait(), and no "
            "watchdog sees a rank that left. Leave mpi4py.rc.thread_level at 'multiple'."
        )
    return world


def _fake_place(text: str) -> tuple[int, int]:
    rank_text, _, size_text = text.partition("/")
    if not (rank_text.isdigit() and size_text.isdigit() and int(rank_text) < int(size_text)):
        raise ArgumentError(f"init: HPCPAR_FAKE={text!r} must be rank/size, such as 0/1024.")
    return int(rank_text), int(size_text)


def _on_one_thread(settings: Settings) -> World:
    seat = Seat(Shared(1), 0)
    made = _alone(settings, seat.backend(settings.timeout), seat.recorder)
    made.last.append(seat.close)
    return made


def _alone(settings: Settings, backend: Backend, recorder: Recorder | None = None) -> World:
    """Return a world without peers to ask."""
    memory = NoMemory() if isinstance(backend, FakeBackend) else Memory()
    agreed = _with_timeout(settings, os.environ.get(_TIMEOUT, ""))
    home = Home(Progress(threaded=True), agreed, memory, [_host()] * backend.size, recorder)
    return World(_group_of_all(home, backend), settings, None)


def _group_of_all(home: Home, backend: Backend) -> Group:
    group = Group(home, backend, range(backend.size), "world")
    home.groups[group.ranks] = group
    return group


def on_mpi(settings: Settings, comm: Any) -> World:
    """Return a world of a communicator's ranks, which nobody else knows. Collective."""
    from .bootstrap import MpiBootstrap, load_mpi
    from .mpi import MpiBackend

    mpi = load_mpi()
    own = comm.Dup()
    agreed, hosts = _agree(MpiBootstrap(own), settings)
    backend: Backend = MpiBackend(own, deterministic=settings.deterministic)
    place = None
    if settings.backend in ("auto", "node") and backend.size > 1:
        place = _find_node(MpiBootstrap(own), settings)
        if place is not None:
            backend = _on_node(place, backend, agreed)
    is_safe = mpi.Query_thread() == mpi.THREAD_MULTIPLE
    return _made(settings, backend, (agreed, hosts), place, is_safe, comm)


def on_store(settings: Settings, bootstrap: Bootstrap) -> World:
    """Return a world of ranks that know each other without MPI, on one machine. Collective.

    Raises
    ------
    BackendUnavailable
        They are on several machines, or share no memory.
    """
    from .node import NodeBackend

    if bootstrap.size == 1:
        return _on_one_thread(settings)
    agreed, hosts = _agree(bootstrap, settings)
    place = _find_node(bootstrap, replace(settings, backend="node"))
    assert place is not None  # else it raises
    backend = NodeBackend(place, range(bootstrap.size), bootstrap.rank, agreed.timeout)
    return _made(settings, backend, (agreed, hosts), place, True, None)


def _made(
    settings: Settings,
    backend: Backend,
    agreed: tuple[Settings, Sequence[str]],
    place: NodePlace | None,
    is_safe: bool,
    comm: Any,
) -> World:
    """Return the world that a backend carries; is_safe: threads may call at any time."""
    recorder, bell = (None, None) if place is None else (place.recorder, place.core)
    progress = _progress(is_safe, bell, backend.rank)
    home = Home(progress, agreed[0], Memory(), agreed[1], recorder)
    last = [] if place is None else [place.close]
    return World(_group_of_all(home, backend), settings, comm, last=last)


def _progress(is_safe: bool, bell: Bell | None, rank: int) -> Progress:
    """Return what moves asynchronous calls on: a thread where it has a core to run on."""
    if len(os.sched_getaffinity(0)) > 1:
        return Progress(is_safe, bell)
    why = "this rank may use one core, which a thread would take from its computation"
    return Progress(False, bell, why if is_safe and rank == 0 else "")


def _on_node(place: NodePlace, rest: Backend, settings: Settings) -> Backend:
    from .node import NodeBackend

    ranks = range(rest.size)
    return NodeBackend(place, ranks, rest.rank, settings.timeout, world=rest, own=rest)


def _agree_on_tuning(bootstrap: Bootstrap) -> Tuning:
    """Return rank 0's switch points; the others open no file. Collective."""
    said = ""
    try:
        if bootstrap.rank == 0:
            said = " ".join(map(str, tuning_file.load(os.environ).as_tuple()))
    except ArgumentError as error:
        said = str(error)
    first = bootstrap.all_gather(said.encode())[0].decode()
    if not first[0].isdigit():
        raise ArgumentError(f"{first} (rank 0)")
    return Tuning(*map(int, first.split()))


def _find_node(bootstrap: Bootstrap, settings: Settings) -> NodePlace | None:
    """Return the shared memory of a node that all ranks are on, if there is one. Collective."""
    from .handover import open_windows
    from .node_place import NodePlace

    windows = open_windows(bootstrap, os.environ)
    # A launcher may bind each rank to cores of its own.
    rows = bootstrap.all_gather(",".join(map(str, os.sched_getaffinity(0))).encode())
    cores = {core for row in rows for core in row.decode().split(",")}
    try:
        agreed = _agree_on_tuning(bootstrap)
    except ArgumentError:
        windows.close()
        raise
    if windows.how != "none" and windows.ranks == tuple(range(bootstrap.size)):
        return NodePlace(windows, len(cores), agreed)
    windows.close()
    if settings.backend == "node":
        why = windows.why or f"ranks {windows.ranks} of {bootstrap.size} share this one"
        raise BackendUnavailable(
            f"init: backend 'node' needs all ranks on one node with shared memory ({why}). Use "
            "backend='auto'."
        )
    return None


def _agree(bootstrap: Bootstrap, settings: Settings) -> tuple[Settings, list[str]]:
    """Compare arguments and versions over all ranks; settings of the environment are rank 0's."""
    from .._version import __version__

    mine = f"{settings.describe()} version={__version__}"
    text = "\0".join((mine, os.environ.get(_TIMEOUT, ""), _host()))
    rows = [data.decode().split("\0") for data in bootstrap.all_gather(text.encode())]
    for other, row in enumerate(rows):
        if row[0] != rows[0][0]:
            raise MismatchError(
                f"init: rank 0 has {rows[0][0]}, rank {other} has {row[0]} "
                f"[rank {bootstrap.rank}/{bootstrap.size}]. Call init alike on all ranks."
            )
    return _with_timeout(settings, rows[0][1]), [row[2] for row in rows]


def _with_timeout(settings: Settings, text: str) -> Settings:
    """Put the text of HPCPAR_TIMEOUT in the place of the default; every rank judges rank 0's."""
    if not text or settings.timeout != Settings.timeout:
        return settings
    try:
        timeout = None if text == "none" else check_timeout(float(text), "init", None)
    except ValueError:
        raise LaunchError(
            f"init: {_TIMEOUT}={text!r} must be seconds above 0, or 'none'. Set or unset it."
        ) from None
    return replace(settings, timeout=timeout)


def _host() -> str:
    """Name this machine, containers of one host with one name apart."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{os.uname().nodename} {boot}"


def shutdown() -> None:
    """End hpcpar: wait for asynchronous operations, free the groups, take back the hooks.

    Collective over the world. MPI stays as it was found; `init` may be called again. Without a
    world it does nothing.

    Raises
    ------
    HpcparError
        The error of an asynchronous operation that nobody waited for.
    """
    place = _place.get()
    if place.world is None:
        return
    world, place.world = place.world, None
    current_group.set(None)
    _close(world)


def _close(world: World) -> None:
    home = world.group._home
    drained = home.progress.drain(_DRAIN_SECONDS)
    home.progress.stop()
    try:
        if not drained:
            raise ArgumentError("shutdown: asynchronous operations are not done on all ranks.")
        for group in list(home.groups.values()):
            group.raise_unclaimed()
    finally:
        for undo in world.close:
            undo()
        for group in list(home.groups.values()):
            group.free()
        for undo in world.last:
            undo()


def find_default() -> Group | None:
    """Return the world's group, if `init` was called. Local."""
    world = _place.get().world
    return None if world is None else world.group


def group_of_one() -> Group:
    """Return the group of this process alone. Local."""
    return _place.get().group_of_one()


def current() -> Group:
    """Return the default group: of the innermost ``with group:``, else the world.

    Raises
    ------
    ArgumentError
        `init` was not called.
    """
    found = current_group.get() or find_default()
    if found is None:
        raise ArgumentError("hpcpar is not started. Call hpcpar.init() first.")
    return found


def world() -> Group:
    """Return the group of all ranks. Local.

    Raises
    ------
    ArgumentError
        `init` was not called.
    """
    found = find_default()
    if found is None:
        raise ArgumentError("world: hpcpar is not started. Call hpcpar.init() first.")
    return found


def rank() -> int:
    """Return my rank in the default group. Local."""
    return current().rank


def size() -> int:
    """Return the size of the default group. Local."""
    return current().size


def run_ranks(
    num_ranks: int,
    body: Callable[..., Any],
    *args: Any,
    check: str = "auto",
    timeout: float | None = 1800.0,
    deterministic: bool = False,
) -> list[Any]:
    """Run ``body(group, *args)`` on ranks that are threads of this process.

    In the body `init`, `world`, `rank` and the verbs work as in a job of `num_ranks`.

    Parameters
    ----------
    num_ranks : int
    body : callable
        Gets its Group first.
    check, timeout, deterministic
        As in `init`, whose call without arguments in the body returns the same group.

    Returns
    -------
    list
        What each rank's body returned.

    Raises
    ------
    BaseException
        The first error that is no consequence of another; a note names its rank.

    Examples
    --------
    >>> from hpcpar.testing import run_ranks
    >>> run_ranks(3, lambda group: group.all_reduce(group.rank))
    [3, 3, 3]
    """
    is_number = isinstance(num_ranks, int) and not isinstance(num_ranks, bool)
    if not is_number or not 1 <= num_ranks <= MAX_RANKS:
        raise ArgumentError(
            f"run_ranks: num_ranks {num_ranks!r} must be an integer in 1..{MAX_RANKS}."
        )
    settings = Settings("auto", timeout, check, deterministic)  # type: ignore[arg-type]

    def on_rank(seat: Seat) -> Any:
        """Play one rank."""
        progress = Progress(threaded=True, bell=seat.bell)
        home = Home(progress, settings, Memory(), [_host()] * num_ranks, seat.recorder)
        seat.undo.append(partial(_leave, home))
        group = Group(home, seat.backend(settings.timeout), range(num_ranks), "world")
        home.groups[group.ranks] = group
        _place.set(_Place(World(group, Settings(), None, close=[seat.leave])))
        result = body(group, *args)
        shutdown()  # waits for asynchronous calls and raises what nobody waited for
        return result

    outcomes = start_ranks(num_ranks, on_rank)
    _raise_first([error for _, error in outcomes])
    return [result for result, _ in outcomes]


def _leave(home: Home) -> None:
    """End what a rank that failed has not ended."""
    home.progress.stop()
    for group in list(home.groups.values()):
        group.free()


def _raise_first(errors: Sequence[BaseException | None]) -> None:
    found = [(r, e) for r, e in enumerate(errors) if e is not None]
    causes = [(r, e) for r, e in found if not isinstance(e, (GroupFailed, RankFailed))]
    for place, error in causes or found:
        error.add_note(f"[rank {place}/{len(errors)}]")
        raise error

"""Shared memory of a node: what a window is, how ranks hand it over, and what is refused.

Ranks are threads here; test_window_processes.py has what needs processes.
"""

import json
import logging
import os
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hpcpar.comm import bootstrap, handover, window, window_ways
from hpcpar.comm.window import Identity, Window
from hpcpar.errors import ArgumentError, BackendUnavailable, GroupFailed

KEY = bytes(range(16))
LENGTH = 1 << 20


class Boot(bootstrap.ThreadBootstrap):
    """Threads as ranks, on hosts with given names; `heard` sees each exchange."""

    def __init__(self, board, rank, host, heard):
        super().__init__(board, rank)
        self.host, self.heard = host, heard

    def all_gather(self, data):
        every = super().all_gather(data)
        self.heard(self.rank, every)
        self._meet()  # nobody goes on before
        return every


def hand_over(hosts, heard=lambda rank, every: None, timeout=10, **env):
    """Return what open_windows gave or raised on each rank; hosts has one letter for each."""
    board = bootstrap.Board(len(hosts), timeout=20)

    def body(rank):
        boot = Boot(board, rank, hosts[rank], heard)
        try:
            return handover.open_windows(boot, env, length=1 << 30, timeout=timeout)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(body, range(len(hosts))))


def close(found):
    for windows in found:
        windows.close()


def check_shared(found):
    """See that each rank writes its window and all ranks of its node read it."""
    for rank, windows in enumerate(found):
        windows.grow(1 << 16)
        assert os.fstat(windows.fileno()).st_blocks * 512 >= 1 << 16
        windows.buffers[windows.index][10_000] = rank + 1
    for windows in found:
        assert [buffer[10_000] for buffer in windows.buffers] == [r + 1 for r in windows.ranks]


@pytest.fixture
def paths(monkeypatch):
    """Collect the names of the files that windows are made in."""
    made, real = [], window_ways.FileWay._make

    def make(self, offers):
        made.append(real(self, offers))
        return made[-1]

    monkeypatch.setattr(window_ways.FileWay, "_make", make)
    return made


@pytest.fixture
def memory():
    fd = window.create_memory()
    yield fd
    os.close(fd)


# ---- one window ----------------------------------------------------------------------------


def test_the_header_is_as_the_core_reads_it(memory):
    made = Window.create(os.dup(memory), Identity(7, KEY, LENGTH))
    owner = os.getpid(), os.stat("/proc/self/ns/pid").st_ino
    header = struct.pack(
        "<8sIi16sQQQ8x", b"hpcparW1", window.LAYOUT_VERSION, 7, KEY, LENGTH, *owner
    )
    assert bytes(made.buffer[:64]) == header
    assert made.buffer[64:4096] == bytes(4032)
    assert len(made.buffer) == os.fstat(memory).st_size == LENGTH
    made.close()


def test_growing_takes_memory_and_length_does_not(memory):
    made = Window.create(os.dup(memory), Identity(0, KEY, 1 << 36))
    used = [os.fstat(memory).st_blocks * 512]
    for nbytes in (300_000, 200_000, 5_000_000):
        made.grow(nbytes)
        used.append(os.fstat(memory).st_blocks * 512)
    # The kernel may round up to a large page.
    assert used[0] < 4e6
    assert used[1] == used[2] >= 300_000
    assert 5_000_000 <= used[3] < 1e7
    with pytest.raises(MemoryError, match=f"needed, but the window of rank 0 is {1 << 36} bytes"):
        made.grow((1 << 36) + 1)
    made.close()


def test_growth_that_the_machine_has_no_memory_for_is_refused(memory, monkeypatch):
    assert window.free_memory() > 1 << 20
    monkeypatch.setattr(window, "free_memory", lambda: 1 << 20)
    made = Window.create(os.dup(memory), Identity(3, KEY, LENGTH * 4))
    made.grow(1 << 20)
    with pytest.raises(
        MemoryError, match=r"rank 3 cannot grow by 3145728 bytes: 1048576 bytes of memory are free"
    ):
        made.grow(4 << 20)
    made.grow(2 << 20)
    made.close()


def test_a_core_dump_leaves_windows_out(memory):
    made = Window.create(os.dup(memory), Identity(0, KEY, LENGTH))
    _, section = Path("/proc/self/smaps").read_text().split("memfd:hpcpar")
    flags = section.partition("VmFlags:")[2].splitlines()[0]
    assert "dd" in flags.split()
    made.close()


@pytest.mark.parametrize(
    ("offset", "data", "said"),
    [
        (0, b"hpcparX1", r"its magic is b'hpcparX1', not b'hpcparW1'"),
        (8, b"\1", r"its layout version is 1, not \d+\. Run one version"),
        (12, b"\5", r"its rank is 5, not 1"),
        (16, b"\1", r"its key is another job's"),
        (32, b"\1", r"its length is 1048577, not 1048576"),
        (LENGTH, b"\0", r"1048577 bytes came, 1048576 were agreed"),
    ],
)
def test_a_wrong_window_is_refused(memory, offset, data, said):
    expected = Identity(1, KEY, LENGTH)
    made = Window.create(os.dup(memory), expected)
    Window.attach(memory, expected).close()
    os.pwrite(memory, data, offset)
    with pytest.raises(BackendUnavailable, match=f"^window of rank 1: {said}"):
        Window.attach(memory, expected)
    made.close()


def test_something_else_than_a_file_is_refused():
    reader, writer = os.pipe()
    with pytest.raises(BackendUnavailable, match="0 bytes came"):
        Window.attach(reader, Identity(1, KEY, 0))
    os.close(reader)
    os.close(writer)


def test_the_window_of_another_user_is_refused(memory, monkeypatch):
    made = Window.create(os.dup(memory), Identity(1, KEY, LENGTH))
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(BackendUnavailable, match=rf"belongs to user {mine}, .* runs as 4321\."):
        Window.attach(memory, Identity(1, KEY, LENGTH))
    made.close()


@pytest.mark.parametrize(
    ("uid_map", "foreign"),
    [("         0          0 4294967295\n", True), ("         0       1000          1\n", False)],
)
def test_a_user_without_a_number_here_is_not_judged(monkeypatch, uid_map, foreign):
    files = {"/proc/self/uid_map": uid_map, "/proc/sys/kernel/overflowuid": "65534\n"}
    monkeypatch.setattr(window, "_read", files.get)
    monkeypatch.setattr(os, "geteuid", lambda: 5)
    assert window.is_foreign(65534) is foreign
    assert (window.is_foreign(5), window.is_foreign(6)) == (False, True)


def test_windows_behind_each_other_hold_nothing_at_like_addresses():
    """Arrays at one place of two windows differ in the bits that a cache's way is guessed by."""
    step = window.skewed(window.DEFAULT_LENGTH)
    assert window.skewed(1 << 20) == 1 << 20
    assert step % 4096 == 0
    pages = [(rank * step >> 12) % 256 for rank in range(256)]
    assert len(set(pages)) == 256


@pytest.mark.parametrize(
    ("length", "file", "room", "windows", "fits"),
    [
        (1 << 36, 1 << 46, 1 << 46, 192, 1 << 36),
        (1 << 36, 1 << 46, 1 << 39, 8, 1 << 35),
        (1 << 36, 10_000_000, 1 << 46, 2, 1 << 23),
        (1 << 36, 1 << 46, 100, 200, 0),
        (12_288, 1 << 46, 1 << 46, 1, 12_288),
    ],
)
def test_length_follows_the_limits(length, file, room, windows, fits):
    assert window.fit_length(length, file, room, windows) == fits


# ---- handing over --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("shm", ["", "socket", "file"])
def test_all_ranks_of_a_node_map_all_windows(paths, size, shm):
    before = set(os.listdir("/proc/self/fd"))
    found = hand_over("a" * size, HPCPAR_SHM=shm)
    for rank, windows in enumerate(found):
        assert (windows.ranks, windows.index) == (tuple(range(size)), rank)
        assert windows.how == shm or (shm, windows.how) == ("", "socket")
        assert windows.why == (f"HPCPAR_SHM={shm}" if shm else "")
        assert (windows.key, windows.length) == (found[0].key, window.skewed(1 << 30))
        peers = [fd >= 0 for fd in windows.fds]
        assert peers == [r != rank for r in range(size)]
    assert len(found[0].key) == 16
    assert len(paths) == (size if shm == "file" else 0)
    assert not any(map(os.path.exists, paths))
    check_shared(found)
    opened = set(os.listdir("/proc/self/fd")) - before
    assert not any(os.get_inheritable(int(fd)) for fd in opened if os.path.exists(f"/dev/fd/{fd}"))
    close(found)
    close(found)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("shm", ["socket", "file"])
def test_nodes_are_told_apart(shm):
    found = hand_over("abcab", HPCPAR_SHM=shm)
    assert [(w.ranks, w.index, len(w.buffers)) for w in found] == [
        ((0, 3), 0, 2),
        ((1, 4), 0, 2),
        ((2,), 0, 1),
        ((0, 3), 1, 2),
        ((1, 4), 1, 2),
    ]
    check_shared(found)
    close(found)


def test_ranks_in_several_network_namespaces_take_files(monkeypatch):
    monkeypatch.setattr(handover, "_net_namespace", iter(["net:[1]", "net:[2]"]).__next__)
    found = hand_over("aa")
    why = "socket: rank 0: the ranks are in different network namespaces"
    assert [(w.how, w.why) for w in found] == [("file", why)] * 2
    check_shared(found)
    close(found)


def test_a_view_outlives_the_windows():
    found = hand_over("aa")
    check_shared(found)
    view = np.frombuffer(found[0].buffers[1], np.uint8, offset=9_996, count=8)
    close(found)
    assert view.tolist() == [0, 0, 0, 0, 2, 0, 0, 0]
    assert found[0].buffers == ()
    with pytest.raises(GroupFailed, match="shared memory is closed"):
        found[0].grow(1)
    assert found[0].fileno() == -1


def test_a_full_queue_of_callers_is_waited_for(monkeypatch):
    listen = socket.socket.listen
    monkeypatch.setattr(socket.socket, "listen", lambda self, _: listen(self, 0))
    found = hand_over("a" * 6, HPCPAR_SHM="socket")
    check_shared(found)
    close(found)


@pytest.mark.parametrize(
    "said", [b"", b"let me in", bytes(28), struct.pack("<8si16s", b"hpcparH1", 1, KEY)]
)
def test_a_stranger_who_calls_is_turned_away(said):
    with socket.socket(socket.AF_UNIX) as stranger:

        def call(rank, every):
            if rank == 0 and b'["hpcpar-' in every[0]:
                stranger.connect("\0" + json.loads(every[0])[0])
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)

        found = hand_over("aaa", heard=call, HPCPAR_SHM="socket")
        assert stranger.getpeername() is not None
    check_shared(found)
    close(found)


# ---- what fails on one rank is known to all ------------------------------------------------


def fail_on(monkeypatch, owner, name, ranks, error):
    """Let a method of a way fail on these ranks."""
    real = getattr(owner, name)

    def failing(self, *args):
        if self.place.members[self.place.index] in ranks:
            raise error
        return real(self, *args)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("step", "rank"),
    [
        *(
            (step, rank)
            for step in ("_listen", "_knock", "_receive", "_send")
            for rank in (0, 1, 4)
        ),
        *(("_call", 1), ("_call", 4), ("_callers", 0), ("_callers", 1)),
    ],
)
def test_sockets_that_fail_on_one_rank_fail_on_its_node_only(monkeypatch, step, rank):
    fail_on(monkeypatch, window_ways.SocketWay, step, {rank}, PermissionError(13, "no", "it"))
    before = set(os.listdir("/proc/self/fd"))
    began = time.monotonic()
    found = hand_over("aabba", timeout=30)  # ranks 0, 1 and 4 against 2 and 3
    assert time.monotonic() - began < 10
    why = f"socket: rank {rank}: PermissionError: [Errno 13] no: 'it'"
    hit, spared = ("file", why), ("socket", "")
    assert [(w.how, w.why) for w in found] == [hit, hit, spared, spared, hit]
    check_shared(found)
    close(found)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("step", ["_make", "_open"])
def test_without_a_way_no_rank_of_the_node_has_windows(monkeypatch, caplog, paths, step):
    before = set(os.listdir("/proc/self/fd"))
    fail_on(monkeypatch, window_ways.SocketWay, "_receive", {1}, OSError(24, "Too many"))
    fail_on(monkeypatch, window_ways.FileWay, step, {0}, OSError(2, "No such file", "/x"))
    with caplog.at_level(logging.INFO, logger="hpcpar"):
        found = hand_over("aaab")
    assert [(w.how, len(w.buffers), w.fds) for w in found[:3]] == [("none", 0, ())] * 3
    assert found[3].how == "socket"
    why = (
        "socket: rank 1: OSError: [Errno 24] Too many; "
        "file: rank 0: FileNotFoundError: [Errno 2] No such file: '/x'"
    )
    assert {w.why for w in found[:3]} == {why}
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1
    assert warned[0].startswith(f"node engine: 3 ranks on a share no memory ({why}")
    assert len(paths) == (3 if step == "_open" else 2)
    assert not any(map(os.path.exists, paths))
    close(found)
    assert set(os.listdir("/proc/self/fd")) == before


def test_required_windows_that_one_node_lacks_are_an_error_on_all_ranks(monkeypatch):
    before = set(os.listdir("/proc/self/fd"))
    fail_on(monkeypatch, window_ways.SocketWay, "_receive", {1}, OSError(24, "Too many"))
    found = hand_over("aaab", HPCPAR_NODE="required", HPCPAR_SHM="socket")
    assert [type(error) for error in found] == [BackendUnavailable] * 4
    assert str(found[3]).startswith(
        "init: HPCPAR_NODE=required, but not all ranks of a node can share memory "
        "(HPCPAR_SHM=socket; socket: rank 1: OSError: [Errno 24] Too many) [rank 3/4]. Unset"
    )
    assert set(os.listdir("/proc/self/fd")) == before


def test_none_is_what_was_asked_for(caplog):
    found = hand_over("ab", HPCPAR_SHM="none")
    assert [(w.how, w.why, w.buffers) for w in found] == [("none", "HPCPAR_SHM=none", ())] * 2
    assert not caplog.records
    found = hand_over("ab", HPCPAR_SHM="none", HPCPAR_NODE="required")
    assert [type(error) for error in found] == [BackendUnavailable] * 2


@pytest.mark.parametrize(
    ("env", "known"),
    [({"HPCPAR_SHM": "mmap"}, "socket, file, none"), ({"HPCPAR_NODE": "yes"}, "required")],
)
def test_unknown_settings_are_refused_on_all_ranks(env, known):
    (name, value), *_ = env.items()
    for rank, error in enumerate(hand_over("ab", **env)):
        assert type(error) is ArgumentError
        said = f"init: {name}='{value}' must be one of {known} [rank {rank}/2]. Set it"
        assert str(error).startswith(said)


def test_a_wrong_key_in_one_window_is_known_to_all(monkeypatch):
    real = Window.create.__func__

    def create(cls, fd, identity):
        return real(cls, fd, identity._replace(key=KEY) if identity.rank == 2 else identity)

    monkeypatch.setattr(Window, "create", classmethod(create))
    for shm in ("socket", "file"):
        found = hand_over("aaa", HPCPAR_SHM=shm)
        assert [w.how for w in found] == ["none"] * 3
        assert {w.why.split(": ", 2)[2] for w in found} == {
            "window of rank 2: its key is another job's."
        }


def test_a_rank_that_does_not_hand_over_is_named_at_the_deadline(monkeypatch):
    real = window_ways.SocketWay._exchange

    def exchange(self, names):
        return "" if self.place.index == 1 else real(self, names)

    monkeypatch.setattr(window_ways.SocketWay, "_exchange", exchange)
    said = "socket: rank 0: no window of rank 1 came within 0.2 s"
    assert hand_over("aa", timeout=0.2, HPCPAR_SHM="socket")[1].why.endswith(said)
    monkeypatch.setattr(window_ways.SocketWay, "_knock", lambda self, names: "")
    assert hand_over("aa", timeout=0.2, HPCPAR_SHM="socket")[1].why.endswith(said)


def test_another_user_is_refused(monkeypatch):
    monkeypatch.setattr(window_ways, "is_foreign", lambda uid: True)
    (why,) = {w.why for w in hand_over("aa", HPCPAR_SHM="socket")}
    assert f"rank 0: it belongs to user {os.geteuid()}, and this process runs as" in why


def test_a_file_that_others_can_open_is_refused(tmp_path):
    path = tmp_path / "hpcpar-1"
    path.touch(mode=0o600)
    os.close(window_ways._open_mine(str(path)))
    path.chmod(0o640)
    with pytest.raises(BackendUnavailable, match=r"with mode 640; it must be user .* mode 600"):
        window_ways._open_mine(str(path))
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        window_ways._open_mine(str(link))


def test_the_first_directory_that_takes_a_file_is_used(tmp_path):
    place = window_ways.Place((4,), 0, KEY, 16 * LENGTH, True)
    way = window_ways.FileWay(place, {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert way._folders[:2] == ["/dev/shm", str(tmp_path)]
    way._folders = ["/proc", str(tmp_path)]
    path = Path(way._make(()))
    assert (path.parent, path.stat().st_mode & 0o777) == (tmp_path, 0o600)
    way.close()
    assert not path.exists()
    way._folders = ["/proc", "/nowhere"]
    with pytest.raises(BackendUnavailable, match=r"takes a window \(/proc: .*; /nowhere: No such"):
        way._make(())

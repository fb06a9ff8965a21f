"""Shared memory of a node between processes: in namespaces, under limits, killed and forked."""

import os
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

from hpcpar.comm.window import least_length, skewed

OWN = ("unshare", "-Ur", "--pid", "--fork", "--kill-child", "--mount-proc")
PREAMBLE = """
import fcntl, os, select, signal, sys, time
from datetime import timedelta
import numpy as np
from hpcpar.comm.bootstrap import StoreBootstrap
from hpcpar.comm.handover import open_windows
from hpcpar.errors import GroupFailed

class Folder:
    def __init__(self, path):
        self.path = path
    def at(self, key):
        return os.path.join(self.path, key.replace("/", "-"))
    def set(self, key, value):
        with open(self.at(key) + ".new", "wb") as file:
            file.write(value)
        os.rename(self.at(key) + ".new", self.at(key))
    def get(self, key):
        with open(self.at(key), "rb") as file:
            return file.read()
    def wait(self, keys, timeout):
        end = time.monotonic() + timeout.total_seconds()
        while not all(os.path.exists(self.at(key)) for key in keys):
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.002)

folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
boot = StoreBootstrap(Folder(folder), "job", rank, size, 20)

def meet():
    boot.all_gather(b"")

def share(windows):
    windows.grow(1 << 16)
    np.frombuffer(windows.buffers[windows.index], np.uint8)[5000:6000] = windows.index + 1
    meet()
    return [int(buffer[5999]) for buffer in windows.buffers]
"""


@cache
def refused_by_unshare(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def job(tmp_path):
    """Return a function that runs a script on n ranks and returns their (code, out, err)."""
    script, store = tmp_path / "script.py", tmp_path / "store"
    store.mkdir()

    def run(body, n, *, own=(), shell=(), **env):
        script.write_text(PREAMBLE + textwrap.dedent(body))
        ranks = [[*own, sys.executable, str(script), str(store), str(r), str(n)] for r in range(n)]
        if shell:  # one for all ranks; its last word is what it does before they start
            lines = "\n".join(" ".join(words) + " &" for words in ranks)
            ranks = [[*shell[:-1], f"{shell[-1]}\n{lines}\nwait"]]
        pipe = subprocess.PIPE
        env = {**os.environ, **env}
        started = [subprocess.Popen(r, stdout=pipe, stderr=pipe, text=True, env=env) for r in ranks]
        try:
            ends = [(*process.communicate(timeout=30), process.returncode) for process in started]
        finally:
            for process in started:
                process.kill()
        return [(code, out, err) for out, err, code in ends]

    return run


SHARING = """
windows = open_windows(boot, os.environ, timeout=20)
print(windows.how, share(windows), sum(fd >= 0 for fd in windows.fds), os.getpid() < 9, flush=True)
meet()
windows.close()
"""


@pytest.mark.parametrize(("n", "shm"), [(2, "socket"), (3, "socket"), (2, "file")])
def test_every_rank_in_a_user_and_pid_and_mount_namespace_of_its_own(job, n, shm):
    if reason := refused_by_unshare(*OWN, "true"):
        pytest.skip(f"no namespaces here: {reason}")
    ends = job(SHARING, n, own=OWN, HPCPAR_SHM=shm)
    said = f"{shm} {list(range(1, n + 1))} {n - 1} True\n"
    assert [end[:2] for end in ends] == [(0, said)] * n, ends


@pytest.mark.parametrize(("size", "fits"), [("64m", 20 << 20), ("1m", 100_000)])
def test_files_in_a_small_dev_shm(job, size, fits):
    shell = ("unshare", "-Urm", "sh", "-ec", f"mount -t tmpfs -o size={size} none /dev/shm")
    if reason := refused_by_unshare(*shell):
        pytest.skip(f"no private /dev/shm here: {reason}")
    body = f"""
        windows = open_windows(boot, os.environ, timeout=20)
        windows.grow({fits})
        seen = share(windows)
        try:
            windows.grow(100 << 20)
        except MemoryError as error:
            text = str(error)
        print(windows.how, seen, "No space left on device. Use smaller" in text,
              os.listdir("/dev/shm"), flush=True)
        meet()
        windows.close()
    """
    ((code, out, err),) = job(body, 2, shell=shell, HPCPAR_SHM="file")
    assert (code, out) == (0, "file [1, 2] True []\n" * 2), err


@pytest.mark.parametrize("shm", ["socket", "file"])
def test_a_killed_rank_hangs_up_and_leaves_nothing(job, tmp_path, shm):
    body = """
        windows = open_windows(boot, os.environ, timeout=20)
        share(windows)
        if rank == 1:
            parent = os.getpid()
            if os.fork():
                time.sleep(0.1)
                os.kill(parent, signal.SIGKILL)
            # A child that lives on does not hide the death of its parent.
            os.close(1), os.close(2)
            end = time.monotonic() + 5
            while time.monotonic() < end and not os.path.exists(folder + "/seen-0"):
                time.sleep(0.01)
            os._exit(0)
        began, other = time.monotonic(), 2 - rank
        def is_gone(place):
            fd = windows.fds[place]
            if windows.how == "socket":
                poll = select.poll()
                poll.register(fd, select.POLLRDHUP)
                return bool(poll.poll(0))
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            fcntl.flock(fd, fcntl.LOCK_UN)
            return True
        while not is_gone(1) and time.monotonic() - began < 10:
            time.sleep(0.01)
        alive = is_gone(other)
        boot._store.set(f"seen-{rank}", b"")
        boot._store.wait([f"seen-{other}"], timedelta(seconds=10))
        print(is_gone(1), alive, time.monotonic() - began < 5, windows.buffers[1][5000], flush=True)
    """
    ends = job(body, 3, HPCPAR_SHM=shm)
    said = "True False True 2\n"
    assert (ends[1][0], ends[0][:2], ends[2][:2]) == (-9, (0, said), (0, said)), ends
    said = "".join(path.read_text() for path in (tmp_path / "store").iterdir())
    names = re.findall(r'"((?:/dev/shm/)?hpcpar-[0-9a-f]{32})"', said)
    assert len(names) == 3
    assert not any(map(os.path.exists, names))
    assert not any(f"@{name}" in Path("/proc/net/unix").read_text() for name in names)


def test_a_forked_child_is_refused_and_its_parent_works_on(job):
    body = """
        windows = open_windows(boot, os.environ, timeout=20)
        if rank == 0:
            child = os.fork()
            if child == 0:
                for use in (lambda: windows.grow(1), lambda: windows.buffers, lambda: windows.fds):
                    try:
                        use()
                    except GroupFailed as error:
                        assert f"is process {os.getppid()}'s" in str(error)
                    else:
                        os._exit(3)
                windows.close()
                os._exit(4)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        meet()
        (fd,) = (fd for fd in windows.fds if fd >= 0)
        poll = select.poll()
        poll.register(fd, select.POLLRDHUP)
        print(poll.poll(0), share(windows), flush=True)
        meet()
        windows.close()
    """
    ends = job(body, 2)
    assert [end[1] for end in ends] == ["4\n[] [1, 2]\n", "[] [1, 2]\n"], ends


LIMITED = """
import resource
resource.setrlimit(resource.{limit}, ({value}, {value}))
windows = open_windows(boot, os.environ)
print(windows.how, windows.length, windows.why)
if windows.how != "none":
    windows.grow(1 << 20)
    try:
        windows.grow(2 * windows.length)
    except MemoryError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("limit", "value", "length"),
    [("RLIMIT_FSIZE", 20_000_000, 1 << 24), ("RLIMIT_AS", 12 << 30, 1 << 32)],
)
def test_limits_of_the_process_make_windows_shorter(job, limit, value, length):
    ((code, out, err),) = job(LIMITED.format(limit=limit, value=value), 1)
    opened, refused = out.splitlines()
    assert (code, opened.strip()) == (0, f"socket {skewed(length)}"), err
    assert f"the window of rank 0 is {skewed(length)} bytes long. Use smaller buffers" in refused


def test_a_limit_that_leaves_no_room_is_named(job):
    ((code, out, err),) = job(LIMITED.format(limit="RLIMIT_FSIZE", value=9_000), 1)
    least = least_length(1)
    said = f"none 8192 socket: rank 0: a window can be 8192 bytes long and must be {least}. Raise"
    assert (code, out[: len(said)]) == (0, said), err

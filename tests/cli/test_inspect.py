"""`hpcpar inspect`: a job is looked at while it hangs; what cannot be looked at is said."""

import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from hpcpar import cli
from hpcpar._core import Recorder, RecordReader
from hpcpar.cli import inspect
from hpcpar.comm import launch, window
from hpcpar.comm.libmpi import find_mpiexec
from hpcpar.comm.window import Identity, Window

KEY = bytes(range(16))
SECOND = 10**9

JOB = """
import os, sys, time
import numpy as np
import hpcpar as hp
group = hp.init(backend="node")
x = np.ones(4096, np.float32)
for _ in range(12):
    group.all_reduce(x)
reverse = group.subgroup(range(group.size)[::-1])
reverse.barrier()
with open(f"{sys.argv[1]}/{group.rank}.new", "w") as file:
    print(os.getpid(), file=file)
os.rename(file.name, f"{sys.argv[1]}/{group.rank}")
if group.rank == 1:
    time.sleep(100)
reverse.broadcast(x)
"""


@pytest.fixture
def hanging(tmp_path):
    """Return a function that starts a job whose rank 1 sleeps while the others wait for it."""
    if find_mpiexec() is None or launch.is_launched(os.environ):
        pytest.skip("starts a job of its own, which needs an mpiexec and no job around it")
    script = tmp_path / "hangs.py"
    script.write_text(JOB)
    jobs, pids = [], {}

    def start(size, **env):
        command = [sys.executable, "-m", "hpcpar", "run", "-n", str(size), script, tmp_path]
        jobs.append(subprocess.Popen(command, env={**os.environ, **env}, start_new_session=True))
        end = time.monotonic() + 60
        while len(pids) < size and time.monotonic() < end:
            time.sleep(0.1)
            found = [path for path in tmp_path.iterdir() if path.name.isdigit()]
            pids.update({int(path.name): int(path.read_text()) for path in found})
        time.sleep(0.5)  # the others wait
        return [pids[rank] for rank in range(size)]

    yield start
    for pid in pids.values():
        with suppress(ProcessLookupError):  # the launcher was quicker
            os.kill(pid, signal.SIGKILL)
    for job in jobs:
        os.killpg(job.pid, signal.SIGTERM)
        job.wait(20)


def shown(capsys, *words):
    assert cli.main(["inspect", *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    assert cli.main(["inspect", *map(str, words)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("shm", ["socket", "file"])
def test_a_hanging_job_is_shown(hanging, capsys, shm):
    pids = hanging(3, HPCPAR_SHM=shm)
    told = shown(capsys, pids[0], "--last", 3)
    lines = told.splitlines()
    assert lines[0].startswith(f"rank 0, PID {pids[0]}: {sys.executable} ")
    assert lines[1] == "  groups"
    assert lines[2] == "    world: rank 0/3, 12 operations, 0.3 MiB sent"
    assert re.fullmatch(r"    world\[2,1,0\]: rank 2/3, 2 operations, \S+ MiB sent", lines[3])
    assert lines[4] == "  last operations"
    call = r"world #11 all_reduce float32\[4096\] 16\.0 KiB at hangs.py:\d+ done \d+ us"
    assert re.fullmatch(rf" +\d+\.\d{{3}} s ago  {call}", lines[5])
    call = r"world\[2,1,0\] #0 barrier at hangs.py:\d+ done \d+ us"
    assert re.fullmatch(rf" +\d+\.\d{{3}} s ago  {call}", lines[6])
    call = r"world\[2,1,0\] #1 broadcast float32\[4096\] 16\.0 KiB at hangs.py:\d+ not done"
    assert re.fullmatch(rf" +{call}", lines[7])
    assert lines[8] == "  open now"
    assert re.fullmatch(rf" +\d+\.\d{{3}} s ago  {call}", lines[9])
    assert len(lines) == 10
    sleeps = shown(capsys, pids[1])
    assert sleeps.startswith("rank 1, ")
    assert sleeps.endswith("  open now\n    none\n")
    assert sleeps.count(" done ") == 8


def test_all_of_a_job_with_one_that_is_stopped(hanging, capsys):
    pids = hanging(3)
    os.kill(pids[2], signal.SIGSTOP)
    told = shown(capsys, "--all", pids[1])
    heads = [line for line in told.splitlines() if line.startswith("rank ")]
    assert [line.split(":")[0] for line in heads] == [
        f"rank 0, PID {pids[0]}",
        f"rank 1, PID {pids[1]}",
        f"rank 2, PID {pids[2]}, stopped",
    ]
    assert len(re.findall(r"broadcast .* at hangs.py:\d+ not done", told)) == 4
    with open(f"/proc/{pids[2]}/stat") as file:
        assert file.read().rpartition(")")[2].split()[0] == "T"  # still


@pytest.fixture
def mine():
    """A window of this process, as `init` makes it."""
    made = Window.create(window.create_memory(), Identity(5, KEY, 1 << 24))
    yield made
    made.close()


def test_a_window_without_a_record_is_said(mine, capsys):
    told = refused(capsys, os.getpid())
    who = f"hpcpar inspect: PID {os.getpid()}"
    assert told.startswith(
        f"{who}: its record cannot be read: RecordReader: buffer holds no record"
    )


def test_who_has_left_is_marked(mine, capsys):
    start, stop = inspect.node_sizes()["record"], inspect.node_sizes()["areas"]
    recorder = Recorder(memory=memoryview(mine.buffer)[start:stop])
    recorder.add_group("world", 0, 1)
    assert f"rank 5, PID {os.getpid()}: " in shown(capsys, os.getpid())
    os.pwrite(mine.fileno(), struct.pack("<Q", 1), window._HEADER.size - 8)
    assert f"rank 5, PID {os.getpid()}, has left: " in shown(capsys, os.getpid())


def test_another_version_is_said(mine, capsys):
    os.pwrite(mine.fileno(), struct.pack("<I", 77), 8)
    told = refused(capsys, os.getpid())
    reads = f"and this hpcpar reads {window.LAYOUT_VERSION}. Use the hpcpar"
    assert f"its memory has layout version 77, {reads}" in told


def test_windows_of_others_are_not_taken_for_ones_own(mine, capsys):
    code = "import time; print('up', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[mine.fileno()], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"up\n"
        told = refused(capsys, child.pid)
        child.kill()
    assert f"PID {child.pid}: it has no shared memory of hpcpar. It must be a rank on" in told
    (others,) = re.findall(r"Processes here that are: (.*)\.\n", told)
    assert str(os.getpid()) in others.split(", ")


def test_who_cannot_be_looked_into_is_said(capsys, monkeypatch):
    assert refused(capsys, 2**22 + 1).endswith(f"PID {2**22 + 1}: there is no such process.\n")

    def forbidden(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(inspect.os, "listdir", forbidden)
    told = refused(capsys, os.getpid())
    user = os.geteuid()
    assert f"not permitted to look into it: it is user {user}'s, this process user {user}" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [(["0"], "PID 0: it is at least 1."), (["1", "--last=-1"], "--last -1: it is at least 0.")],
)
def test_numbers_out_of_range_are_refused(words, said, capsys):
    assert refused(capsys, *words) == f"hpcpar inspect: {said}\n"


def test_the_help_helps(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["inspect", "--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert "hpcpar inspect --all 4711" in told
    assert "--last N" in told


def test_what_is_open_stays_visible_behind_newer_operations():
    memory = mmap.mmap(-1, 5 << 20)
    recorder = Recorder(64, memory)
    recorder.add_group("g", 0, 2)
    recorder.begin(0, 2, 12, 3, 4, -1)
    for _ in range(10):
        recorder.end(recorder.begin(0, 1, 0, 0, 1, -1))
    lines = inspect.lines_of(RecordReader(memory), 2, time.monotonic_ns() + 2000 * SECOND)
    assert [line.split("ago  ")[1][:12] for line in lines[3:5]] == ["g #9 barrier", "g #10 barrie"]
    assert re.fullmatch(r" +33 min ago  g #0 all_reduce float32\[3\] 0\.0 KiB not done", lines[6])

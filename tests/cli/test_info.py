"""What `hpcpar info` says of the node engine, and that it is what the engine takes."""

import json
import re
import subprocess
import sys

import pytest

from hpcpar import cli
from hpcpar._core import node_sizes
from hpcpar.cli import info
from hpcpar.comm.bootstrap import SelfBootstrap
from hpcpar.comm.handover import NodeWindows
from hpcpar.comm.libmpi import find_mpiexec

KIB, MIB = 2**10, 2**20
SIZES = {"head": 36 * KIB, "control": 32 * KIB, "slots": 2 * MIB}


@pytest.mark.parametrize(
    ("size", "groups", "lanes", "windows"),
    [
        (1, 0, 0, 36 * KIB),
        (2, 1, 0, 2 * 68 * KIB),
        (192, 1, 1, 192 * (68 * KIB + 2 * MIB)),
        (3, 2, 2, 3 * (36 * KIB + 2 * (32 * KIB + 4 * MIB))),
    ],
)
def test_memory_of_a_node(size, groups, lanes, windows):
    assert info.node_memory(SIZES, size, groups, lanes)["windows"] == windows


def test_page_tables_grow_with_the_square_of_the_ranks():
    few, many = (info.node_memory(SIZES, size, 1, 1)["tables"] for size in (4, 8))
    assert few > 0
    assert many == 4 * few


def test_the_engine_is_tried():
    told = info.node_facts(SelfBootstrap(), {})
    assert told["usable"] is True
    assert told["handed over by"] in ("socket", "file")
    assert told["window_bytes"] >= node_sizes()["length"]
    assert told["HPCPAR_SHM"] == told["HPCPAR_NODE"] == "not set"
    sizes = node_sizes()
    assert told["rank_bytes"] == sizes["head"]
    assert told["192_ranks_bytes"] == info.node_memory(sizes, 192, 1, 1)["windows"]
    assert "auto takes" not in told  # a world of one needs no engine


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"HPCPAR_SHM": "none"}, "HPCPAR_SHM=none"),
        ({"HPCPAR_SHM": "pipe"}, "HPCPAR_SHM='pipe' must be one of socket, file, none"),
        ({"HPCPAR_SHM": "none", "HPCPAR_NODE": "required"}, "HPCPAR_NODE=required, but not all"),
        ({"HPCPAR_NODE": "yes"}, "HPCPAR_NODE='yes' must be one of required"),
    ],
)
def test_what_stands_against_it_is_said(env, problem):
    told = info.node_facts(SelfBootstrap(), env)
    assert told["usable"] is False
    assert problem in told["problem"]
    assert {name: told[name] for name in env} == env
    assert told["group_bytes"] == node_sizes()["control"]  # told all the same


def test_a_way_that_was_asked_for_is_noted():
    told = info.node_facts(SelfBootstrap(), {"HPCPAR_SHM": "file"})
    assert (told["handed over by"], told["note"]) == ("file", "HPCPAR_SHM=file")


def test_a_full_machine_is_said(monkeypatch):
    def fails(windows, nbytes):
        raise MemoryError("there is none")

    monkeypatch.setattr(NodeWindows, "grow", fails)
    told = info.node_facts(SelfBootstrap(), {})
    assert (told["usable"], told["problem"]) == (False, "there is none")


@pytest.mark.parametrize(
    ("name", "limit", "problem"),
    [
        ("node_sizes", {**node_sizes(), "ranks": 0}, "1 ranks on one node; the engine takes 0"),
        ("least_length", 2**62, f"must be {2**62}: raise the limits"),
    ],
)
def test_limits_of_the_engine_are_said(name, limit, problem, monkeypatch):
    monkeypatch.setattr(info, name, lambda *ranks: limit)
    told = info.node_facts(SelfBootstrap(), {})
    assert told["usable"] is False
    assert problem in told["problem"]


def test_sizes_have_units():
    assert info._text("rank_bytes", 36 * KIB) == "36 KiB"
    assert info._text("group_lane_bytes", 2 * MIB) == "2.00 MiB"
    assert info._text("window_bytes", 64 * 2**30) == "64.00 GiB"


@pytest.mark.threads_only
def test_the_table_and_the_json_have_the_section(capsys, monkeypatch):
    monkeypatch.setenv("HPCPAR_SHM", "none")
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["node engine"]["problem"] == "HPCPAR_SHM=none"
    assert cli.main(["info"]) == 0
    assert re.search(r"^node engine\n  usable +False\n", capsys.readouterr().out, re.M)


def job(tmp_path, size, *words):
    """Run under the mpiexec of this Python's MPI; return what was written."""
    if find_mpiexec() is None:
        pytest.skip("there is no mpiexec")
    command = [sys.executable, "-m", "hpcpar", "run", "-n", str(size), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.threads_only
def test_a_job_tries_its_own_ranks(tmp_path):
    told = json.loads(job(tmp_path, 3, "-m", "hpcpar", "info", "--json"))["node engine"]
    assert (told["usable"], told["ranks here"], told["auto takes"]) == (True, [0, 1, 2], "node")
    assert isinstance(told["reads their arrays"], bool)


TAKEN = """
import os
import numpy as np
import hpcpar as hp

group = hp.init(backend="node")
fd = min(
    int(name) for name in os.listdir("/proc/self/fd")
    if os.path.exists(f"/proc/self/fd/{name}")
    and "memfd:hpcpar" in os.readlink(f"/proc/self/fd/{name}")
)

def taken():
    group.barrier()
    return os.fstat(fd).st_blocks * 512

large = np.ones(2**18)
found = [taken()]
group.all_reduce(large)
found.append(taken())
group.all_reduce(large, async_op=True).wait()
found.append(taken())
reverse = group.split(0, -group.rank)
found.append(taken())
if group.rank == 0:
    print(found)
"""


@pytest.mark.threads_only
def test_what_is_said_is_what_the_engine_takes(tmp_path):
    """Any rank's window will do: all are used alike, but for the pages nobody has looked at."""
    script = tmp_path / "taken.py"
    script.write_text(TAKEN)
    found = json.loads(job(tmp_path, 2, str(script)))
    said = node_sizes()
    plan = [info.node_memory(said, 1, 1, lanes)["windows"] for lanes in (0, 1, 2)]
    plan.append(plan[-1] + said["control"])
    for taken, most in zip(found, plan, strict=True):
        assert most - said["head"] <= taken <= most

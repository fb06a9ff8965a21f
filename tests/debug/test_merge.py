"""A file of the record per rank, and one trace of them all."""

import json

import numpy as np
import pytest

from hpcpar import debug
from hpcpar.cli import main
from hpcpar.errors import ArgumentError
from hpcpar.parallel import DDP
from hpcpar.testing import run_ranks


def write(folder, ranks=2):
    def body(group):
        ddp = DDP({"w": np.zeros(1000)}, group=group)
        with ddp.step() as step:
            step.put("w", np.ones(1000))
        return debug.save_record(folder, group=group)

    return run_ranks(ranks, body)


def test_files_become_one_trace(tmp_path, capsys):
    files = write(tmp_path / "records")
    assert [file.name for file in files] == ["rank-00000.json", "rank-00001.json"]
    out = tmp_path / "new" / "trace.json"
    assert main(["trace", str(tmp_path / "records"), "-o", str(out)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"{out}: 2 ranks"
    for word in ("rank", "MiB sent", "ddp backward s", "ddp wait s"):
        assert word in shown[1]
    assert [line.split()[0] for line in shown[2:]] == ["0", "1"]
    events = json.loads(out.read_text())["traceEvents"]
    spans = [e for e in events if e.get("cat") == "ddp"]
    assert {e["pid"] for e in spans} == {0, 1}
    assert [e["name"] for e in spans if e["pid"] == 1] == ["forward", "backward", "wait"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names.count("ddp") == 2
    reduced = [e for e in events if e["name"] == "all_reduce" and e["pid"] == 0]
    wait = next(e for e in spans if e["pid"] == 0 and e["name"] == "wait")
    assert reduced[-1]["ts"] >= wait["ts"]  # on one clock


def test_single_files_and_silence(tmp_path, capsys):
    files = write(tmp_path, ranks=3)
    out = tmp_path / "two.json"
    words = ["trace", str(files[2]), str(files[0]), "--quiet", "-o", str(out)]
    assert main(words) == 0
    assert capsys.readouterr().out == ""
    assert {e["pid"] for e in json.loads(out.read_text())["traceEvents"]} == {0, 2}


def test_clocks_of_other_machines_are_aligned_by_the_time_of_day(tmp_path):
    files = write(tmp_path)
    content = json.loads(files[1].read_text())
    later = 10**15  # its clock began earlier
    content["now_ns"] += later
    content["entries"] = [[*e[:7], e[7] + later, e[8] + later, *e[9:]] for e in content["entries"]]
    content["host"] = "other"
    files[1].write_text(json.dumps(content))
    records = debug.load_records([tmp_path])
    events = debug.trace_events(list(records.values()))
    world = [event for event in events if event.get("cat") == "world"]
    last = [max(e["ts"] for e in world if e["pid"] == rank) for rank in (0, 1)]
    assert abs(last[0] - last[1]) < 1e6  # a second, of 10^6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"there is no rank-\*.json"),
        ("{", "is no record of a rank"),
        ("[]", "is no record of a rank"),
        ('{"rank": 0, "wall_ns": 1}', "is no record of a rank"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, capsys, content, message):
    if content is not None:
        (tmp_path / "rank-00000.json").write_text(content)
    with pytest.raises(ArgumentError, match=message):
        debug.load_records([tmp_path])
    assert main(["trace", str(tmp_path)]) == 2
    assert "hpcpar trace: trace: " in capsys.readouterr().err


def test_two_files_of_one_rank_are_refused(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b")
    with pytest.raises(ArgumentError, match="is of rank 0, as one before it is"):
        debug.load_records([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ArgumentError, match="cannot be written"):
        run_ranks(1, lambda group: debug.save_record("/proc/nowhere", group=group))

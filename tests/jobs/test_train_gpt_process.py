"""The training job as a user runs it: output, refusals, stopping and going on."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcpar import checkpoint
from hpcpar.comm import launch
from hpcpar.comm.libmpi import find_mpiexec

pytestmark = [
    pytest.mark.threads_only,
    pytest.mark.skipif(
        launch.is_launched(os.environ), reason="starts jobs of its own, not possible inside a job"
    ),
]

JOB = Path(__file__).parents[2] / "jobs" / "train_gpt.py"
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_osc": "^ucx",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
SMALL = (
    "--layers 1 --hidden 16 --heads 2 --seq 8 --batch 5 --dtype float64 --sample 20 --val-every 3"
)
LINE = re.compile(r"^step (\d+) loss (\d\.\d{11})$", re.MULTILINE)


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.py"
    file.write_text("".join(f"x{i} = {i} + {i * i % 7}\n" for i in range(100)))
    return file


def start(arguments, ranks):
    program = [sys.executable, str(JOB), *map(str, arguments)]
    command = program if ranks is None else [find_mpiexec(), "-n", str(ranks), *program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=os.environ | OPEN_MPI, **pipes)


def run(arguments, ranks=None):
    process = start(arguments, ranks)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


def losses(out):
    found = LINE.findall(out)
    assert [int(step) for step, _ in found] == list(range(int(found[0][0]), int(found[-1][0]) + 1))
    return np.array([float(loss) for _, loss in found])


def test_leaves_losses_sample_plot_trace_and_checkpoint(tmp_path, text):
    out = tmp_path / "out"
    code, shown, err = run([*SMALL.split(), "--steps", 7, "--text", text, "--out", out])
    assert (code, err) == (0, "")
    assert len(losses(shown)) == 7
    assert len(re.findall("^validation loss", shown, re.MULTILINE)) == 3
    sample = (out / "sample.txt").read_text(encoding="utf-8")
    assert "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sample) in shown
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "trace.json").read_text())["traceEvents"]
    assert checkpoint.load(out / "checkpoints").step == 7


@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_losses_do_not_depend_on_the_number_of_ranks(tmp_path, text, count):
    arguments = [*SMALL.split(), "--steps", 50, "--text", text, "--out"]
    code, alone, _ = run([*arguments, tmp_path / "alone"])
    assert code == 0
    code, several, err = run([*arguments, tmp_path / "several"], count)
    assert (code, err) == (0, "")
    assert np.abs(losses(alone) - losses(several)).max() < 1e-10


def test_goes_on_with_the_same_numbers_after_sigterm(tmp_path, text):
    arguments = [*SMALL.split(), "--text", text, "--out", tmp_path / "out", "--steps"]
    process = start([*arguments, 100_000], None)
    early = "".join(process.stdout.readline() for _ in range(6))
    process.send_signal(signal.SIGTERM)
    late, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    first = losses(early + late)
    assert f"stopped at step {len(first)}; go on with --resume" in late
    total = len(first) + 5
    code, shown, _ = run([*arguments, total, "--resume"])
    assert code == 0
    code, straight, _ = run([*arguments[:-2], tmp_path / "straight", "--steps", total])
    assert code == 0
    assert np.array_equal(np.concatenate([first, losses(shown)]), losses(straight))


def test_out_of_time_all_ranks_save_at_the_same_step(tmp_path, text):
    arguments = [*SMALL.split(), "--text", text, "--out", tmp_path, "--steps", 100_000]
    code, shown, err = run([*arguments, "--max-minutes", 0.01], 2)
    assert (code, err) == (0, "")
    done = len(losses(shown))
    assert f"stopped at step {done}" in shown
    assert checkpoint.load(tmp_path / "checkpoints").step == done


def test_an_earlier_run_is_put_aside(tmp_path, text):
    arguments = [*SMALL.split(), "--text", text, "--out", tmp_path, "--steps"]
    for steps in (4, 3, 2):
        assert run([*arguments, steps])[0] == 0
    names = ("checkpoints.1", "checkpoints.2", "checkpoints")
    assert [checkpoint.load(tmp_path / name).step for name in names] == [4, 3, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hidden 10 --heads 4", "heads is 4, needs a divisor of width 10"),
        ("--batch 1", "--batch 1 must be at least the number of ranks, 2"),
        ("--steps 0", "argument --steps: 0 must be at least 1. See --help"),
        ("--lr fast", "argument --lr: .*'fast'"),
        ("--colour red", "unrecognized arguments: --colour red"),
        ("--text {tmp}/missing", "missing' does not exist"),
        ("--text {tmp}/empty", "empty' holds no text"),
        ("--seq 5000", "seq 5000 needs at least 10001"),
        ("--out {tmp}/empty", "empty/checkpoints/step_00000000 cannot be written"),
        ("--out {tmp}/new --resume", "new/checkpoints holds no checkpoint"),
        ("--seed -1", "seed is -1"),
    ],
)
def test_bad_input_ends_all_ranks_with_one_message(tmp_path, text, arguments, message):
    (tmp_path / "empty").touch()
    given = [word.format(tmp=tmp_path) for word in arguments.split()]
    defaults = ["--text", text, "--out", tmp_path / "out", *SMALL.split()]
    code, out, err = run([*defaults, *given], 2)
    assert code not in (0, None)
    assert re.search(message, err), err
    assert err.count("train_gpt: ") == 1
    assert "Traceback" not in err
    assert "step 1" not in out


def test_help_is_printed_once():
    code, out, err = run(["--help"], 2)
    assert (code, err) == (0, "")
    assert out.count("usage: train_gpt") == 1


def test_steps_that_overflow_are_named_and_a_sample_never_breaks_the_output(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::RuntimeWarning")
    (tmp_path / "bytes").write_bytes(bytes(range(256)) * 4)
    flags = "--optimizer sgd --lr 1e200 --clip 0 --steps 4"
    paths = ["--text", tmp_path / "bytes", "--out", tmp_path / "out"]
    code, out, err = run([*SMALL.split(), *flags.split(), *paths])
    assert (code, err) == (0, "")
    assert "step 4 skipped: its gradients are not finite" in out
    assert out.isascii()
    assert "?" in out.partition("--- sample")[2]
    assert len((tmp_path / "out" / "sample.txt").read_text(encoding="utf-8")) == len("\ndef ") + 20


def test_no_step_is_saved_twice(tmp_path, text):
    arguments = [*SMALL.split(), "--text", text, "--out", tmp_path, "--steps", 4, "--save-every", 2]
    for more in ([], ["--resume"]):
        code, shown, err = run([*arguments, *more])
        assert (code, err) == (0, "")
        assert f"checkpoint {tmp_path / 'checkpoints' / 'step_00000004'}\n" in shown
        kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert kept == ["step_00000002", "step_00000004"]

"""SPIN searches every interleaving of the models in native/model; each mutant must fail."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "native" / "model"
pytestmark = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("cc") and MODELS.is_dir()),
    reason="spin is not installed (or no C compiler, or no sources)",
)

# What pan says of each kind of error; a model with a property in time is searched for cycles.
ASLEEP, WRONG, ENDLESS = "invalid end state", "assertion violated", "acceptance cycle"
SEARCHES = {"death": (["-O1", "-DNOREDUCE"], ["-a", "-f"])}
TWO_LANES = ("LANES=2", "MESSAGES=1", "INTERRUPTS=0")
LEAVES = ("NO_KILL", "NO_TICK")


@dataclass(frozen=True)
class Search:
    """How pan's search ended: its first error (None: there is none) and the states it stored."""

    error: str | None
    states: int


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def search(folder, model, *defines):
    """Search all states of a model; anything but an error that stops it early fails the test."""
    build, options = SEARCHES.get(model, (["-O0", "-DSAFETY"], []))  # -O0: compiling is most of it
    macros = [f"-D{define}" for define in defines]
    run(["spin", "-a", "-Pcc -E -x c", *macros, str(MODELS / f"{model}.pml")], folder)
    run(["cc", "-w", *build, "-o", "pan", "pan.c"], folder)
    report = run(["./pan", "-m200000", "-w22", *options], folder)
    assert "max search depth too small" not in report
    assert "out of memory" not in report
    errors = re.search(r"errors: (\d+)\n", report)
    states = re.search(r"(\d+) states, stored", report)
    assert errors, report
    assert states, report
    found = re.search(r"^pan:1: (.*)$", report, re.MULTILINE)
    assert ("Search not completed" in report) == bool(found) == (errors[1] != "0"), report
    return Search(found[1] if found else None, int(states[1]))


@pytest.mark.parametrize(
    ("model", "defines", "at_least"),
    [
        pytest.param("ring", (), 10_000, id="ring"),
        pytest.param("doorbell", (), 50_000, id="doorbell"),
        pytest.param("pipeline", (), 500_000, id="pipeline"),
        pytest.param("reduced", ("CHUNKS=2",), 500_000, id="reduced"),
        pytest.param("reduced", (), 5_000_000, id="reduced-3", marks=pytest.mark.slow),
        pytest.param("direct", (), 100_000, id="direct"),
        pytest.param("direct", ("CALLS=3",), 200_000, id="direct-3", marks=pytest.mark.slow),
        pytest.param("death", ("MESSAGES=2",), 100_000, id="death"),
        pytest.param("death", (), 300_000, id="death-3", marks=pytest.mark.slow),
        pytest.param("death", LEAVES, 100_000, id="leaving", marks=pytest.mark.slow),
        pytest.param("doorbell", TWO_LANES, 1_000_000, id="lanes", marks=pytest.mark.slow),
        pytest.param("pipeline", ("INTERRUPTS=1",), 1_000_000, id="eintr", marks=pytest.mark.slow),
    ],
)
def test_models_hold(tmp_path, model, defines, at_least):
    result = search(tmp_path, model, *defines)
    assert result.error is None
    assert result.states >= at_least


ORDERS = ("PUBLISH_RELEASE", "LOOK_ACQUIRE", "SLEEPERS_RELEASE", "RETEST_ACQUIRE")
MUTANTS = [
    *(("doorbell", (mutant,), ASLEEP) for mutant in ORDERS),
    ("ring", ("PUBLISH_FIRST",), WRONG),
    ("ring", ("NO_ROOM_CHECK",), WRONG),
    ("pipeline", ("SLOT_REUSE",), WRONG),
    ("reduced", ("REDUCED_FIRST", "CHUNKS=2"), WRONG),
    ("direct", ("NO_WAIT",), WRONG),
    ("death", ("NO_TICK", "MESSAGES=2"), ENDLESS),
]
MORE_MUTANTS = [
    *(("doorbell", (mutant,), ASLEEP) for mutant in ("BELL_LATE", "RING_FIRST", "NO_BELL")),
    *(("doorbell", (mutant, *TWO_LANES), ASLEEP) for mutant in ("WAKE_ONE", "FLAG")),
    ("doorbell", ("ONE_LINE",), WRONG),
    ("ring", ("PUBLISH_RELAXED",), WRONG),
    ("ring", ("RELEASE_FIRST",), WRONG),
    *(("pipeline", (mutant,), WRONG) for mutant in ("OFF_BY_ONE", "DONE_FIRST", "FILLED_FIRST")),
    *(("pipeline", (mutant,), ASLEEP) for mutant in ORDERS),
    *(("reduced", (mutant,), WRONG) for mutant in ("TAKEN_FIRST", "TAKEN_EARLY")),
    *(("reduced", (mutant, "CHUNKS=2"), ASLEEP) for mutant in ORDERS),
    *(("direct", (mutant,), WRONG) for mutant in ("POST_FIRST", "TAKEN_FIRST")),
    *(("direct", (mutant,), ASLEEP) for mutant in ORDERS),
    ("death", ("NO_LOOK",), ENDLESS),
    ("death", ("TEST_FIRST",), WRONG),
    ("death", ("LEFT_SILENTLY", *LEAVES), ENDLESS),
    ("death", ("PUBLISH_RELEASE", *LEAVES), ENDLESS),
]


@pytest.mark.parametrize(
    ("model", "defines", "error"),
    [
        *(pytest.param(*mutant, id="-".join([mutant[0], *mutant[1]])) for mutant in MUTANTS),
        *(
            pytest.param(*mutant, id="-".join([mutant[0], *mutant[1]]), marks=pytest.mark.slow)
            for mutant in MORE_MUTANTS
        ),
    ],
)
def test_mutants_fail(tmp_path, model, defines, error):
    assert error in (search(tmp_path, model, *defines).error or "no error")

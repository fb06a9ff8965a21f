"""Who started this process: launcher variables as cases of pure functions."""

import warnings

import pytest

from hpcpar.comm import launch
from hpcpar.errors import ArgumentError, LaunchError

OMPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_RANK": "0",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALRANKID": "1"}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
PALS = {
    "PALS_RANKID": "5",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "4",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "PMI_LOCAL_RANK": "1",
}

CASES = {
    "nothing": ({}, ("python", 0, 1, 0)),
    "allocation shell": ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, ("slurm", 0, 1, 0)),
    "batch script": (
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        ("slurm", 0, 1, 0),
    ),
    "pbs script": ({"PBS_JOBID": "1.head", "PBS_NODEFILE": "/x"}, ("pbs", 0, 1, 0)),
    "srun of one": (
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
        ("srun", 0, 1, 0),
    ),
    "srun": (SRUN | {"SLURM_PROCID": "3", "SLURM_LOCALID": "1"}, ("srun", 3, 4, 1)),
    "open mpi in srun": (
        OMPI | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
        ("openmpi", 0, 4, 0),
    ),
    "bare pmi": ({"PMI_RANK": "2", "PMI_SIZE": "4"}, ("pmi", 2, 4, None)),
    "hydra": (HYDRA, ("hydra", 2, 4, 1)),
    "hydra, the launcher's own step": (
        HYDRA | SRUN | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
        ("hydra", 2, 4, 1),
    ),
    "srun --mpi=pmi2": (
        SRUN | {"SLURM_PROCID": "1", "PMI_RANK": "1", "PMI_SIZE": "4"},
        ("pmi", 1, 4, None),
    ),
    "pmix knows no size": ({"PMIX_RANK": "1"}, ("pmix", 1, None, None)),
    "cray pals": (PALS, ("pals", 5, 8, 1)),
    "pals without pmi": (
        {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0"},
        ("pals", 0, None, 0),
    ),
    "torchrun": (
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
        ("torchrun", 1, 2, 1),
    ),
    "a rank alone proves nothing": ({"RANK": "3"}, ("python", 0, 1, 0)),
    "an outer step of one process": (
        OMPI | {"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2", "PMI_RANK": "0", "PMI_SIZE": "1"},
        ("openmpi", 2, 4, 0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_innermost_launcher_wins(case):
    env, expected = CASES[case]
    found = launch.detect(env)
    assert (found.launcher, found.rank, found.size, found.local_rank) == expected


@pytest.mark.parametrize(
    ("env", "word"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "srun"),
        ({"PBS_JOBID": "1"}, "mpiexec"),
        ({}, ""),
    ],
)
def test_hint_names_the_launcher_to_use(env, word):
    hint = launch.detect(env).hint
    assert word in hint
    assert bool(hint) == bool(word)


def test_launchers_that_disagree_are_both_named():
    env = OMPI | {"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2", "PMI_RANK": "1", "PMI_SIZE": "4"}
    with pytest.raises(LaunchError, match=r"openmpi rank 2, pmi rank 1"):
        launch.detect(env)
    with pytest.raises(LaunchError, match="disagree"):
        launch.detect({"OMPI_COMM_WORLD_RANK": "2", "PMI_RANK": "1"})


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"RANK": "x"}, "RANK"),
        ({"PMI_RANK": "", "PMI_SIZE": "2"}, "PMI_RANK"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "-4"}, "OMPI_COMM_WORLD_SIZE"),
        ({"PMIX_RANK": "1.0"}, "PMIX_RANK"),
    ],
)
def test_what_is_no_number_is_refused_by_name(env, name):
    with pytest.raises(ValueError, match=rf"variable {name}="):
        launch.detect(env)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, False),
        ({"PBS_JOBID": "1", "PBS_NODEFILE": "/x"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2"}, False),
        (OMPI, True),
        (HYDRA, True),
        (PALS, True),
        ({"PMIX_RANK": "0"}, True),
        (SRUN | {"SLURM_PROCID": "0"}, True),
    ],
)
def test_mpi_is_loaded_only_when_launched(env, expected):
    assert launch.is_launched(env) is expected


TRAPS = {
    "srun --mpi=none": (SRUN | {"SLURM_PROCID": "0"}, "MPICH", "srun --mpi=pmi2,"),
    "srun --mpi=none, ompi": (SRUN | {"SLURM_PROCID": "0"}, "Open MPI", "srun --mpi=pmix,"),
    "srun, not known": (SRUN | {"SLURM_PROCID": "0"}, "", "--mpi=pmi2 .* or --mpi=pmix"),
    "srun --mpi=pmi2, ompi": (
        SRUN | {"PMI_RANK": "1", "PMI_SIZE": "4"},
        "Open MPI",
        "srun --mpi=pmix,",
    ),
    "hydra, ompi": (HYDRA, "Open MPI", r"this Python's MPI \(Open MPI\).*hpcpar run"),
    "hydra in srun, ompi": (HYDRA | SRUN, "Open MPI", "hpcpar run"),
    "prrte, mpich": (OMPI, "MPICH", "hpcpar run"),
    "torchrun": (
        {"RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"},
        "",
        "torchrun starts no MPI",
    ),
}


@pytest.mark.parametrize("case", TRAPS)
def test_worlds_of_one_are_refused_with_the_fix(case):
    env, library, fix = TRAPS[case]
    with pytest.raises(LaunchError, match=rf"=4 says that 4 processes.*{fix}"):
        launch.check_world(env, 1, library)
    launch.check_world(env, 4, library)
    launch.check_world(env | {"HPCPAR_SINGLETON": "1"}, 1, library)
    with pytest.raises(LaunchError):
        launch.check_world(env | {"HPCPAR_SINGLETON": "0"}, 1, library)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"} | SRUN,
        {"PMIX_RANK": "0"} | SRUN,
        {"RANK": "0", "WORLD_SIZE": "4"},
    ],
)
def test_a_world_of_one_that_was_meant_passes(env):
    launch.check_world(env, 1)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("4(x2)", [4, 4]),
        ("2(x3),1", [2, 2, 2, 1]),
        ("1", [1]),
        ("16(x2),8,4(x2)", [16, 16, 8, 4, 4]),
        ("4(x2),3", [4, 4, 3]),
        ("", []),
    ],
)
def test_slurm_counts(text, counts):
    assert launch.slurm_counts(text) == counts


@pytest.mark.parametrize("text", ["4(x", "x", "4,", "4(x2", "-1", "4(2)", "4 4"])
def test_slurm_counts_refuses_by_name_and_text(text):
    with pytest.raises(ArgumentError) as raised:
        launch.slurm_counts(text, "SLURM_STEP_TASKS_PER_NODE")
    assert isinstance(raised.value, ValueError)
    assert f"SLURM_STEP_TASKS_PER_NODE={text!r}" in str(raised.value)


def test_nodefile_counts_keep_the_order_of_first_names():
    assert launch.nodefile_counts("") == {}
    counts = launch.nodefile_counts("b\na\nb\n\nb\n")
    assert list(counts.items()) == [("b", 3), ("a", 1)]


DEVICES = [
    (("3", 3, 8, 1), 0, False),
    (("0,1,2,3", 2, 4, 4), 2, False),
    (("2,3", 1, 2, 2), 1, False),
    (("", 0, 1, 0), None, False),
    ((None, 0, 1, 0), None, False),
    ((None, 5, 8, 4), 1, True),
    (("GPU-ab12,GPU-cd34", 1, 2, 2), 1, False),
    (("0", 1, 2, 1), 0, True),
    (("0", 0, 1, 1), 0, False),
    ((None, 3, 4, 8), 3, False),
]


@pytest.mark.parametrize(("arguments", "device", "shared"), DEVICES)
def test_visible_device(arguments, device, shared):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert launch.visible_device(*arguments) == device
    assert [w.category for w in seen] == [RuntimeWarning] * shared
    assert all("share a GPU" in str(w.message) for w in seen)

"""mpi4py's own tests, plain and through the drop-in: a program, `python mpi4py_whole.py`; minutes.

    python tests/interop/mpi4py_whole.py [-n 2 3] [--folder FOLDER]

Takes the source of the installed version from the package index, and runs the files that concern
collectives, messages and communicators as jobs, first with mpi4py alone and then with
``hpcpar mpi4py``. Fails if a test passes in plain and not with us, but for those in EXPLAINED.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

FILES = """
cco_buf cco_vec cco_nb_buf cco_nb_vec cco_obj cco_pr_buf cco_pr_vec cco_ngh_buf cco_ngh_obj p2p_buf
p2p_obj p2p_buf_matched p2p_obj_matched p2p_buf_part comm comm_topo msgspec msgzero subclass pack
request status objmodel handle threads group op util_pkl5 attributes
""".split()  # noqa: SIM905
#: Who compares the type of a communicator, and not what it is an instance of.
EXPLAINED = {"comm_topo"}


def fetch(folder):
    """Return the folder of the tests."""
    name = f"mpi4py=={version('mpi4py')}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    if not list(folder.glob("mpi4py-*.tar.gz")):
        subprocess.run([*pip, "-d", folder, name], check=False)
    (source,) = folder.glob("mpi4py-*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return folder / source.name.removesuffix(".tar.gz") / "test"


def run(file, size, words, where):
    """Return whether a file's tests pass on all ranks, and what rank 0 counted."""
    launcher = os.environ.get("MPIEXEC", "mpiexec").split()
    done = subprocess.run(
        [*launcher, "-n", str(size), sys.executable, *words, f"test_{file}.py", "-q"],
        cwd=where, capture_output=True, text=True, timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    said = done.stderr + done.stdout
    ran = re.search(r"^Ran (\d+) tests", said, re.MULTILINE)
    failed = re.search(r"^FAILED", said, re.MULTILINE)  # its exit code does not tell
    return done.returncode == 0 and not failed, int(ran[1]) if ran else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, nargs="+", default=[2, 3], help="ranks (2 3)")
    parser.add_argument("--folder", type=Path, default=None, help="where the source goes, or is")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        where = fetch(args.folder or Path(made))
        lost = []
        for size in args.n:
            print(f"{'file':<18}{'tests':>6}  plain  ours, {size} ranks")
            for file in FILES:
                plain, count = run(file, size, [], where)
                ours, _ = run(file, size, ["-m", "hpcpar", "mpi4py"], where)
                words = ["passes" if good else "fails" for good in (plain, ours)]
                print(f"{file:<18}{count:>6}  {words[0]:<6} {words[1]}", flush=True)
                if plain and not ours and file not in EXPLAINED:
                    lost.append(f"{file} with {size} ranks")
    sys.exit(f"fails with us only: {', '.join(lost)}" if lost else 0)


if __name__ == "__main__":
    main()

"""Every ```python block of README.md and docs/ runs, and every relative link leads somewhere.

The blocks of one file run in order as one script whose line numbers are those of the page.
```python is a world of one under plain python; ```python ranks=2 runs under mpiexec -n 2.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.threads_only  # an MPI rank cannot start another MPI job

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python *([^\n]*)\n(.*?)^```$", re.M | re.S)
RANKS = re.compile(r"ranks=(\d+)")
VARIABLE = re.compile(r"HPCPAR_[A-Z]+")


def scripts(text):
    """Map a number of ranks (0: plain python) to the script of its blocks."""
    lines = {}
    for block in FENCE.finditer(text):
        ranks = RANKS.fullmatch(block[1])
        assert ranks or not block[1], f"unknown word after ```python: {block[1]!r}"
        script = lines.setdefault(int(ranks[1]) if ranks else 0, {})
        first = text.count("\n", 0, block.start(2))
        script |= {first + i: line for i, line in enumerate(block[2].splitlines())}
    return {
        ranks: "\n".join(script.get(i, "") for i in range(max(script) + 1)) + "\n"
        for ranks, script in lines.items()
    }


CASES = [(page, ranks) for page in PAGES for ranks in scripts(page.read_text("utf-8"))]
IDS = [f"{page.relative_to(ROOT)}-{ranks or 'plain'}" for page, ranks in CASES]


def launcher(ranks):
    """Return the command that starts `ranks` processes, and its environment."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if not ranks:
        return [], env
    here = str(Path(sys.executable).parent)
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([here, os.environ.get("PATH", "")]))
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    version = subprocess.run(
        [mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    if "HYDRA" in version:
        return [mpiexec, "-n", str(ranks)], env
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= {"OMPI_MCA_osc": "^ucx"}
    return [mpiexec, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)], env


@pytest.mark.parametrize(("page", "size"), CASES, ids=IDS)
def test_blocks_run(page, size, tmp_path):
    script = tmp_path / f"{page.name}.py"
    script.write_text(scripts(page.read_text("utf-8"))[size], encoding="utf-8")
    start, env = launcher(size)
    run = subprocess.run(
        [*start, sys.executable, "-W", "error", str(script)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= set(index.split())


def test_every_variable_that_is_read_is_in_the_guide():
    files = [path for room in ("hpcpar", "jobs") for path in (ROOT / room).rglob("*.py")]
    read = {name for path in files for name in VARIABLE.findall(path.read_text("utf-8"))}
    assert "HPCPAR_TIMEOUT" in read
    assert read <= set(VARIABLE.findall((ROOT / "docs" / "guide.md").read_text("utf-8")))


def test_script_keeps_line_numbers():
    text = "intro\n```python\na = 1\n```\nmore\n```python ranks=2\nb\n```\n```python\nc\n```\n"
    assert scripts(text) == {0: "\n\na = 1\n\n\n\n\n\n\nc\n", 2: "\n\n\n\n\n\nb\n"}


def test_unknown_word_is_refused():
    with pytest.raises(AssertionError, match="unknown word"):
        scripts("```python rank=2\n```\n")

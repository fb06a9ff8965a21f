"""Imports inside hpcpar flow one way: down the rooms, never sideways, never in a circle.

Every import statement counts, the ones inside functions too, except `if TYPE_CHECKING:` blocks.
"""

import ast
import graphlib
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "hpcpar"
ROOMS = [  # bottom first; rooms on one line may not import each other, but for the first line
    {"errors", "_arrays", "_core", "_version", "random"},
    {"comm"},
    {"mesh", "nn", "data", "optim", "debug", "metrics"},
    {"dtensor"},
    {"parallel", "checkpoint"},
    {"interop", "testing"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def modules(package):
    """Map module names, as tuples, to files."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[parts[:-1] if parts[-1] == "__init__" else parts] = path
    return found


def targets(node, here):
    """Return the full names that one import statement may bind."""
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    base = here[: len(here) - node.level + 1] if node.level else ()
    base += tuple(node.module.split(".")) if node.module else ()
    return [(*base, alias.name) for alias in node.names]


def imports(module, path, known):
    """Yield (imported module of the package, line)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    here = module if path.name == "__init__.py" else module[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in typing_only:
            for name in targets(node, here):
                target = name
                while target and target not in known and target[1:] != ("_core",):
                    target = target[:-1]
                if target and target != module:
                    yield target, node.lineno


def breach(module, target):
    """Say which rule the import breaks, or None."""
    room = module[1]
    if room not in LEVEL:
        return f"unknown room {room!r}: give it a place in ROOMS"
    if len(target) == 1:
        return "imports the package root; import the module itself"
    other = target[1]
    if other == room or {room, other} <= ROOMS[0] or LEVEL.get(other, 99) < LEVEL[room]:
        return None
    return f"{room} may not import {other}"


def breaches(package):
    """Return every forbidden import as 'file:line: rule'; raise CycleError for a circle."""
    known, graph, bad = modules(package), {}, []
    for module, path in known.items():
        if len(module) == 1:  # the face re-exports; it may import everything
            continue
        found = list(imports(module, path, known))
        graph[module] = {target for target, _ in found if len(target) > 1}
        rules = [(line, breach(module, target)) for target, line in found]
        bad += [f"{path}:{line}: {rule}" for line, rule in rules if rule]
    tuple(graphlib.TopologicalSorter(graph).static_order())
    return bad


def test_imports_flow_one_way():
    assert modules(PACKAGE)
    assert not breaches(PACKAGE), "\n".join(breaches(PACKAGE))


@pytest.fixture
def package(tmp_path):
    """Write a small package and return its folder."""

    def write(files):
        root = tmp_path / "hpcpar"
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("comm/a.py", "from ..nn import b", "comm may not import nn"),
        ("comm/a.py", "def f():\n    import hpcpar.nn.b", "comm may not import nn"),
        ("optim/a.py", "from hpcpar.nn.b import c", "optim may not import nn"),
        ("comm/a.py", "from .. import world", "imports the package root"),
        ("comm/a.py", "import hpcpar", "imports the package root"),
        ("errors.py", "from .comm import x", "errors may not import comm"),
        ("attic/a.py", "import hpcpar.errors", "unknown room 'attic'"),
    ],
)
def test_breach_is_seen(package, name, text, rule):
    base = dict.fromkeys(["__init__.py", "nn/b.py", "comm/x.py", "errors.py"], "")
    assert [rule in line for line in breaches(package(base | {name: text}))] == [True]


def test_what_is_allowed(package):
    files = dict.fromkeys(["__init__.py", "nn/b.py", "errors.py"], "")
    files["comm/a.py"] = (
        "import numpy\nfrom .. import _core\nfrom ..errors import E\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..nn import b\n"
    )
    files["random.py"] = "from . import _core, errors\n"
    assert breaches(package(files)) == []


def test_circle_is_seen(package):
    files = {
        "__init__.py": "",
        "nn/a.py": "from . import b",
        "nn/b.py": "def f(): from .a import c",
    }
    with pytest.raises(graphlib.CycleError):
        breaches(package(files | {"nn/__init__.py": ""}))

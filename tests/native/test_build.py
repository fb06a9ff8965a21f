"""The built core: what it links, what it says about itself, and its C tests."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcpar import _core

REPO = Path(__file__).parents[2]


def needed_libraries(path):
    """DT_NEEDED of a 64-bit little-endian ELF file, read from its dynamic section."""
    data = Path(path).read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01"
    table, entry_size, entries = (
        struct.unpack_from("<Q", data, 0x28)[0],
        *struct.unpack_from("<HH", data, 0x3A),
    )
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(entries)
    ]
    (dynamic,) = (s for s in sections if s[1] == 6)
    offset, size, link = dynamic[4], dynamic[5], dynamic[6]
    names = []
    for at in range(offset, offset + size, 16):
        tag, value = struct.unpack_from("<qQ", data, at)
        if tag == 1:
            start = sections[link][4] + value
            names.append(data[start : data.index(b"\0", start)].decode())
    return names


def test_links_the_c_library_only():
    names = needed_libraries(_core.__file__)
    assert "libc.so.6" in names
    allowed = ("libc.", "libm.", "libpthread.", "ld-linux")
    assert [name for name in names if not name.startswith(allowed)] == []


def test_is_built_for_the_stable_abi():
    assert Path(_core.__file__).name == "_core.abi3.so"


def test_describes_itself():
    assert _core.cpu_features() in ("baseline", "avx2", "avx512")
    info = _core.build_info()
    assert set(info) == {"compiler", "flags", "version"}
    assert "-ffp-contract=off" in info["flags"]


def test_tells_what_the_node_engine_takes():
    sizes = _core.node_sizes()
    limits, parts = {"ranks", "groups", "lanes"}, {"head", "control", "slots", "length"}
    assert set(sizes) == {*limits, *parts, "record", "areas", "ring", "transfer", "kind"}
    assert all(sizes[name] % 4096 == 0 for name in ("head", "slots", "record", "areas", "ring"))
    assert sizes["record"] >= 4096 + 8 * sizes["groups"]
    assert sizes["record"] + 1024 * 128 < sizes["head"] < sizes["areas"] < sizes["length"]
    assert sizes["length"] > sizes["head"] + sizes["control"] + sizes["lanes"] * sizes["slots"]


@pytest.mark.parametrize("name", ["reduce", "PackPlan", "Recorder", "Ring", "philox_fill"])
def test_is_documented(name):
    assert getattr(_core, name).__doc__


@pytest.mark.parametrize("kind", [_core.PackPlan, _core.Recorder, _core.Ring])
def test_types_are_closed(kind):
    with pytest.raises(TypeError):
        kind.extra = 1
    with pytest.raises(TypeError):
        type("Derived", (kind,), {})


def test_nothing_leaks():
    """References to arrays and dtypes are given back, also when a call fails."""
    x, dtype = np.ones(4, np.float32), np.dtype([("field", "f4")])
    plan = _core.PackPlan([((4,), np.float32)])
    flat, small = np.empty(16, np.uint8), np.empty(3, np.uint8)
    before = sys.getrefcount(x), sys.getrefcount(dtype)
    for _ in range(50):
        _core.PackPlan([((2,), dtype)])
        with pytest.raises(TypeError):
            _core.PackPlan([((2,), dtype), ((2,), ">f4")])
        _core.reduce(x, [x, x], "max")
        with pytest.raises(ValueError, match="unknown"):
            _core.reduce(x, [x], "nothing")
        plan.pack([x], flat)
        with pytest.raises(ValueError, match="flat"):
            plan.pack([x], small)
    assert (sys.getrefcount(x), sys.getrefcount(dtype)) == before


def tool(name):
    """A program of this environment, else of the machine."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def run(*command):
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # `make test` builds and runs them by itself
@pytest.mark.threads_only
def test_c_tests():
    cmake, ctest = tool("cmake"), tool("ctest")
    if not (cmake and ctest and tool("cc") and (REPO / "native").is_dir()):
        pytest.skip("needs cmake, a C compiler and the sources")
    build = REPO / "build" / "native-tests"
    options = ["-DHP_BUILD_PYTHON=OFF", "-DHP_BUILD_TESTS=ON", "-DHP_WERROR=ON"]
    if not (build / "CMakeCache.txt").exists():
        ninja = tool("ninja")
        generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
        run(cmake, "-S", "native", "-B", str(build), *generator, *options)
    run(cmake, "--build", str(build), "--parallel", str(min(2, os.cpu_count() or 1)))
    run(ctest, "--test-dir", str(build), "--output-on-failure", "--no-tests=error")

"""Native kernels touch no memory but their own: between guard pages, and under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import jax
import pytest

from emulator.native.library import native_library
from tests.processes import finished

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "emulator" / "native" / "src"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native_library() is None, reason="there are no native kernels here"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]


def _built(folder: Path, *arguments: str | Path) -> Path:
    made = folder / "made.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-g", "-O1", "-o", made, *arguments], check=True, timeout=400
    )
    return made


def _drawn(*arguments: str | Path, **environ: str) -> int:
    """How many calls a watched process has computed."""
    command = [sys.executable, "-m", "tests.emulator.native.drawing", *map(str, arguments)]
    done = finished(command, seconds=3000, cwd=ROOT, env={**os.environ, **environ})
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("guarded.c")
    return _built(tmp_path_factory.mktemp("guarded"), "-x", "c", source, "-x", "none", "-ldl")


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kind", "count", "least"),
    [("convolutions", 300, 500), ("products", 300, 50), ("layers", 50, 30)],
)
def test_between_guard_pages(guarded: Path, kind: str, count: int, least: int) -> None:
    assert _drawn(kind, str(count), LD_PRELOAD=str(guarded)) > least


@pytest.mark.parametrize(
    ("access", "signals"),
    [("block[64] = 1", {-6}), ("block[2000]", {-11}), ("block[2000] = 1", {-11}), ("0", {0})],
)
def test_a_foreign_access_ends_the_process(guarded: Path, access: str, signals: set[int]) -> None:
    """A byte that is written behind a block, and one that is read or written beyond the page."""
    code = f"""
import ctypes
libc, at = ctypes.CDLL(None), ctypes.c_void_p()
assert libc.posix_memalign(ctypes.byref(at), 128, 64) == 0
block = ctypes.cast(at, ctypes.POINTER(ctypes.c_char * 100000)).contents
{access}
libc.free(at)
assert libc.guarded_blocks() > 0
"""
    environ = {**os.environ, "LD_PRELOAD": str(guarded)}
    done = finished([sys.executable, "-c", code], env=environ)
    assert done.returncode in signals, done.stderr


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(sysconfig.get_path("data"))
    return _built(
        tmp_path_factory.mktemp("sanitized"),
        *("-std=c++17", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
        *("-isystem", jax.ffi.include_dir(), "-isystem", root / "include"),
        *sorted(SOURCES.glob("*.cc")),
        root / "lib" / "libdnnl.so.3",
    )


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kind", "count", "least"),
    [("convolutions", 100, 150), ("products", 100, 15), ("layers", 16, 8)],
)
def test_under_sanitizers(sanitized: Path, kind: str, count: int, least: int) -> None:
    """Of the handlers; the code that oneDNN generates is looked at between guard pages."""
    libraries = [
        finished(["g++", f"-print-file-name={name}.so"]).stdout.strip()
        for name in ("libasan", "libubsan")
    ]
    environ = {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}
    assert _drawn(kind, str(count), sanitized, **environ) > least

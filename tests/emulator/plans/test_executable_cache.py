"""Executables that outlive the process: when they are read, and that they do the same."""

from __future__ import annotations

import functools
import logging
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

import samba
from emulator.device import Device
from emulator.dtypes import TO_NUMPY
from emulator.kept_files import CACHE_VARIABLE, KeptFiles
from emulator.native.library import native_library
from emulator.ops.registry import load_ops
from emulator.plans import executable_cache, xla_options
from emulator.plans.executable_cache import _Client, compiled_or_kept
from emulator.plans.steps import all_steps
from pef_schema.program import Program, Role
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy
from samba.tracer.traced import Traced
from tests.tracing import trace


class Net(nn.Module):
    """One layer with dropout, whose random bits the executable makes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.dropout = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.fc(x)).square().mean()


class Counts:
    """What happened to executables since the fixture began."""

    def __init__(self) -> None:
        self.compiled = self.read = 0


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept" / "executables"


class Spy:
    """XLA's client, and a note of what it is asked to do."""

    def __init__(self, client: Any, counts: Counts) -> None:
        self._client, self._counts = client, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def compile_and_load(self, *args: Any, **named: Any) -> Any:
        self._counts.compiled += 1
        return self._client.compile_and_load(*args, **named)

    def deserialize_executable(self, *args: Any) -> Any:
        made = self._client.deserialize_executable(*args)
        self._counts.read += 1
        return made


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    found = Counts()

    def client(real: Any, *rest: Any, **how: Any) -> _Client:
        return _Client(Spy(real, found), *rest, **how)

    monkeypatch.setattr(executable_cache, "_Client", client)
    return found


@functools.cache
def compiled() -> tuple[Traced, Program]:
    """The net with dropout and momentum."""
    torch.manual_seed(0)
    model = Net()
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = trace(model, (torch.ones(4, 8),))
    return found, build_program(found, [optimizer], CompileOptions(name="net"))


def trained(steps: int = 3) -> list[np.ndarray]:
    """What device memory holds after some steps, on a new device."""
    found, program = compiled()
    device = Device(program)
    for source in found.sources:
        region = device.program.graphs[0].values[source.value].region
        form = device.program.regions[region]
        if source.tensor is not None:
            device.write(region, view_as_numpy(source.tensor.detach().clone()))
        elif form.role is Role.INPUT:
            device.write(region, np.ones(form.shape, TO_NUMPY[form.dtype]))
    for _ in range(steps):
        device.run(device.plan(all_steps(device.program)))
    held = (np.array(b) for b in device.pool.buffers if b is not None)
    return [a for a in held if a.dtype == np.float32]


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


def test_an_executable_that_was_kept_gives_the_same_bits(kept: Path, counts: Counts) -> None:
    first = trained()
    assert (counts.compiled, counts.read) == (1, 0)
    again = trained()
    assert (counts.compiled, counts.read) == (1, 1)
    assert same(first, again)
    assert not same(first, trained(steps=4))


@pytest.mark.parametrize("data", [b"", b"no executable", zlib.compress(b"no executable")])
def test_what_cannot_be_loaded_is_made_anew(data: bytes, kept: Path, counts: Counts) -> None:
    first = trained()
    (path,) = kept.iterdir()
    KeptFiles(kept, limit=1 << 30).put(path.stem, data)
    assert same(first, trained())
    assert (counts.compiled, counts.read) == (2, 0)
    assert same(first, trained())
    assert (counts.compiled, counts.read) == (2, 1)


@pytest.mark.parametrize(
    "change",
    [
        (executable_cache, "_processor", lambda: "another processor"),
        (executable_cache, "_machine", lambda: b"another version"),
        (xla_options, "_CPU", {"xla_cpu_enable_fast_math": False}),
    ],
    ids=["processor", "versions", "options"],
)
def test_what_an_executable_depends_on_is_part_of_its_name(
    change: tuple[Any, str, Any], kept: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained()
    monkeypatch.setattr(*change)
    trained()
    assert (counts.compiled, counts.read, len(list(kept.iterdir()))) == (2, 0, 2)


def test_the_variable_turns_it_off(
    tmp_path: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, "0")
    trained()
    assert list(tmp_path.iterdir()) == []


def test_it_is_in_the_users_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = executable_cache._files()
    assert files is not None
    assert files.folder == tmp_path / "sambaflow-emulator" / "executables"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    files = executable_cache._files()
    assert files is not None
    assert files.folder.is_relative_to(tmp_path)


def test_a_cache_of_jaxs_that_the_user_has_set_up_takes_its_place(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = jax.config
    before = config.jax_compilation_cache_dir
    config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    try:
        assert executable_cache._files() is None
    finally:
        config.update("jax_compilation_cache_dir", before)
    assert executable_cache._files() is not None


def convolved() -> None:
    """Compile and run a convolution that is large enough for a native kernel, as plans are."""
    x, w = np.ones((4, 8, 16, 16), np.float32), np.ones((8, 8, 3, 3), np.float32)
    lower = load_ops()["aten.conv2d.default"].lower
    run: Any = jax.jit(lambda x, w: lower(x, w, None, 1, 1))
    compiled = compiled_or_kept(run.lower(x, w), {}).compiled
    assert float(compiled(x, w)[0, 0, 5, 5]) == 72


@pytest.mark.skipif(native_library() is None, reason="there are no native kernels here")
def test_what_calls_native_kernels_is_kept(
    kept: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolved()
    assert (counts.compiled, counts.read) == (1, 0)
    convolved()
    assert (counts.compiled, counts.read) == (1, 1)
    other = replace(native_library(), version="another one")
    monkeypatch.setattr(executable_cache, "native_library", lambda: other)
    convolved()
    assert (counts.compiled, counts.read) == (2, 1), "what another version made is not read"
    assert len(list(kept.iterdir())) == 2


def test_jaxs_settings_and_programs_stay_as_they_are(kept: Path) -> None:
    config: Any = jax.config
    before = dict(config.values)
    trained()
    count = len(list(kept.iterdir()))
    jax.jit(lambda x: x * 3)(np.ones(3, np.float32))
    assert dict(config.values) == before
    assert len(list(kept.iterdir())) == count == 1


def test_a_folder_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counts
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "kept"))
    trained()
    assert counts.compiled == 1


def only_file(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_what_was_put_is_found_again_by_another_process(tmp_path: Path) -> None:
    KeptFiles(tmp_path / "kept", limit=1000).put("a", b"data")
    assert KeptFiles(tmp_path / "kept", limit=1000).get("a") == b"data"


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    KeptFiles(folder, limit=1000).put("a", b"data")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert only_file(folder).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_is_not_read(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = KeptFiles(tmp_path / "kept", limit=1000)
    files.put("a", b"data")
    (files.folder if what == "folder" else only_file(files.folder)).chmod(0o777)
    assert files.get("a") is None
    assert files.get("a") is None
    assert len(caplog.records) == 1
    assert "others may write it" in caplog.text


def test_what_another_user_owns_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = KeptFiles(tmp_path / "kept", limit=1000)
    files.put("a", b"data")
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert files.get("a") is None


@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_damaged_file_is_none_and_goes(place: int, tmp_path: Path) -> None:
    files = KeptFiles(tmp_path / "kept", limit=1000)
    files.put("a", b"data")
    path = only_file(files.folder)
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)
    assert files.get("a") is None
    assert not path.exists()


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    files = KeptFiles(tmp_path / "kept", limit=700)
    for age, name in ((300, "a"), (200, "b"), (100, "c")):
        files.put(name, bytes(100))
        path = files.folder / f"{name}.kept"
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    assert files.get("a") is not None  # used now
    files.put("d", bytes(100))
    files.put("e", bytes(100))
    assert [name for name in "abcde" if files.get(name) is not None] == ["a", "c", "d", "e"]
    assert sum(path.stat().st_size for path in files.folder.iterdir()) <= 700


def test_more_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    files = KeptFiles(tmp_path / "kept", limit=200)
    files.put("a", bytes(200))
    assert files.get("a") is None


def test_files_that_nobody_finished_go(tmp_path: Path) -> None:
    files = KeptFiles(tmp_path, limit=1000)
    tmp_path.chmod(0o700)
    old, young = tmp_path / "old.new", tmp_path / "young.new"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    files.put("a", b"data")
    assert (old.exists(), young.exists()) == (False, True)


def test_a_folder_that_cannot_be_made_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is to be kept there."""
    (tmp_path / "file").touch()
    for kind in ("executables", "plans", "traces"):
        files = KeptFiles(tmp_path / "file" / "kept" / kind, limit=1000)
        for _ in range(3):
            files.put("a", b"data")
            assert files.get("a") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    files = KeptFiles(tmp_path / "kept", limit=1000)
    files.put("a", b"data")
    assert list(files.folder.iterdir()) == []
    assert "No space left" in caplog.text


def test_many_may_put_and_get_at_once(tmp_path: Path) -> None:
    many = [KeptFiles(tmp_path / "kept", limit=3000) for _ in range(4)]

    def use(files: KeptFiles) -> None:
        for turn in range(50):
            name = f"n{turn % 5}"
            files.put(name, name.encode() * 500)
            assert files.get(name) in (None, name.encode() * 500)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, many))
    assert all(path.suffix == ".kept" for path in many[0].folder.iterdir())

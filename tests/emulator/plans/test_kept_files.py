"""A bounded folder of files that several processes use."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator.plans.executable_cache import KeptFiles


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
        path = files.folder / f"{name}.exe"
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
    (tmp_path / "file").touch()
    files = KeptFiles(tmp_path / "file" / "kept", limit=1000)
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
    assert all(path.suffix == ".exe" for path in many[0].folder.iterdir())

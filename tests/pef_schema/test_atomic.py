"""A file being written is afterwards the old one or the new one, whatever happens."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pef_schema import PefUnwritable, atomic, encode, read_pef, write_pef
from tests.pef_schema.faults import ERRNOS, disturbed
from tests.pef_schema.samples import renamed, small, training
from tests.processes import finished, joined

_ROOT = Path(__file__).parents[2]


def _temporaries(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*.tmp"))


def _calls(folder: Path) -> list[str]:
    """Return the system calls of an undisturbed write."""
    with disturbed() as counter:
        write_pef(folder / "net.pef", training())
    return counter.calls


def test_system_calls(tmp_path: Path) -> None:
    """The order that makes it safe: file to the disk, then rename, then folder to the disk."""
    calls = _calls(tmp_path)
    assert calls == [
        "scandir",
        "open",
        "fstat",
        *["write"] * 5,
        "fsync",
        "replace",
        "close",
        "open",
        "fsync",
        "close",
    ]


@pytest.mark.parametrize("code", ERRNOS, ids=errno.errorcode.get)
def test_fault_at_every_call(code: int, tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    calls = _calls(tmp_path)
    renamed_at = calls.index("replace")
    for at, name in enumerate(calls):
        write_pef(path, small())
        if at in _harmless(calls, code):
            with disturbed(at, code):
                write_pef(path, training())
            wanted = training()
        else:
            with disturbed(at, code), pytest.raises(PefUnwritable) as caught:
                write_pef(path, training())
            assert str(caught.value).startswith(str(path))
            wanted = training() if at > renamed_at else small()
            assert ("the new file is in place" in str(caught.value)) == (at > renamed_at)
        assert read_pef(path) == wanted, f"call {at}: {name}"
        assert _temporaries(tmp_path) == [], f"call {at}: {name}"


def _harmless(calls: list[str], code: int) -> set[int]:
    """Return the calls whose failure loses nothing.

    Looking for leftovers, closing what is on the disk already, and flushing a folder that may not
    be opened.
    """
    flush = range(calls.index("replace") + 2, len(calls))
    return {
        calls.index("scandir"),
        calls.index("close"),
        *(flush if code == errno.EACCES else ()),
    }


def test_short_writes(tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    for at in range(3, 6):
        with disturbed(at, "short"):
            write_pef(path, training())
        assert path.read_bytes() == encode(training())


def test_killed_at_every_call(tmp_path: Path) -> None:
    done = finished(
        [sys.executable, "-m", "tests.pef_schema.kill_driver", str(tmp_path)],
        cwd=_ROOT,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    deaths = [line for line in lines if "end" not in line]
    assert len(deaths) >= 50
    for start, fault, at, state, left in deaths:
        assert state in (start, "new"), (start, fault, at, state)
        # The one that died may have left its temporary; those of earlier deaths are gone.
        assert int(left) <= 1, (start, fault, at)
    assert {state for _, _, _, state, _ in deaths} == {"absent", "old", "new"}
    ends = [line for line in lines if "end" in line]
    assert [line[3:] for line in ends] == [["new", "end", "0"]] * 4


def test_leftovers_are_removed_and_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    dead = tmp_path / ".net.pef.1.0badcafe.tmp"
    dead.write_bytes(b"half a file")
    foreign = [tmp_path / ".other.pef.1.0badcafe.tmp", tmp_path / ".net.pef.swp"]
    for other in foreign:
        other.write_bytes(b"")
    alive = tmp_path / ".net.pef.2.0badcafe.tmp"
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_pef(path, small())
    assert not dead.exists()
    assert alive.exists()
    assert all(other.exists() for other in foreign)


@pytest.mark.parametrize("how", ["removed", "locked"])
def test_temporary_taken_for_a_leftover(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between creating and locking, another writer may take the temporary: make a new one."""
    real = atomic._lock
    taken: list[Path] = []

    def lock(descriptor: int) -> bool:
        if taken:
            return real(descriptor)
        taken.extend(_temporaries(tmp_path))
        if how == "removed":
            taken[0].unlink()
            return real(descriptor)
        with taken[0].open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return real(descriptor)

    monkeypatch.setattr(atomic, "_lock", lock)
    write_pef(tmp_path / "net.pef", small())
    assert len(taken) == 1
    assert read_pef(tmp_path / "net.pef") == small()
    assert _temporaries(tmp_path) == []


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    unknown = tmp_path / ".net.pef.1.0badcafe.tmp"
    unknown.write_bytes(b"")
    write_pef(tmp_path / "net.pef", small())
    assert read_pef(tmp_path / "net.pef") == small()
    assert unknown.exists()


def test_many_writers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                write_pef(path, small() if number % 2 else renamed(small()))
                assert read_pef(path) in (small(), renamed(small()))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    joined(*threads)
    assert failed == []
    assert _temporaries(tmp_path) == []


def test_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "no" / "net.pef"
    with pytest.raises(PefUnwritable, match=r"there is no folder .*no\. Create the folder first"):
        write_pef(path, small())


def test_folder_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(PefUnwritable, match="a folder of this name is in the way"):
        write_pef(tmp_path, small())
    assert _temporaries(tmp_path.parent) == []


def test_a_device_or_a_pipe_stays_one(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        atomic.write_atomically(str(path), [b"a", b"b"])
        assert os.read(reader, 9) == b"ab"
        with pytest.raises(PefUnwritable, match=r"it is a device or a pipe\. Name a file"):
            write_pef(path, small())
    finally:
        os.close(reader)
    assert path.is_fifo() and list(tmp_path.iterdir()) == [path]
    places = ("/dev/null", "/dev/stdout", "/dev", str(tmp_path / "none"))
    assert [atomic.is_special(place) for place in places] == [True, True, False, False]


def test_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PefUnwritable, match="writing failed: Not a directory"):
        write_pef(tmp_path / "file" / "net.pef", small())


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.EACCES, "cannot write to the folder .*: Permission denied. Choose another output"),
        (errno.EROFS, "cannot write to the folder .*: Read-only file system. Choose another"),
        (errno.ENOSPC, "No space left on device in the folder .*. Free some space"),
    ],
)
def test_refusing_folder(code: int, text: str, tmp_path: Path) -> None:
    with disturbed(1, code), pytest.raises(PefUnwritable, match=text) as caught:
        write_pef(tmp_path / "net.pef", small())
    cause: Any = caught.value.__context__
    assert cause.errno == code


def test_symbolic_link_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"do not touch")
    link = tmp_path / "net.pef"
    link.symlink_to(target)
    write_pef(link, small())
    assert target.read_bytes() == b"do not touch"
    assert not link.is_symlink()
    assert read_pef(link) == small()


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_pef(tmp_path / "net.pef", small())
    finally:
        os.umask(mask)
    assert (tmp_path / "net.pef").stat().st_mode & 0o777 == 0o640


def test_long_name(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250 + ".pef")
    write_pef(path, small())
    assert read_pef(path) == small()


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pef("net.pef", small())
    assert read_pef("net.pef") == small()

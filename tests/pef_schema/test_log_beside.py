"""The log beside a PEF is of the same program, whatever happens while the two are written."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import sys
from pathlib import Path

import pytest

from pef_schema import PefInfo, PefUnwritable, read_info, read_pef, write_pef
from pef_schema.atomic import write_atomically
from tests.pef_schema.faults import ERRNOS, disturbed
from tests.pef_schema.samples import small, training
from tests.processes import finished

_ROOT = Path(__file__).parents[2]


def _log(info: PefInfo) -> str:
    return f"pef: {info.digest}\n"


def _write(path: Path, which: str) -> None:
    write_pef(path, small() if which == "old" else training(), log=_log)


def _begin(path: Path, start: str) -> None:
    """Let nothing be there, or an old PEF with its log."""
    for left in (path, Path(f"{path}.log")):
        left.unlink(missing_ok=True)
    if start == "old":
        _write(path, "old")


def _state(path: Path) -> tuple[str, bool]:
    """Say which program the PEF holds and whether it has a log, which must be its own."""
    if not path.exists():
        assert not Path(f"{path}.log").exists()
        return "absent", False
    found = read_pef(path)
    log = Path(f"{path}.log")
    if log.exists():
        assert log.read_text() == f"pef: {read_info(path).digest}\n"
    return ("old" if found == small() else "new"), log.exists()


def _calls(folder: Path) -> list[str]:
    """Return the system calls of writing both again."""
    _write(folder / "first.pef", "old")
    with disturbed() as counter:
        _write(folder / "first.pef", "new")
    return counter.calls


def test_both_are_on_the_disk_before_either_is_renamed(tmp_path: Path) -> None:
    calls = _calls(tmp_path)
    kept = [name for name in calls if name in ("fsync", "replace", "unlink")]
    # The old log leaves, the PEF comes, the new log comes, the old one goes; then the folder.
    assert kept == ["fsync", "fsync", "replace", "replace", "replace", "unlink", "fsync"]


@pytest.mark.parametrize(
    ("code", "start"), [*((code, "old") for code in ERRNOS), (errno.EIO, "absent")]
)
def test_fault_at_every_call(code: int, start: str, tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    # What comes before, each file by itself, test_atomic.py goes through.
    calls = _calls(tmp_path)
    for at, name in list(enumerate(calls))[calls.index("fsync") :]:
        _begin(path, start)
        failed = ""
        with disturbed(at, code):
            try:
                _write(path, "new")
            except PefUnwritable as error:
                failed = str(error)
        state, logged = _state(path)
        wanted = start if failed and "the new file is in place" not in failed else "new"
        assert state == wanted, f"call {at}: {name}"
        # Only where the log itself could not be renamed there is none.
        assert logged == (state != "absent" and "is not:" not in failed), f"call {at}: {name}"
        # A temporary that could not be removed is gone after the next writing.
        _write(path, "new")
        assert not list(tmp_path.glob(".*.tmp")), f"call {at}: {name}"


def test_a_folder_that_cannot_be_flushed(tmp_path: Path) -> None:
    """The new PEF is in place, and so is its log."""
    path = tmp_path / "net.pef"
    calls = _calls(tmp_path)
    _write(path, "old")
    at = len(calls) - 1 - calls[::-1].index("fsync")
    said = "the new file is in place, but may not outlast"
    with disturbed(at, errno.EIO), pytest.raises(PefUnwritable, match=said):
        _write(path, "new")
    assert _state(path) == ("new", True)


_KILLED = """
import sys
from functools import partial
from pathlib import Path
from tests.pef_schema.faults import deaths, disturbed
from tests.pef_schema.test_log_beside import _begin, _state, _write

path = Path(sys.argv[1]) / "net.pef"
with disturbed() as counter:
    _write(path, "old")
# What comes before, each file by itself, test_atomic.py goes through.
first = counter.calls.index("fsync")
write = partial(_write, path, "new")
for start in ("absent", "old"):
    for at, died in deaths(partial(_begin, path, start), write, "kill", first):
        state, logged = _state(path)
        _write(path, "new")
        assert _state(path) == ("new", True)
        left = len(list(path.parent.glob(".*.tmp")))
        print(start, at, state, int(logged), left, "died" if died else "end")
"""


def test_killed_at_every_call(tmp_path: Path) -> None:
    done = finished(
        [sys.executable, "-c", _KILLED, str(tmp_path)],
        cwd=_ROOT,
        seconds=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    deaths = [line for line in lines if line[5] == "died"]
    assert len(deaths) > 20
    # Between the renames: the old PEF without its log, then the new one without.
    seen = {(start, state, logged) for start, _, state, logged, _, _ in deaths}
    assert seen == {
        ("absent", "absent", "0"),
        ("absent", "new", "0"),
        ("absent", "new", "1"),
        ("old", "old", "1"),
        ("old", "old", "0"),
        ("old", "new", "0"),
        ("old", "new", "1"),
    }
    assert {line[4] for line in lines} == {"0"}


@pytest.mark.parametrize("at", range(4))
def test_interrupted_between_renames(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that a signal raises, right after each of the renames."""
    path = tmp_path / "net.pef"
    _write(path, "old")
    real, seen = os.replace, [0]

    def replace(source: str, target: str) -> None:
        real(source, target)
        seen[0] += 1
        if seen[0] == at:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "replace", replace)
    if at:
        with pytest.raises(KeyboardInterrupt):
            _write(path, "new")
    else:
        _write(path, "new")
    monkeypatch.setattr(os, "replace", real)
    assert (
        _state(path)
        == {
            0: ("new", True),
            1: ("old", True),
            2: ("new", False),
            3: ("new", True),
        }[at]
    )
    assert not list(tmp_path.glob(".*.tmp"))


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_a_rewritten_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    mask = os.umask(0o022)
    try:
        _write(path, "old")
        assert (_mode(path), _mode(Path(f"{path}.log"))) == (0o644, 0o644)
        path.chmod(mode)
        Path(f"{path}.log").chmod(0o604)
        _write(path, "new")
        assert (_mode(path), _mode(Path(f"{path}.log"))) == (mode, 0o604)
        write_atomically(str(path), [b"anything"])
        assert _mode(path) == mode
    finally:
        os.umask(mask)


def test_the_mode_is_there_before_the_content(tmp_path: Path) -> None:
    """Nobody else may read, not even while a private file is written."""
    path = tmp_path / "net.pef"
    path.write_bytes(b"")
    path.chmod(0o600)
    seen: list[int] = []

    def content():
        seen.extend(_mode(found) for found in tmp_path.glob(".*.tmp"))
        yield b"secret"

    write_atomically(str(path), content())
    assert seen == [0o600]


def test_a_link_does_not_lend_its_mode(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "net.pef"
    target.write_bytes(b"")
    target.chmod(0o600)
    path.symlink_to(target)
    mask = os.umask(0o022)
    try:
        write_atomically(str(path), [b"new"])
    finally:
        os.umask(mask)
    assert _mode(path) == 0o644 and _mode(target) == 0o600


def test_the_log_names_the_digest_of_its_pef(tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    info = write_pef(path, training(), log=_log)
    assert re.fullmatch(r"pef: [0-9a-f]{64}\n", Path(f"{path}.log").read_text())
    assert read_info(path).digest == info.digest

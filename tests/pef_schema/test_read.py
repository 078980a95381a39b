"""What may lie at a path instead of a good file, and what may happen while it is read."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from pef_schema import (
    WRITER_VERSION,
    PefDamaged,
    PefForHardware,
    PefMissing,
    PefNotRegular,
    PefTooNew,
    PefTruncated,
    PefUnreadable,
    PefUnwritable,
    encode,
    read,
    read_info,
    read_pef,
    write_pef,
)
from tests.pef_schema.forge import metadata_of, seal
from tests.pef_schema.samples import inference, renamed, training

LATER = WRITER_VERSION + 1


@pytest.mark.parametrize("reader", [read_pef, read_info])
def test_missing(reader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PefMissing) as caught:
        reader("out/net.pef")
    assert str(caught.value) == (
        f"out/net.pef: there is no file {tmp_path}/out/net.pef (working folder {tmp_path}). "
        "Check the path, or compile the model first."
    )
    assert caught.value.path == "out/net.pef"


@pytest.mark.parametrize("path", ["net.pef", "/net.pef"])
def test_a_working_folder_that_is_gone(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever asks for its name fails, also where the path does not depend on it."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for reader in (read_pef, read_info):
        with pytest.raises(PefMissing, match="the working folder has been removed"):
            reader(path)
    with pytest.raises(PefUnwritable, match=r"has been removed\. Change to another folder"):
        write_pef("net.pef", inference())


def test_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PefMissing):
        read_pef(tmp_path / "file" / "net.pef")


def test_no_path_at_all() -> None:
    with pytest.raises(PefMissing, match="is not a path: embedded null byte"):
        read_pef("net\0.pef")
    with pytest.raises(PefUnwritable, match="is not a path: embedded null byte"):
        write_pef("net\0.pef", inference())


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(PefNotRegular, match=r"this is a folder, not a file\. Give the path"):
        read_pef(tmp_path)


def test_pipe(tmp_path: Path) -> None:
    """Opening a pipe must not wait for somebody to write to it."""
    os.mkfifo(tmp_path / "net.pef")
    with pytest.raises(PefNotRegular, match="a pipe or a device"):
        read_pef(tmp_path / "net.pef")


def test_device() -> None:
    with pytest.raises(PefNotRegular, match="a pipe or a device"):
        read_pef("/dev/zero")


def test_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("net.pef")
        with pytest.raises(PefNotRegular, match="a socket or a device"):
            read_pef("net.pef")


def test_symbolic_links(tmp_path: Path) -> None:
    write_pef(tmp_path / "net.pef", inference())
    (tmp_path / "good").symlink_to("net.pef")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").symlink_to(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    assert read_pef(tmp_path / "good") == inference()
    for name, error in (
        ("dangling", PefMissing),
        ("folder", PefNotRegular),
        ("circle", PefUnreadable),
    ):
        with pytest.raises(error):
            read_pef(tmp_path / name)


@pytest.mark.parametrize("call", ["open", "pread"])
def test_system_error(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pef(tmp_path / "net.pef", inference())

    def refuse(*_: Any) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(read.os, call, refuse)
    with pytest.raises(PefUnreadable, match=r"cannot .*Permission denied\. Check the file's perm"):
        read_pef(tmp_path / "net.pef")


def test_replaced_while_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that renames does not disturb a reader: it goes on with the old file."""
    path = tmp_path / "net.pef"
    write_pef(path, training())
    real = os.pread

    def pread(descriptor: int, count: int, start: int) -> bytes:
        write_pef(path, renamed(training()))
        return real(descriptor, count, start)

    monkeypatch.setattr(read.os, "pread", pread)
    assert read_pef(path) == training()


def test_shrinks_while_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.pef"
    write_pef(path, training())
    size = path.stat().st_size
    real = os.pread

    def pread(descriptor: int, count: int, start: int) -> bytes:
        os.truncate(path, size - 100)
        return real(descriptor, count, start)

    monkeypatch.setattr(read.os, "pread", pread)
    with pytest.raises(PefTruncated, match="segment 1 needs 300 bytes, 200 are left") as caught:
        read_pef(path)
    assert (caught.value.offset, caught.value.need, caught.value.have) == (size - 100, 300, 200)


def test_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may return fewer bytes than asked for."""
    path = tmp_path / "net.pef"
    write_pef(path, training())
    real = os.pread
    monkeypatch.setattr(read.os, "pread", lambda fd, count, at: real(fd, min(count, 999), at))
    assert read_pef(path) == training()


def test_no_descriptor_is_lost(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.pef", tmp_path / "bad.pef"
    write_pef(good, training())
    bad.write_bytes(good.read_bytes()[:-1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        read_pef(good)
        with pytest.raises(PefTruncated):
            read_pef(bad)
    assert len(os.listdir("/proc/self/fd")) == before


def test_info_looks_at_the_head_alone(tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    write_pef(path, training())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    info = read_info(path)
    assert (info.path, info.size, info.data_length) == (str(path), len(data), 4396)
    with pytest.raises(PefDamaged, match="segment 1"):
        read_pef(path)


def test_info_tells_versions(tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    path.write_bytes(seal(metadata_of(encode(inference())), writer=LATER))
    assert (read_info(path).min_reader, read_info(path).writer) == (1, LATER)
    path.write_bytes(seal(metadata_of(encode(inference())), min_reader=LATER, writer=LATER))
    with pytest.raises(PefTooNew, match="Update this package") as caught:
        read_info(path)
    assert (caught.value.need, caught.value.have) == (LATER, WRITER_VERSION)


def test_hardware_file_of_any_head(tmp_path: Path) -> None:
    path = tmp_path / "rdu.pef"
    path.write_bytes(os.urandom(0x70).replace(b"\x89", b"?") + b"\x7fPEF" + bytes(100))
    wanted = (
        "this PEF is made for SambaNova hardware, the emulator has a format of its own. Compile"
    )
    with pytest.raises(PefForHardware, match=re.escape(wanted)):
        read_pef(path)

"""How commands end: errors in one form, outputs that cannot be written, readers that go away."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pef_schema import PefDamaged, PefUnwritable, SambaError, write_pef
from samba.inspection.running import (
    OutputOverInput,
    UnknownGraph,
    WrongUsage,
    chosen_graph,
    run_command,
    write_output,
)
from tests.pef_schema.samples import training
from tests.processes import finished
from tests.samba.inspection.programs import two_graphs

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "samba", "inspect"]
OF_THE_DEVICE = [sys.executable, "-m", "emulator", "inspect"]


def fail(error: BaseException) -> Callable[[], int]:
    """A command that ends in an error."""

    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    "error, code",
    [
        (SambaError("no"), 1),
        (PefUnwritable("no"), 1),
        (WrongUsage("no"), 2),
        (PefDamaged("no"), 3),
    ],
)
def test_codes_of_errors(error: SambaError, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(fail(error)) == code
    assert capsys.readouterr().err == f"error: {error}\n"
    assert run_command(fail(error), failed=7) == (7 if code == 1 else code)
    capsys.readouterr()


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(fail(ZeroDivisionError()))
    assert run_command(fail(KeyboardInterrupt())) == 130


def test_an_unknown_graph_names_those_there_are() -> None:
    program = two_graphs()
    assert chosen_graph(program, None, pef="x.pef") is None
    assert chosen_graph(program, "second", pef="x.pef") == 1
    with pytest.raises(UnknownGraph) as caught:
        chosen_graph(program, "secnd", pef="x.pef")
    assert str(caught.value) == ("x.pef: it has no graph secnd. Its graphs are second, tiny.")
    assert caught.value.present == ("tiny", "second")


def test_an_output_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    pef, out = tmp_path / "net.pef", tmp_path / "out.txt"
    write_pef(pef, training())
    before = pef.read_bytes()
    write_output(str(out), b"text", inputs={"the PEF": str(pef)}, what="page", then="read it")
    assert out.read_bytes() == b"text"
    (tmp_path / "link.pef").symlink_to(pef)
    for path in (str(pef), str(tmp_path / "link.pef")):
        with pytest.raises(OutputOverInput, match="the output would replace the PEF"):
            write_output(path, b"text", inputs={"the PEF": str(pef)}, what="page", then="read it")
    for path in (tmp_path, tmp_path / "none" / "out.txt"):
        with pytest.raises(PefUnwritable):
            write_output(str(path), b"text", inputs={}, what="page", then="read it")
    assert pef.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["link.pef", "net.pef", "out.txt"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    path, found = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    write_output(str(path), b"text", inputs={}, what="page", then="read it")
    reader.join(30)
    assert found == [b"text"]
    assert stat.S_ISFIFO(os.stat(path).st_mode)
    with pytest.raises(PefUnwritable, match="No space left"):
        write_output("/dev/full", b"text", inputs={}, what="page", then="read it")


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pef") / "net.pef"
    write_pef(path, training())
    return str(path)


def test_a_pipe_that_is_closed_ends_the_command_quietly(pef: str) -> None:
    """Whatever is printed meets a pipe without a reader, on each try."""
    for command in ([*COMMAND, pef], [*COMMAND, pef, "--json"], [*OF_THE_DEVICE, pef]):
        read, write = os.pipe()
        os.close(read)
        try:
            done = finished(command, cwd=ROOT, stdout=write)
        finally:
            os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


def test_an_output_that_is_full_is_one_error(pef: str) -> None:
    """Told when the buffer is written out at the end, and when it is too small for all of it."""
    for command in ([*COMMAND, pef], [*COMMAND, pef, "--json"], [*OF_THE_DEVICE, pef]):
        with open("/dev/full", "w") as full:
            done = finished(command, cwd=ROOT, stdout=full)
        assert done.returncode == 1
        assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_an_output_that_knows_few_letters_gets_escapes(pef: str) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = finished([*COMMAND, pef], cwd=ROOT, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Net( fc: 3 -> 4 ) \\xe9" in done.stdout


def test_a_process_without_an_output(pef: str) -> None:
    done = finished(
        ["sh", "-c", '"$@" >&-', "sh", *COMMAND, pef], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr) == (0, "")

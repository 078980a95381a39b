"""Errors that a script does not catch: ours are one message with its line, others keep frames."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pef_schema import write_pef
from pef_schema.errors import PefMissing, SambaError
from samba.abexit import SambaAtexit
from samba.utils.uncaught import message_of, show_uncaught_as_messages
from tests.pef_schema.samples import training
from tests.warm import finished

ROOT = Path(__file__).parents[3]
APP = """
import sys
import sambaflow.samba as samba
from pef_schema import read_pef
from sambaflow.samba.utils.argparser import parse_app_args

args = parse_app_args(sys.argv[1:])
print("the model is built")

def load():
    read_pef("there is none.pef")

{rest}
"""
HINT = "[SAMBA_TRACEBACK=1 shows the frames]"


def run_app(
    folder: Path, rest: str, *options: str, pef: str = "net.pef", **environment: str
) -> CompletedProcess[str]:
    (folder / "app.py").write_text(APP.format(rest=rest))
    write_pef(folder / "net.pef", training())
    command = [sys.executable, "app.py", "run", "--pef", pef, *options]
    return finished(command, cwd=folder, env={**os.environ, **environment})


@pytest.mark.parametrize("pef", ["none.pef", ".", "app.py"])
def test_a_pef_that_cannot_be_read_is_one_line_before_the_model_is_built(
    tmp_path: Path, pef: str
) -> None:
    done = run_app(tmp_path, "load()", pef=pef)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"app.py run: error: argument -p/--pef: {pef}: ")


def test_an_app_that_declares_pef_itself_may_mean_anything_by_it(tmp_path: Path) -> None:
    app = APP.format(rest="").replace(
        "sys.argv[1:]",
        "sys.argv[1:], run_parser_fn=lambda p: p.add_argument('--pef')",
    )
    (tmp_path / "app.py").write_text(app)
    done = finished([sys.executable, "app.py", "run", "--pef=a name"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "the model is built\n"), done.stderr


def test_an_error_of_ours_is_one_message_with_the_line_of_the_script(tmp_path: Path) -> None:
    done = run_app(tmp_path, "load()")
    assert (done.returncode, done.stdout) == (1, "the model is built\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("app.py:11: PefMissing: there is none.pef: there is no file ")
    assert line.endswith(HINT)


@pytest.mark.parametrize("value", ["1", "0"])
def test_frames_are_shown_on_request(tmp_path: Path, value: str) -> None:
    done = run_app(tmp_path, "load()", SAMBA_TRACEBACK=value)
    assert done.stderr.count("Traceback (most recent call last)") == int(value)
    assert (HINT in done.stderr) is (value == "0")


def test_debug_shows_frames(tmp_path: Path) -> None:
    done = run_app(tmp_path, "load()", "--debug")
    assert "Traceback (most recent call last)" in done.stderr
    assert 'app.py", line 11, in load' in done.stderr and HINT not in done.stderr


@pytest.mark.parametrize(
    "rest",
    [
        "{}['other']",
        "try: {}['other']\nexcept KeyError as error: raise samba.SambaError('x') from error",
        "try: {}['other']\nexcept KeyError: raise samba.SambaError('x')",
    ],
)
def test_errors_of_others_keep_their_frames(tmp_path: Path, rest: str) -> None:
    done = run_app(tmp_path, rest)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "KeyError: 'other'" in done.stderr and HINT not in done.stderr


def test_a_hook_of_somebody_else_stays(tmp_path: Path) -> None:
    app = APP.format(rest="load()").replace(
        "import sys\n", "import sys\nsys.excepthook = lambda *error: print('theirs')\n"
    )
    (tmp_path / "app.py").write_text(app)
    write_pef(tmp_path / "net.pef", training())
    done = finished([sys.executable, "app.py", "run", "--pef=net.pef"], cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "theirs"


def test_an_app_that_ends_by_abexit_shows_the_same_message(tmp_path: Path) -> None:
    done = run_app(tmp_path, "samba.session.use_abexit(load)")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("app.py:11: PefMissing: ") and line.endswith(HINT)


def test_notes_are_part_of_the_message() -> None:
    error = SambaError("the step failed")
    error.add_note("The run took place.")
    assert message_of(error, None) == f"SambaError: the step failed\nThe run took place. {HINT}"


def test_a_line_that_the_message_names_is_not_named_twice() -> None:
    def fail(text: str) -> SambaError:
        try:
            raise SambaError(text)
        except SambaError as error:
            return error

    error = fail("x")
    assert error.__traceback__ is not None
    place = f"{__file__}:{error.__traceback__.tb_lineno}"
    first = message_of(error, error.__traceback__)
    assert first.startswith(f"{os.path.relpath(place)}: SambaError: x")
    same = fail(f"{place}: x")
    assert message_of(same, same.__traceback__).startswith("SambaError: ")


def test_what_one_of_ours_is_the_consequence_of_counts() -> None:
    first, second = PefMissing("a"), SambaError("b")
    second.__cause__ = first
    assert message_of(second, None)
    first.__context__ = KeyError("c")
    assert message_of(second, None) == ""
    first.__suppress_context__ = True
    assert message_of(second, None)
    first.__cause__ = second  # a circle
    assert message_of(second, None)


def test_the_hook_stands_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(SambaAtexit, "_show", None)
    show_uncaught_as_messages(debug=True)
    assert sys.excepthook is sys.__excepthook__ and SambaAtexit._show is None
    show_uncaught_as_messages(debug=False)
    first = sys.excepthook
    show_uncaught_as_messages(debug=False)
    assert sys.excepthook is first is not sys.__excepthook__

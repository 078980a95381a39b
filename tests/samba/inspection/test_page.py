"""Pages about commands on PEFs show what these print, and their Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import samba
from examples import lenet
from samba.__main__ import main
from tests.pages import page
from tests.processes import finished

PAGES = {
    "What is in a PEF, and where do two differ?": 11,
    "One page about a program": 2,
    "A PEF in other tools": 7,
}
"""Parts of docs/program.md with the number of commands that each shows at least."""
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
_VARIES = (
    # Lines of the source in the file have the reader's path, and so its size and digest vary.
    (re.compile(r"[\d,]+ bytes, format"), "N bytes, format"),
    (re.compile(r"digest [0-9a-f]{16}"), "digest D"),
    (re.compile(r"lines are below .*"), "lines are below F"),
    (re.compile(r"lenet.html: [\d.]+ KiB"), "lenet.html: N KiB"),
    # Times of sections, and the widths of their columns.
    (re.compile(r"(?m)^( *\d+ +[A-Z+]+ +\w+ +\d+) (?: +\d+\.\d+){4} %"), r"\1 T"),
    (re.compile(r"(?m)(?<=calls) +min ms +median ms +max ms +share"), " T"),
)
_TOOLS = ("ls", "grep")


def examples_of(text: str) -> list[tuple[str, str]]:
    """Commands of a page with what it shows below each."""
    found: list[tuple[str, str]] = []
    for block in _CONSOLE.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints; of a pipe into head, as many lines; of a compilation nothing."""
    line, _, head = command.partition(" | head -")
    words = shlex.split(line)
    if words[0] in _TOOLS:
        done = finished(words, cwd=Path.cwd())
        assert (done.returncode, done.stderr) == (0, ""), command
        return done.stdout
    if words[:2] == ["python", "examples/lenet.py"]:
        samba.session.reset()
        lenet.main(words[2:])
        captured = capsys.readouterr()
        if words[2] == "compile":
            return ""
    else:
        assert words[:3] == ["python", "-m", "samba"], command
        code = main(words[3:])
        captured = capsys.readouterr()
        assert captured.err == "" and code == (words[3] == "diff"), command
    lines = captured.out.splitlines(keepends=True)
    return "".join(lines[: int(head)] if head else lines)


def plain(text: str) -> str:
    """Text without what varies from place to place."""
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return text


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_is_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    text = page("program.md", name)
    shown = examples_of(text)
    assert len(shown) >= PAGES[name]
    for command, output in shown:
        assert plain(printed(command, capsys)) == plain(output), command
    for block in _PYTHON.findall(text):
        exec(compile(block, name, "exec"), {})

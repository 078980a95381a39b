"""docs/performance.md: what it shows of a kept file is what the command prints."""

from __future__ import annotations

import shlex

import pytest

from bench.__main__ import main
from bench.tree import ROOT
from tests.samba.inspection.test_page import examples_of

PAGE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")


def test_its_commands_print_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    shown = examples_of(PAGE)
    assert shown
    for command, output in shown:
        line, _, head = command.partition(" | head -")
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "bench"], command
        assert main(words[3:]) == 0
        printed = capsys.readouterr().out.splitlines(keepends=True)
        assert "".join(printed[: int(head)]) == output, command

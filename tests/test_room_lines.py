"""Rooms are held to their budgets of lines."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tools.room_lines import beyond, counted, with_budgets


def write(root: Path, name: str, lines: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n" * lines)


def test_a_room_is_a_folder_or_what_lies_beside_folders(tmp_path: Path) -> None:
    write(tmp_path, "samba/a.py", 3)
    write(tmp_path, "samba/session/b.py", 4)
    write(tmp_path, "samba/session/inner/c.py", 5)
    write(tmp_path, "pef_schema/_generated/pef.py", 90)
    write(tmp_path, "tests/test_a.py", 7)
    lines, files = counted(tmp_path)
    assert lines == {"samba": 3, "samba/session": 9, "tests": 7}
    assert files == {"samba": 1, "samba/session": 2, "tests": 1}


def test_a_room_beyond_its_budget_is_told() -> None:
    assert beyond({"samba": 100}, {"samba": 100}) == []
    (text,) = beyond({"samba": 101}, {"samba": 100})
    assert "samba has 101 lines, 1 above its budget of 100" in text
    (text,) = beyond({"emulator/new": 5}, {})
    assert "emulator/new has 5 lines and no budget" in text
    (text,) = beyond({}, {"samba/gone": 10})
    assert "samba/gone has a budget and no files" in text


def test_budgets_are_written_in_the_place_of_others() -> None:
    text = '[tool.a]\nx = 1\n\n[tool.room_lines]\n"gone" = 5\n\n[tool.b]\ny = 2\n'
    found = tomllib.loads(with_budgets(text, {"samba": 1000, "samba/session": 99}))["tool"]
    assert found["room_lines"] == {"samba": 1030, "samba/session": 110}
    assert (found["a"], found["b"]) == ({"x": 1}, {"y": 2})

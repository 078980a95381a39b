"""Tables and paragraphs keep to the width that they are given and lose no word."""

from __future__ import annotations

import os

import pytest

from samba.inspection.running import folded_json
from samba.support.layout import bytes_text, paragraph, table, terminal_width

HEAD = ("id", "name", "modules: operations")
ROWS = [
    ("0", "fwd_0", "net__conv: convolution"),
    ("10", "bckwd_0", "net__{one,two,three}: convolution:3 relu:2 max_pool2d_with_indices view"),
    ("11", "a" * 30, "b" * 90),
]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_table_keeps_to_the_width(width: int) -> None:
    text = table(HEAD, ROWS, width=width, right=(0,))
    assert max(map(len, text.splitlines())) <= width
    words = "".join(text.split())
    assert all("".join("".join(row).split()) in words for row in ROWS)


def test_columns_are_aligned() -> None:
    lines = table(HEAD, ROWS[:2], width=80, right=(0,)).splitlines()
    assert lines[0].index("modules") == lines[1].index("net__conv") == lines[2].index("net__{one")
    assert lines[1].startswith(" 0  fwd_0    ")
    assert lines[3].startswith(" " * lines[2].index("net__{one"))


def test_a_paragraph_is_escaped_and_broken() -> None:
    assert paragraph("a\nb\x1b", width=80) == "a\\nb\\x1b"
    text = paragraph("word " * 30, width=40, indent="  ")
    assert max(map(len, text.splitlines())) <= 40
    assert text.splitlines()[1].startswith("  word")


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (10189, "10 KiB"), (2**20 - 1, "1 MiB")],
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("40", 40), ("0", 80), ("1", 20), ("99999", 240), ("wide", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr(os, "isatty", lambda fd: False)
        assert terminal_width() == width
    monkeypatch.delenv("COLUMNS")
    assert terminal_width() == 80


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": [1, 2], "b": {"c": None, "d": [True, 1.5, "x\x1b"]}},
        [list(range(200)), ["long " * 30, {"deep": [{"er": list(range(50))}] * 3}]],
        [{"k" * 50: "v" * 70}, [[]] * 60],
    ],
)
def test_folded_json_is_the_same_json(value: object) -> None:
    import json

    text = folded_json(value)
    assert json.loads(text) == value
    assert text.isascii() and "\x1b" not in text

"""Text on its way to a terminal: nothing in it steers one, and errors keep what they found."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import pef_schema
from pef_schema import PefError, PefInvalid, SambaError
from pef_schema.printable import json_text, one_line, printable
from tests.terminal import TEXT, foreign

ROOT = Path(__file__).parents[2]


@given(st.text(st.characters(codec=None)))
def test_what_is_shown_is_printable_once_and_for_all(text: str) -> None:
    shown = printable(text)
    assert not foreign(shown)
    assert printable(shown) == shown
    assert one_line(shown).isprintable()
    assert one_line(one_line(text)) == one_line(text)
    shown.encode()  # no lone surrogate


def test_what_is_visible_stays() -> None:
    text = "módulo é 漢字 😀 C:\\new 'x'\n\tline two"
    assert printable(text) is text or printable(text) == text
    assert one_line("a\nb") == "a\\nb"


@pytest.mark.parametrize(
    ("char", "shown"),
    [
        ("\x1b", "\\x1b"),
        ("\x00", "\\x00"),
        ("\r", "\\r"),
        ("\x7f", "\\x7f"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\u2067", "\\u2067"),
        ("\u200f", "\\u200f"),
        ("\u061c", "\\u061c"),
        ("\u2029", "\\u2029"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_characters_are_shown_as_python_writes_them(char: str, shown: str) -> None:
    assert printable(f"a{char}b") == f"a{shown}b"


def test_json_stays_json() -> None:
    value = {TEXT: [TEXT, 1.5]}
    assert json_text(value).isascii() and json_text(value).isprintable()
    assert json.loads(json_text(value, indent=1)) == value


def test_errors_are_shown_escaped_and_keep_what_they_found() -> None:
    assert not foreign(str(SambaError(TEXT)))
    error = PefError(TEXT, path=f"a{TEXT}.pef", hint=TEXT)
    assert not foreign(str(error)) and not foreign(repr(error))
    assert (error.what, error.path, error.hint) == (TEXT, f"a{TEXT}.pef", TEXT)
    many = PefInvalid([f"region 0: {TEXT}\nforged: good"], path=TEXT)
    assert not foreign(str(many))
    assert "forged" not in [line.split(":")[0] for line in str(many).splitlines()]
    assert many.problems == (f"region 0: {TEXT}\nforged: good",)


def test_every_error_of_a_pef_is_shown_escaped() -> None:
    found = [getattr(pef_schema, name) for name in pef_schema.__all__]
    kinds = [c for c in found if isinstance(c, type) and issubclass(c, PefError)]
    for kind in kinds:
        error = kind([TEXT], path=TEXT) if kind is PefInvalid else kind(TEXT, path=TEXT)
        assert not foreign(str(error)), kind


@pytest.mark.parametrize("package", ["pef_schema", "emulator", "samba", "bench"])
def test_nothing_is_printed_past_it(package: str) -> None:
    """Who prints, prints by ``say`` or ``say_text``."""
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "printable.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert places == []

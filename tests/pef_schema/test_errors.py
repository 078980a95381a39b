"""Messages say where, what was found, what was wanted and what to do; the values are attributes."""

from __future__ import annotations

import ast
import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import pef_schema
from pef_schema import PefError, PefInvalid, PefTruncated, SambaError, decode, encode
from pef_schema.printable import json_text, one_line, printable, some_of
from tests.pef_schema.samples import inference
from tests.terminal import TEXT, foreign


def _classes() -> list[type[PefError]]:
    found = [getattr(pef_schema, name) for name in pef_schema.__all__]
    return [c for c in found if isinstance(c, type) and issubclass(c, PefError)]


def test_message_and_values() -> None:
    data = encode(inference())
    with pytest.raises(PefTruncated) as caught:
        decode(data[:-2], path="net.pef")
    error = caught.value
    assert (error.path, error.offset) == ("net.pef", len(data) - 2)
    assert (error.need, error.have) == (len(data), len(data) - 2)
    assert str(error) == (
        f"net.pef: byte {len(data) - 2}: the file should have {len(data)} bytes, "
        f"it has {len(data) - 2}. Copy the file again or recompile."
    )


def test_own_hint() -> None:
    error = PefTruncated("the file ends inside segment 3", hint="Ask for it again.")
    assert str(error) == "PEF in memory: the file ends inside segment 3. Ask for it again."


def test_list_of_problems() -> None:
    one = PefInvalid(["region 3: negative size -1"], path="net.pef")
    assert str(one) == (
        "net.pef: 1 problem:\n  region 3: negative size -1\n"
        "The program that made it is at fault; recompile with this package."
    )
    many = PefInvalid([f"problem {i}" for i in range(25)])
    assert str(many).startswith("program: 25 problems:\n  problem 0\n")
    assert "  problem 19\n  ... and 5 more\n" in str(many)
    assert len(many.problems) == 25


@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: kind.__name__)
def test_family(kind: type[PefError]) -> None:
    assert issubclass(kind, SambaError)
    assert kind is PefError or kind.advice.endswith(".")


@pytest.mark.parametrize(
    "error",
    [PefTruncated("it ends", path="net.pef", offset=3, need=4, have=1), PefInvalid(["a", "b"])],
)
def test_errors_travel_between_processes(error: PefError) -> None:
    """Workers of a data-parallel run send their errors to the one that started them."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 # made here
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_public_names() -> None:
    assert list(pef_schema.__all__) == sorted(pef_schema.__all__, key=_order)
    assert all(hasattr(pef_schema, name) for name in pef_schema.__all__)


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, functions, each by name."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


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


def test_only_names_that_are_shown_are_written_out() -> None:
    asked: list[int] = []

    def text(number: int) -> str:
        asked.append(number)
        return f"n{number}"

    assert some_of(range(100_000), 2, text) == "n0, n1 and 99,998 more"
    assert asked == [0, 1]
    assert some_of(range(3), None, text) == "n0, n1, n2"


def test_every_error_of_a_pef_is_shown_escaped() -> None:
    for kind in _classes():
        error = kind([TEXT], path=TEXT) if kind is PefInvalid else kind(TEXT, path=TEXT)
        assert not foreign(str(error)), kind


@pytest.mark.parametrize("package", ["pef_schema", "emulator", "samba", "bench"])
def test_nothing_is_printed_past_it(package: str) -> None:
    """Who prints, prints by ``say`` or ``say_text``; a file without the word is not parsed."""
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "printable.py" and re.search(r"\bprint\b", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert places == []

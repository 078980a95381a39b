"""Every broken file raises exactly the error that names its fault, and every rule has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pef_schema import PefError, PefInvalid, decode, encode, read_pef
from tests.pef_schema import bad_bytes, bad_programs, bad_steps
from tests.pef_schema.cases import CASES, edit
from tests.pef_schema.forge import encode_rows, encode_unchecked
from tests.pef_schema.rules import PACKAGE, Reached, Rule, find_rules
from tests.pef_schema.samples import inference, small

SOURCES = (bad_bytes, bad_programs, bad_steps)
"""Modules that fill the table of cases when they are imported."""
_TESTS = Path(__file__).parent
_READ = "test_read.py"
_LIMITS = "test_limits.py"
_COSTS = "test_reading_costs.py"
_HERE = "test_rules.py"
ELSEWHERE: dict[str, str] = {
    # What lies at a path, or happens to a file while it is read.
    "PefMissing(f'there is no file": _READ,
    "PefMissing(f'{path!r} is not a path": _READ,
    "PefNotRegular('this is a socket": _READ,
    "PefNotRegular(f'this is {kind}": _READ,
    "PefUnreadable(f'cannot open it": _READ,
    "PefUnreadable(f'cannot read": _READ,
    "raise _truncation(": _READ,
    "there is not enough memory": _COSTS,
    "constants of {info.data_length} bytes": _COSTS,
    # Refused in programs alone: a file that held it could not be written, or says it otherwise.
    "cannot be written as UTF-8": _HERE,
    "an integer argument beyond 64 bits": _HERE,
    "argument of type": _HERE,
    "lists nested more than": _LIMITS,
    "raise PefLimit(what, need=limits.metadata": _LIMITS,
    "raise PefLimit(_too_large('file', end": _LIMITS,
    # A file of megabytes, or deeper than our schema: under lower limits.
    "nodes, at most": _LIMITS,
    "sections, at most": _LIMITS,
    "self.limit('tables'": _LIMITS,
    "self.limit('vtables'": _LIMITS,
    "self.limit('bytes of strings and vectors'": _LIMITS,
    "self.limit('depth of tables'": _LIMITS,
}
"""Rules that no broken file can break, by a part of their code, and whose test does."""


class Broken:
    """The broken files, each made and read once, with a look at the rules that refuse them.

    Args:
        folder: Where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self.rules = find_rules()
        self.reached = Reached(self.rules)
        self.path = folder / "net.pef"
        self._read: dict[str, tuple[PefError, bytes]] = {}

    def read(self, name: str) -> tuple[PefError, bytes]:
        """What reading the file of a case raises, and the bytes of the file."""
        if name not in self._read:
            data = CASES[name].make()
            self.path.write_bytes(data)
            with self.reached, pytest.raises(PefError) as caught:
                read_pef(self.path)
            self._read[name] = caught.value.with_traceback(None), data
        return self._read[name]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    return Broken(tmp_path_factory.mktemp("broken"))


@pytest.mark.parametrize("name", CASES)
def test_broken_file(name: str, broken: Broken) -> None:
    """The faults in a file of the first format version that can hold them."""
    case = CASES[name]
    of_file, data = broken.read(name)
    with pytest.raises(PefError) as caught:
        decode(data)
    for error, start in ((of_file, str(broken.path)), (caught.value, "")):
        assert type(error) is case.error
        assert case.text in str(error)
        assert error.hint
        assert str(error).startswith(start)


def test_all_problems_at_once() -> None:
    def change(root: list[Any]) -> None:
        root[3][0][2], root[3][1][3] = 200, 99

    with pytest.raises(PefInvalid) as caught:
        decode(encode_rows(small(), change))
    assert caught.value.problems == ("region 0: unknown DType 200", "region 1: unknown Role 99")


def test_every_rule_has_a_file(broken: Broken) -> None:
    for name in CASES:
        broken.read(name)
    left = [rule for rule in broken.reached.left if not _elsewhere(rule)]
    assert len(broken.rules) > 120
    assert sorted(map(str, left)) == [], "each needs a case in bad_bytes, bad_programs or bad_steps"
    assert len(CASES) >= 300


def _elsewhere(rule: Rule) -> list[str]:
    return [part for part in ELSEWHERE if part in rule.code]


@pytest.mark.parametrize("part", ELSEWHERE)
def test_exceptions_are_needed_and_tested(part: str) -> None:
    assert (_TESTS / ELSEWHERE[part]).exists()
    assert [rule for rule in find_rules() if part in rule.code]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("an integer argument beyond 64 bits", {"args": (2**63,)}),
        ("argument of type builtins.bytes", {"args": (b"bytes",)}),
        (r"'\\udc80' cannot be written as UTF-8", {"args": ("\udc80",)}),
        (r"'\\udc80' cannot be written as UTF-8", {"source": "\udc80"}),
    ],
)
def test_what_only_a_program_can_hold(text: str, changes: dict[str, Any]) -> None:
    with pytest.raises(PefInvalid, match=text):
        encode(edit(small(), "graphs.0.nodes.0", **changes))


def test_a_rule_without_a_file_is_found() -> None:
    """A look at one file alone leaves all rules but its own."""
    rules = find_rules()
    reached = Reached(rules)
    with reached, pytest.raises(PefError):
        decode(CASES["twin_later"].make())
    assert len(rules) - 6 < len(reached.left) < len(rules)
    assert "check_sections" in {rule.function for rule in set(rules) - reached.left}


def test_good_files_break_no_rule() -> None:
    reached = Reached(rules := find_rules())
    with reached:
        for program in (small(), inference()):
            assert decode(encode(program)) == program
            assert encode_unchecked(program) == encode(program)
    assert reached.left == set(rules)


def test_rules_are_read_from_the_code() -> None:
    """As many as somebody counts who looks for the words."""
    text = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.glob("verify*.py"))
    verifier = [rule for rule in find_rules() if rule.module.startswith("verify")]
    words = ("report.add(", "report.index(", "raise self.", "self.add(", "self.index(")
    assert abs(sum(text.count(word) for word in words) - len(verifier)) <= 12

"""The list of documented names, the decorator and the generated page agree."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.api.__main__ import PAGE, page
from tests.api.covers import covers, found
from tests.api.names import ALL, PAGES


def test_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(found()), "run: python -m tests.api"


def test_every_name_is_covered():
    tests = found()
    assert [name for names in PAGES.values() for name in names if name not in tests] == []


def test_names_stand_once():
    counts = Counter(name for names in PAGES.values() for name in names)
    assert [name for name, count in counts.items() if count > 1] == []
    assert len(ALL) == counts.total()


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"samba\.session\.no_such"):
        covers("samba.session.run", ".no_such")
    with pytest.raises(ValueError, match="no name"):
        covers()


def test_decorators_are_found(tmp_path):
    path = tmp_path / "tests" / "test_x.py"
    path.parent.mkdir()
    path.write_text(
        "@covers('samba.session.run', '.reset')\ndef test_a(): ...\n"
        "class TestB:\n    @covers('samba.session.run', '.run(train, section_ids)')\n"
        "    def test_b(self): ...\n"
    )
    assert found(path.parent) == {
        "samba.session.run": ["tests/test_x.py::test_a", "tests/test_x.py::TestB::test_b"],
        "samba.session.reset": ["tests/test_x.py::test_a"],
        "samba.session.run(train)": ["tests/test_x.py::TestB::test_b"],
        "samba.session.run(section_ids)": ["tests/test_x.py::TestB::test_b"],
    }
    path.write_text("@covers('samba.session.run')\ndef helper(): ...\n")
    with pytest.raises(ValueError, match="does not run"):
        found(path.parent)

"""Every broken file raises exactly the error that names its fault."""

from __future__ import annotations

from typing import Any

import pytest

from pef_schema import PefError, PefInvalid, decode, read_pef
from tests.pef_schema.bad_cases import CASES, FOLDER
from tests.pef_schema.forge import encode_rows
from tests.pef_schema.samples import small


def test_folder_and_table_agree() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.pef")) == sorted(CASES)
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_file(name: str) -> None:
    path = FOLDER / f"{name}.pef"
    with pytest.raises(PefError) as caught:
        read_pef(path)
    assert type(caught.value) is CASES[name].error
    assert CASES[name].text in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert caught.value.hint


@pytest.mark.parametrize("name", CASES)
def test_made_again(name: str) -> None:
    """The same faults in a file of the current format version."""
    with pytest.raises(PefError) as caught:
        decode(CASES[name].make())
    assert type(caught.value) is CASES[name].error
    assert CASES[name].text in str(caught.value)


def test_all_problems_at_once() -> None:
    def change(root: list[Any]) -> None:
        root[3][0][2], root[3][1][3] = 200, 99

    with pytest.raises(PefInvalid) as caught:
        decode(encode_rows(small(), change))
    assert caught.value.problems == ("region 0: unknown DType 200", "region 1: unknown Role 99")

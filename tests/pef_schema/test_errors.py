"""Messages say where, what was found, what was wanted and what to do; the values are attributes."""

from __future__ import annotations

import pickle

import pytest

import pef_schema
from pef_schema import PefError, PefInvalid, PefTruncated, SambaError, decode, encode
from tests.pef_schema.samples import inference


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

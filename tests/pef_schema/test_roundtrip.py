"""What is written is read back, and equal programs give equal bytes."""

from __future__ import annotations

import dataclasses
import doctest
import enum
import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import pef_schema
from pef_schema import PefError, Program, decode, encode, read_info, read_pef, write_pef
from tests.pef_schema.samples import inference, small, training
from tests.pef_schema.strategies import programs
from tests.processes import finished

_ROOT = Path(__file__).parents[2]


def _plain(program: Program) -> tuple[str, tuple[bytes, ...]]:
    """Return what must be equal; NaN arguments are not equal to themselves, but their text is."""
    return repr(program), program.segments


@given(programs())
def test_any_program(program: Program) -> None:
    data = encode(program)
    again = decode(data)
    assert _plain(again) == _plain(program)
    assert encode(again) == data


@pytest.mark.parametrize("make", [training, small, inference])
def test_samples(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    info = write_pef(path, make())
    assert read_pef(path) == make()
    assert read_pef(str(path)) == make()
    assert path.read_bytes() == encode(make())
    assert info == read_info(path)
    assert info.size == path.stat().st_size
    assert (info.writer, info.min_reader) == (1, 1)


def test_example() -> None:
    tried = doctest.testmod(pef_schema)
    assert tried.failed == 0 < tried.attempted


def test_arguments_keep_their_types() -> None:
    nodes = decode(encode(training())).graphs[0].nodes
    kinds = [type(arg) for arg in nodes[1].args] + [type(arg) for _, arg in nodes[1].kwargs]
    wanted = training().graphs[0].nodes[1]
    assert kinds == [type(a) for a in wanted.args] + [type(a) for _, a in wanted.kwargs]
    assert math.copysign(1.0, dict(nodes[1].kwargs)["p"]) == -1.0


def test_same_bytes_in_other_processes() -> None:
    code = (
        "import hashlib; from pef_schema import encode; "
        "from tests.pef_schema.samples import training; "
        "print(hashlib.sha256(encode(training())).hexdigest())"
    )
    digests = {
        finished(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            cwd=_ROOT,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert digests == {hashlib.sha256(encode(training())).hexdigest()}


def _places(item: Any, steps: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every number and string of a program."""
    if dataclasses.is_dataclass(item):
        pairs = [(field.name, getattr(item, field.name)) for field in dataclasses.fields(item)]
    elif isinstance(item, tuple):
        pairs = list(enumerate(item))
    else:
        return [steps]
    return [place for key, inner in pairs for place in _places(inner, (*steps, key))]


def _replaced(item: Any, steps: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with one place changed."""
    if not steps:
        return new
    key, rest = steps[0], steps[1:]
    if isinstance(item, tuple):
        return (*item[:key], _replaced(item[key], rest, new), *item[key + 1 :])
    return dataclasses.replace(item, **{key: _replaced(getattr(item, key), rest, new)})


_PLACES = _places(training())


@settings(max_examples=settings().max_examples * 4)
@given(
    st.sampled_from(_PLACES),
    st.one_of(st.integers(-(2**70), 2**70), st.integers(-2, 20)),
    st.one_of(st.floats(), st.just(float("nan"))),
    st.text(),
)
def test_one_place_changed(place: tuple[Any, ...], whole: int, number: float, text: str) -> None:
    """A wrong program is refused with a PefError; what is not refused is kept exactly."""
    item: Any = training()
    for step in place:
        item = item[step] if isinstance(item, tuple) else getattr(item, step)
    if isinstance(item, bytes):
        new: Any = text.encode("utf-8", "surrogatepass")
    elif isinstance(item, bool):
        new = not item
    elif isinstance(item, float):
        new = number
    elif isinstance(item, enum.IntEnum):
        members = list(type(item))
        new = members[whole % len(members)]
    else:
        new = whole if isinstance(item, int) else text
    program = _replaced(training(), place, new)
    try:
        data = encode(program)
    except PefError:
        return
    assert _plain(decode(data)) == _plain(program)

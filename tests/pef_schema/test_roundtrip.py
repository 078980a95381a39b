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
from pef_schema import DType, PefError, Program, Ref, decode, encode, read_info, read_pef, write_pef
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import inference, small, training
from tests.processes import finished

_ROOT = Path(__file__).parents[2]


def _plain(program: Program) -> tuple[str, tuple[bytes, ...]]:
    """Return what must be equal; NaN arguments are not equal to themselves, but their text is."""
    return repr(program), program.segments


_NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\"), min_size=1, max_size=9
).filter(lambda name: name not in (".", ".."))
_PLAIN: st.SearchStrategy[Any] = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1)),
    *(st.floats(), st.complex_numbers(), st.sampled_from(DType)),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
)
_LEAF = st.one_of(_PLAIN, st.just(Ref(0)))
_LISTS = st.lists(_LEAF, max_size=3).map(tuple)
_DEEP = st.recursive(_PLAIN, lambda arg: st.lists(arg, max_size=2).map(tuple), max_leaves=4)
_ARGS = st.one_of(
    *(_LEAF, _LISTS, st.lists(st.one_of(_LEAF, _LISTS), max_size=3).map(tuple)),
    _DEEP.map(lambda arg: (arg,)),
)
"""Arguments of all kinds, in lists; what refers to a value is at most two lists deep."""


@settings(max_examples=settings().max_examples * 2)
@given(_NAMES, st.lists(_ARGS, max_size=4), st.dictionaries(_NAMES, _ARGS, max_size=3))
def test_any_arguments(name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """What else a program can hold is in the samples, and in the seeds of ``fuzz``."""
    node = {"op": name, "module": name, "source": name, "args": tuple(args)}
    node |= {"kwargs": tuple(sorted(kwargs.items()))}
    program = edit(inference(), "graphs.0.nodes.0", **node)
    program = edit(program, "", name=name, metadata=((name, name),))
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


def test_every_text_of_a_node_is_read_back() -> None:
    node = {"args": ("a", ("b", ("c",)), "d", "a"), "kwargs": (("e", "f"), ("g", ("h", "i")))}
    program = edit(inference(), "graphs.0.nodes.0", **node)
    assert decode(encode(program)) == program


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

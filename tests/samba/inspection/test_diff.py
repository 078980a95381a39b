"""``python -m samba diff``: whatever differs is found, and what was inserted is one difference."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from pef_schema import PefError, Program, Ref, decode, encode, write_pef
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.inspection.diff_command import run
from samba.inspection.differences import LEVELS, differences
from samba.inspection.program_pairs import matched
from tests.emulator.test_terminal_text import FIELDS, PROGRAMS, Field, texts
from tests.models.zoo import ZOO
from tests.pages import page
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import custom, inference, small, training
from tests.samba.inspection.programs import chain, two_graphs
from tests.terminal import NAME, TEXT, foreign
from tests.tracing import trace

Printed = pytest.CaptureFixture[str]
OPS = ["a.linear", "a.relu", "b.linear", "relu", "linear", "relu", "c.linear"]


def levels(a: Program, b: Program) -> dict[str, list[str]]:
    """What differs, as ``kind what``, by level; levels without differences are left out."""
    return {
        name: [f"{change.kind} {change.what}" for change in changes]
        for name, changes in differences(a, b).items()
        if changes
    }


@pytest.mark.parametrize(
    "program", [training(), small(), inference(), custom(), two_graphs(), chain(OPS)]
)
def test_a_program_equals_itself(program: Program) -> None:
    """Read twice, so that nothing is the same object."""
    again = decode(encode(program))
    found = differences(decode(encode(program)), again)
    assert tuple(found) == LEVELS
    assert not any(found.values())


def variants(item: Any) -> Iterator[Any]:
    """An item with one leaf changed, for each of its leaves; or with one part left out."""
    if isinstance(item, enum.Enum):
        yield from (member for member in type(item) if member is not item)
    elif isinstance(item, bool):
        yield not item
    elif isinstance(item, Ref):
        yield from (Ref(item.value + 1), Ref(max(0, item.value - 1)))
    elif isinstance(item, int):
        yield from (item + 1, item - 1, -1, 0)
    elif isinstance(item, float):
        yield from (item + 1.0, -item)
    elif isinstance(item, str):
        yield item + "_other"
    elif isinstance(item, bytes):
        yield item[:-1] + bytes([item[-1] ^ 1])
    elif isinstance(item, tuple):
        for i, part in enumerate(item):
            yield (*item[:i], *item[i + 1 :])
            for changed in variants(part):
                yield (*item[:i], changed, *item[i + 1 :])
        if len(item) > 1:
            yield item[::-1]
    elif dataclasses.is_dataclass(item):
        for field in dataclasses.fields(item):
            for changed in variants(getattr(item, field.name)):
                yield dataclasses.replace(item, **{field.name: changed})


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(training(), marks=pytest.mark.slow),  # test_levels_of_single_changes has it
        *(custom(), two_graphs()),
    ],
)
def test_whatever_changes_is_found(program: Program) -> None:
    """Each leaf of a program that may be another in a good file makes a difference, both ways."""
    original, checked = encode(program), 0
    for variant in variants(program):
        try:
            changed = encode(variant)  # it refuses what no good file holds
        except (PefError, TypeError, ValueError, IndexError):
            continue
        if changed == original:
            continue
        checked += 1
        assert levels(program, variant), variant
        assert levels(variant, program), variant
    assert checked > 50


@pytest.mark.parametrize("at, op", [(0, "b.tanh"), (4, "relu"), (4, "linear"), (7, "d.relu")])
def test_what_was_inserted_is_one_difference(at: int, op: str) -> None:
    """The next node takes its result; no later one differs, whatever its number and name are."""
    ours, theirs = chain(OPS), chain([*OPS[:at], op, *OPS[at:]])
    found = levels(ours, theirs)
    nodes = [text for text in found["graph"] if "node" in text]
    assert [text.split()[0] for text in nodes if "arguments" not in text] == ["added"]
    assert len(nodes) <= 2
    added = [text for text in found["sections"] if text.startswith("added")]
    # Beside a node of the same kind, either of the two may count as the new one.
    assert added in ([f"added section fwd_{at}"], [f"added section fwd_{at + 1}"])
    assert len(found["sections"]) <= 4
    assert len([text for text in found["schedule"] if "renamed" not in text]) == 1
    back = levels(theirs, ours)
    assert [
        text.replace("removed", "added") for text in back["sections"] if "remo" in text
    ] == added
    kinds = [text.split()[0] for text in back["graph"] if "node" in text]
    assert sorted(kinds)[-1] == "removed" and kinds.count("removed") == 1


def test_one_node_among_many_that_are_alike() -> None:
    ops = [f"h{i}.{op}" for i in range(200) for op in ("norm", "linear", "relu", "linear")]
    more = [*ops[:400], "h100.relu", *ops[400:]]
    start = time.process_time()
    found = levels(chain(ops), chain(more))
    assert {name: len(changes) for name, changes in found.items()} == {
        "graph": 3,
        "lines": 1,
        "sections": 3,
        "schedule": 2,
        "regions": 2,
    }
    assert time.process_time() - start < 10


@pytest.mark.slow
def test_graphs_of_many_nodes_take_seconds() -> None:
    """As many sections as a PEF may have, with every tenth node another; then without a section."""
    ops = [f"h{i // 10}.{'linear' if i % 2 else 'relu'}" for i in range(40_000)]
    other = [op if i % 10 else f"{op}_other" for i, op in enumerate(ops)]
    a, b = chain(ops), chain(other)
    start = time.process_time()
    found = differences(a, b)
    assert len(found["graph"]) >= 4000
    assert time.process_time() - start < 60
    start = time.process_time()
    assert differences(a, chain(ops, each=2))["sections"]
    assert time.process_time() - start < 60


def test_programs_that_differ_in_sections_alone() -> None:
    torch.manual_seed(0)
    model, inputs = ZOO["mlp"].model(), ZOO["mlp"].inputs()
    traced = trace(model, inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    coarse, fine = (
        build_program(traced, [optimizer], CompileOptions(name="mlp", optim_level=level))
        for level in ("o3", "o0")
    )
    found = levels(coarse, fine)
    assert set(found) == {"sections", "schedule", "regions"}
    assert set(levels(fine, coarse)) == {"sections", "schedule", "regions"}


def test_levels_of_single_changes() -> None:
    program = training()
    data = (program.segments[0][:-4] + b"\0\0\0\0", program.segments[1])
    cases = {
        "program": edit(program, "", name="other"),
        "graph": edit(program, "graphs.0.nodes.1", module="net__other"),
        "lines": edit(program, "graphs.0.nodes.0", source="model.py:13"),
        "constants": dataclasses.replace(program, segments=data),
        "sections": edit(program, "sections.0", name="other"),
        "optimizers": edit(
            program, "optimizers.0", options=(("dampening", 0.5), ("nesterov", 1.0))
        ),
        "hyperparameters": edit(program, "argins.0", default=0.2),
        "metadata": dataclasses.replace(program, metadata=()),
    }
    for level, changed in cases.items():
        assert set(levels(program, changed)) == {level}
    (change,) = differences(program, cases["hyperparameters"])["hyperparameters"]
    assert (change.kind, change.what) == ("changed", "lr")
    assert "default 0.1" in change.a and "default 0.2" in change.b


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """PEFs by name, and paths of what is none."""
    programs = {
        "a": chain(OPS),
        "b": chain([*OPS[:4], "relu", *OPS[4:]]),
        "moved": edit(chain(OPS), "graphs.0.nodes.0", source="net.py:1"),
        "long": chain([f"m{i}.relu" for i in range(60)]),
        "other": chain([f"k{i}.tanh" for i in range(60)]),
    }
    for name, program in programs.items():
        write_pef(tmp_path / f"{name}.pef", program)
    (tmp_path / "zip.pef").write_bytes(b"PK\x03\x04" + bytes(99))
    (tmp_path / "empty.pef").write_bytes(b"")
    names = [*programs, "zip", "empty", "none"]
    return {name: str(tmp_path / f"{name}.pef") for name in names} | {"folder": str(tmp_path)}


def test_exit_codes(files: dict[str, str], capsys: Printed) -> None:
    assert run([files["a"], files["a"]]) == 0
    assert capsys.readouterr().out.endswith("\nequal\n")
    assert run([files["a"], files["b"]]) == 1
    text = capsys.readouterr().out
    assert "  + node 4 relu in net: float32[2,3]\n" in text
    assert "\ndifferent: graph, lines, sections, schedule, regions\n" in text
    for bad in ("zip", "empty", "none", "folder"):
        for pair in ((files["a"], files[bad]), (files[bad], files["a"])):
            assert run(pair) == 3
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err.startswith(f"error: {files[bad]}")
            assert captured.err.count("\n") == 1
    for wrong in (
        [files["a"]],
        [files["a"], files["b"], "--only", "graph,colours"],
        [files["a"], files["b"], "--only", ","],
    ):
        with pytest.raises(SystemExit) as caught:
            run(wrong)
        assert caught.value.code == 2
    capsys.readouterr()


def test_some_levels_alone(files: dict[str, str], capsys: Printed) -> None:
    """Lines of the source change with every comment; CI may ask for what is computed."""
    assert run([files["a"], files["moved"]]) == 1
    assert run([files["a"], files["moved"], "--only", "graph,sections"]) == 0
    assert run([files["a"], files["moved"], "--only", "lines", "--json"]) == 1
    found = json.loads(capsys.readouterr().out.split("equal\n", 1)[1])
    assert list(found["levels"]) == ["lines"]


def test_long_lists_are_cut_and_counted(files: dict[str, str], capsys: Printed) -> None:
    assert run([files["long"], files["other"]]) == 1
    text = capsys.readouterr().out
    assert "graph            120 differences\n" in text or "graph            " in text
    assert "more: --all shows them" in text
    assert run([files["long"], files["other"], "--all"]) == 1
    assert "more: --all" not in capsys.readouterr().out
    assert run([files["long"], files["other"], "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["version"], found["equal"]) == ("samba.diff", 1, False)
    graph = found["levels"]["graph"]
    assert graph["count"] == len(graph["changes"]) + graph["left_out"] > 20
    assert set(graph["changes"][0]) == {"kind", "what", "a", "b", "count"}
    assert found["levels"]["metadata"] == {"count": 0, "left_out": 0, "changes": []}


def test_every_key_of_the_json_is_documented(files: dict[str, str], capsys: Printed) -> None:
    run([files["a"], files["b"], "--json"])
    found = json.loads(capsys.readouterr().out)
    keys = {*found, *found["a"], *found["levels"], *found["levels"]["graph"]}
    keys |= set(found["levels"]["graph"]["changes"][0])
    text = page("program.md", "What is in a PEF, and where do two differ?")
    assert sorted(key for key in keys if f"`{key}`" not in text) == []


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_every_line_keeps_to_the_terminal(
    columns: int, files: dict[str, str], capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for other in ("b", "long"):
        run([files["a"], files[other]])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_no_text_of_a_file_steers_the_terminal(
    field: Field, tmp_path: Path, capsys: Printed
) -> None:
    for program in PROGRAMS.values():
        write_pef(tmp_path / "plain.pef", program)
        for text in (NAME, TEXT):
            forged = texts(program, lambda f, t, text=text: t + text if f == field else t)
            try:
                data = encode(forged)
            except PefError:
                continue  # a text that no file may hold there
            (tmp_path / "odd.pef").write_bytes(data)
            for more in ([], ["--json"]):
                run([str(tmp_path / "plain.pef"), str(tmp_path / "odd.pef"), *more])
                captured = capsys.readouterr()
                assert not foreign(captured.out + captured.err)


# -- matching two lists ----------------------------------------------------------------


WORDS = st.lists(st.sampled_from("abcde"), max_size=12)


@given(WORDS, WORDS)
def test_matches_are_equal_and_ascend(a: list[str], b: list[str]) -> None:
    pairs = matched([a], [b])
    assert all(a[i] == b[j] for i, j in pairs)
    for (i, j), (k, m) in itertools.pairwise(pairs):
        assert i < k and j < m


@given(WORDS, st.integers(0, 12), st.sampled_from("xyz"))
def test_an_insertion_leaves_all_others_matched(a: list[str], at: int, new: str) -> None:
    b = [*a[:at], new, *a[at:]]
    assert len(matched([a], [b])) == len(a)
    assert len(matched([b], [a])) == len(a)


def test_less_sure_keys_fill_what_is_left() -> None:
    assert matched(["ab", "xx"], ["cb", "xx"]) == [(0, 0), (1, 1)]
    assert matched(["ab", "xy"], ["cb", "zy"]) == [(1, 1)]


def test_time_grows_with_the_length_alone() -> None:
    """Where every second item is another, where all are alike, and where all are shuffled."""
    count = 40_000
    numbers = list(range(count))
    other = [i if i % 2 else -i for i in numbers]
    shuffled = numbers.copy()
    random.Random(1).shuffle(shuffled)
    alike = ["ab"[random.Random(i).random() < 0.5] for i in range(2000)] * 20
    start = time.process_time()
    assert len(matched([numbers], [other])) == count // 2 + 1
    assert 0 < len(matched([numbers], [shuffled])) < count // 10
    assert len(matched([alike], [alike[7:] + alike[:7]])) > count // 2
    assert len(matched([["a"] * count], [["b"] + ["a"] * count])) == count
    assert time.process_time() - start < 30

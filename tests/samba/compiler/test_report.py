"""The log of programs that no compiler of ours makes, but that the verifier accepts."""

from __future__ import annotations

import dataclasses
import re

import pytest

from emulator.costs.description import describe
from emulator.costs.memory import memory_need, schedule_steps
from pef_schema import Program, Ref
from samba.compiler.forms.listing import node_list, pef_log, section_list
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import custom, small, training
from tests.samba.inspection.programs import two_graphs


def test_op_without_a_library() -> None:
    log = pef_log(edit(small(), "graphs.0.nodes.0", op="linear"))
    (row,) = re.findall(r"^ *0 +linear +0,1 +float32 +.*", log, re.MULTILINE)
    assert "  fc model.py:12" in row
    assert "fc, loss: linear all_kinds advance\n" in log


@pytest.mark.parametrize("op", ["samba.cast_bf16.result", "samba.cast_bf16.input"])
def test_rounding_of_nothing(op: str) -> None:
    for changes in ({"args": (), "outputs": ()}, {"args": (Ref(0),), "outputs": (-1,)}):
        log = pef_log(edit(small(), "graphs.0.nodes.0", op=op, **changes))
        (row,) = re.findall(r"^ *1 +all_kinds +0,1 +float32 +.*", log, re.MULTILINE)
        assert "  loss -" in row


def test_program_without_graphs() -> None:
    nothing = dataclasses.replace(
        training(), graphs=(), sections=(), schedules=(), optimizers=(), symbols=()
    )
    log = pef_log(nothing)
    assert "0 sections of 0 structures" in log
    assert "losses" not in log


@pytest.mark.parametrize("program", [small(), training(), custom()])
def test_samples(program: Program) -> None:
    assert pef_log(program).startswith("net: ")


def test_sections_name_modules_and_operations() -> None:
    log = pef_log(training())
    start = log.index("\nsections\n") + 1
    rows = [re.split(r" {2,}", line.strip()) for line in log[start:].splitlines()[2:6]]
    assert [[row[0], row[2], row[-1]] for row in rows] == [
        ["0", "net.fwd", "fc, loss: linear all_kinds advance"],
        ["1", "net.bckwd", "fc, loss: linear all_kinds"],
        ["2", "gradnorm", "fc: sgd"],
        ["3", "opt", "fc: sgd"],
    ]


def test_every_column_has_its_legend() -> None:
    log = " ".join(pef_log(training()).split())
    for column in ("ops", "bytes", "FLOPs", "calls", "same as"):
        assert re.search(rf"[(; ]{column}: ", log), column
    assert "linear:2 is two of them" in log and "a[0-3].b: module b of a[0] to a[3]" in log


def test_the_log_is_what_inspect_shows() -> None:
    described = describe(training())
    log = pef_log(training(), "d" * 64)
    assert f"\npef: {'d' * 64}\n" in log
    for part in (section_list(described, width=120), node_list(described, width=120)):
        assert part in log


def test_the_peak_of_memory_and_what_is_alive_there() -> None:
    program = training()
    need = memory_need(program, schedule_steps(program, 0))
    log = pef_log(program)
    lines = log[log.index("\npeak: ") + 1 :].splitlines()
    assert lines[0].startswith(f"peak: {need.peak} B in call 10 (net.bckwd), while it computes ")
    largest = need.alive(program, need.highest)[0]
    wanted = [str(largest.nbytes), "B", largest.role.name.lower(), largest.name]
    assert lines[2].split()[:4] == wanted
    # Without the first two calls nothing is computed between the regions.
    calls = program.schedules[0].calls[2:]
    later = dataclasses.replace(
        program, schedules=(dataclasses.replace(program.schedules[0], calls=calls),)
    )
    peak = memory_need(later, schedule_steps(later, 0)).peak
    assert peak < need.peak
    assert f"peak: {peak} B in call 20 (gradnorm)" in pef_log(later)


def test_each_graph_has_its_peak() -> None:
    program = two_graphs()
    log = pef_log(program)
    for index, name in enumerate(("tiny", "second")):
        peak = memory_need(program, schedule_steps(program, index)).peak
        assert f"peak of graph {name}: {peak} B in call 0 ({name}.fwd)" in log

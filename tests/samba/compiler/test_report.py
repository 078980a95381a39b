"""The log of programs that no compiler of ours makes, but that the verifier accepts."""

from __future__ import annotations

import dataclasses

import pytest

from pef_schema import Program, Ref
from samba.compiler.report import pef_log
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import custom, small, training
from tests.samba.inspection.programs import two_graphs


def test_op_without_a_library() -> None:
    log = pef_log(edit(small(), "graphs.0.nodes.0", op="linear"))
    assert "  0  linear  net__fc  float32\n" in log
    assert log.splitlines()[3].endswith("linear all_kinds advance")


@pytest.mark.parametrize("op", ["samba.cast_bf16.result", "samba.cast_bf16.input"])
def test_rounding_of_nothing(op: str) -> None:
    for changes in ({"args": (), "outputs": ()}, {"args": (Ref(0),), "outputs": (-1,)}):
        log = pef_log(edit(small(), "graphs.0.nodes.0", op=op, **changes))
        assert "  1  test.all_kinds.default  net__loss  float32\n" in log


def test_program_without_graphs() -> None:
    nothing = dataclasses.replace(
        training(), graphs=(), sections=(), schedules=(), optimizers=(), symbols=()
    )
    log = pef_log(nothing)
    assert "0 sections of 0 structures" in log
    assert "losses" not in log


@pytest.mark.parametrize("program", [small(), training(), custom()])
def test_samples(program: Program) -> None:
    assert pef_log(program).startswith("program net: ")


def test_sections_name_modules_and_operations() -> None:
    log = pef_log(training())
    start = log.index("modules and operations of sections:\n")
    assert log[start:].splitlines()[1:6] == [
        "  0  net.fwd    net__{fc,loss}: linear all_kinds advance",
        "  1  net.bckwd  net__{fc,loss}: linear all_kinds",
        "  2  gradnorm   net__fc: sgd",
        "  3  opt        net__fc: sgd",
        "",
    ]


def test_every_column_has_its_legend() -> None:
    log = pef_log(training())
    explained = {line.partition(":")[0] for line in log.splitlines()}
    assert {"ops", "bytes", "call_ids", "same_as", "modules", "operations"} <= explained


def test_the_peak_of_memory_and_what_is_alive_there() -> None:
    log = pef_log(training())
    peak = log[log.index("\npeak of memory") + 1 : log.index("\nprecision of")]
    lines = peak.splitlines()
    assert lines[0] == "peak of memory along the schedule, bytes: 552 in call 0 (net.fwd)"
    assert "  activation: 32" in lines
    assert "the largest of 13 regions that are alive there:" in lines
    assert lines[lines.index("the largest of 13 regions that are alive there:") + 1] == (
        "  300  constant  mask"
    )
    # After the first two calls the activation is not alive any more.
    calls = training().schedules[0].calls[2:]
    later = dataclasses.replace(
        training(), schedules=(dataclasses.replace(training().schedules[0], calls=calls),)
    )
    assert "bytes: 520 in call 20 (gradnorm)" in pef_log(later)


def test_each_graph_has_its_peak() -> None:
    log = pef_log(two_graphs())
    assert "peak of memory along the schedule of graph tiny, bytes: 72 in call 0 (tiny.fwd)" in log
    assert "of graph second, bytes: 72 in call 0 (second.fwd)" in log

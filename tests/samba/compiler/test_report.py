"""The log of programs that no compiler of ours makes, but that the verifier accepts."""

from __future__ import annotations

import dataclasses

import pytest

from pef_schema import Program, Ref
from samba.compiler.report import pef_log
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import custom, small, training


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

"""Types, operations, modules and bytes of sections, and when regions are alive."""

from __future__ import annotations

import dataclasses

import pytest

from pef_schema import Call, Program, Schedule, Section, SectionKind, Step, Symbol
from pef_schema.program_facts import (
    Life,
    lives,
    modules_of,
    operations_of,
    operations_text,
    owners,
    section_bytes,
    section_lines,
    section_ops,
    section_types,
    weight_lines,
)
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import custom, inference, training


def test_facts_of_each_section() -> None:
    program = training()
    found = [
        (
            section_types(section),
            section_ops(program, section),
            section_bytes(program, section),
            operations_text(operations_of(program, section)),
            modules_of(program, section, owners(program)),
        )
        for section in program.sections
    ]
    assert found == [
        ("FWD", 3, 24 + 48 + 16 + 8 + 32 + 4, "linear all_kinds advance", ("net__fc", "net__loss")),
        ("BCKWD", 3, 24 + 32 + 4 + 48, "linear all_kinds", ("net__fc", "net__loss")),
        ("GRADNORM", 1, 48 + 4, "sgd", ("net__fc",)),
        ("OPT", 1, 48 + 48 + 48 + 8, "sgd", ("net__fc",)),
    ]
    assert section_lines(program, program.sections[0], weight_lines(program)) == ("model.py:12",)
    # Norms of gradients and updates have the lines that read the weight.
    assert section_lines(program, program.sections[2], weight_lines(program)) == ("model.py:12",)
    assert section_lines(program, program.sections[3], weight_lines(program)) == ("model.py:12",)


def test_lines_of_installed_packages_come_last() -> None:
    installed = "/v/lib/python3.12/site-packages/hub/net.py:3"
    program = edit(training(), "graphs.0.nodes.0", source=installed)
    program = edit(program, "graphs.0.nodes.1", source="model.py:12")
    assert section_lines(program, program.sections[0], weight_lines(program)) == (
        "model.py:12",
        installed,
    )


@pytest.mark.parametrize("kind", [SectionKind.ZEROGRAD, SectionKind.REDUCE])
def test_modules_of_what_has_neither_nodes_nor_optimizers(kind: SectionKind) -> None:
    step = Step(kind=kind, reads=(2,) if kind is SectionKind.REDUCE else (), writes=(2,))
    program = edit(training(), "sections.2", name="sum", steps=(step,))
    assert modules_of(program, program.sections[2], owners(program)) == ("net__fc",)
    counted = (("gradient", 1),) if kind is SectionKind.REDUCE else ()
    assert operations_of(program, program.sections[2]) == counted


def test_several_tensors_in_one_region() -> None:
    program = training()
    more = Symbol(name="net__head__weight", region=1, grad_region=2)
    shared = dataclasses.replace(program, symbols=(*program.symbols, more))
    assert owners(shared) == {1: ("net__fc", "net__head"), 2: ("net__fc", "net__head")}
    assert modules_of(shared, shared.sections[3], owners(shared)) == ("net__fc", "net__head")


@pytest.mark.parametrize("program", [inference(), custom()])
def test_modules_without_names_are_left_out(program: Program) -> None:
    assert [modules_of(program, s, owners(program)) for s in program.sections] == [
        (program.graphs[0].nodes[-1].module,)
    ] * len(program.sections)
    bare = edit(program, f"graphs.0.nodes.{len(program.graphs[0].nodes) - 1}", module="")
    assert [modules_of(bare, s, owners(bare)) for s in bare.sections] == [()] * len(
        program.sections
    )


def chain() -> Program:
    """Three sections that hand on two activations of 32 and 320 bytes, then one that needs none."""
    base = training()
    long = dataclasses.replace(base.regions[4], name="long", shape=(80,))
    touched = [((0,), (4,)), ((4,), (13,)), ((4, 13), (5,)), ((2,), (1,))]
    sections = tuple(
        Section(
            name=f"s{i}",
            steps=(Step(kind=SectionKind.FWD, reads=reads, writes=writes),),
            twin=i,
        )
        for i, (reads, writes) in enumerate(touched)
    )
    calls = tuple(Call(call_id=2 * i, section=i) for i in range(4))
    return dataclasses.replace(
        base,
        regions=(*base.regions, long),
        sections=sections,
        schedules=(Schedule(graph=0, calls=calls),),
    )


def test_lives_of_activations_are_from_first_to_last_use() -> None:
    program = chain()
    found = {life.region: life for life in lives(program, 0)}
    assert found[4] == Life(region=4, first=0, last=2)
    assert found[13] == Life(region=13, first=1, last=2)
    assert found[1] == Life(region=1, first=0, last=3)
    assert list(found) == list(range(14))


def test_an_activation_that_is_not_touched_has_no_life() -> None:
    program = chain()
    short = dataclasses.replace(program.schedules[0], calls=program.schedules[0].calls[3:])
    program = dataclasses.replace(program, schedules=(short,))
    assert {4, 13} & {life.region for life in lives(program, 0)} == set()
    assert len(lives(program, 0)) == 12


def test_a_schedule_without_calls_keeps_nothing_alive() -> None:
    program = dataclasses.replace(chain(), schedules=(Schedule(graph=0, calls=()),))
    assert lives(program, 0) == ()


def test_a_section_that_is_called_twice() -> None:
    program = chain()
    calls = (*program.schedules[0].calls, Call(call_id=9, section=0))
    program = dataclasses.replace(program, schedules=(Schedule(graph=0, calls=calls),))
    assert Life(region=4, first=0, last=4) in lives(program, 0)

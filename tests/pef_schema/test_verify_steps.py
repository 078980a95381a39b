"""Good and bad steps, schedules and optimizers; ``bad_steps`` has a file for each rule."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from pef_schema import Call, PefInvalid, Program, Section, SectionKind, Step, verify
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import custom, inference, moments, nothing, training


@pytest.mark.parametrize("program", [training(), inference(), custom(), moments(), nothing()])
def test_good_programs(program: Program) -> None:
    verify(program)


def test_all_problems_of_all_steps_at_once() -> None:
    program = edit(training(), "sections.0.steps.0", reads=(0, 3, 9))
    program = edit(program, "sections.1.steps.0", reads=(0, 4))
    program = edit(program, "sections.3.steps.0", reads=(1, 2, 7))
    with pytest.raises(PefInvalid) as caught:
        verify(program)
    assert caught.value.problems == (
        "section 0 (net.fwd) FWD: it uses but does not read 1 (w)",
        "section 1 (net.bckwd) BCKWD: it starts from but does not read gradients 6 (loss__grad)",
        "section 3 (opt) OPT: it needs but does not read 8 (lr)",
    )


def test_a_step_may_read_more_than_it_takes() -> None:
    verify(edit(training(), "sections.0.steps.0", reads=(0, 1, 2, 3, 7, 9)))


def test_a_section_may_be_called_again() -> None:
    calls = training().schedules[0].calls
    verify(edit(training(), "schedules.0", calls=(*calls, Call(call_id=99, section=0))))


def test_parts_of_an_optimizer_in_several_steps() -> None:
    """Of a parameter that a step does not write it needs nothing."""
    program = training()
    step = replace(program.sections[3].steps[0], reads=(8,), writes=())
    verify(replace(program, sections=(*program.sections, _section("other_opt", step, 4))))


def _section(name: str, step: Step, index: int) -> Section:
    return Section(name=name, steps=(step,), twin=index)


def test_time_in_proportion_to_the_program() -> None:
    """A node in every step, an output in every step, a section in every call: none multiplies."""
    program = training()
    graph = program.graphs[0]
    wide = replace(graph.nodes[0], args=((graph.nodes[0].args[0],) * 20_000,), outputs=(-1,))
    step = Step(kind=SectionKind.FWD, graph=0, nodes=(3,), reads=(0,))
    program = edit(program, "graphs.0", nodes=(*graph.nodes, wide))
    sections = [_section(f"s{i}", step, 4) for i in range(4, 8_000)]
    calls = [Call(call_id=100 + i, section=4) for i in range(20_000)]
    program = replace(program, sections=(*program.sections, *sections))
    program = edit(program, "schedules.0", calls=(*program.schedules[0].calls, *calls))
    start = time.process_time()
    with pytest.raises(PefInvalid, match=r"nodes \[3\] are run by an earlier step"):
        verify(program)
    assert time.process_time() - start < 10.0

"""When regions are alive along a schedule."""

from __future__ import annotations

import dataclasses

from pef_schema import Call, Program, Schedule, Section, SectionKind, Step
from pef_schema.program_facts import Life, lives
from tests.pef_schema.samples import training


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

"""Names that the command line of the bench offers are those of what it runs."""

from __future__ import annotations

import argparse

from bench import commands, models, names
from bench.__main__ import _parser


def test_names_are_those_of_the_cases_and_the_suites() -> None:
    assert tuple(models.CASES) == names.CASES
    assert tuple(models.TIMED) == names.TIMED
    assert tuple(models.SMALL) == names.SMALL
    assert tuple(commands.SUITES) == names.SUITES


def test_every_command_does_something() -> None:
    (group,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    actions = [parser.get_default("action") for parser in group.choices.values()]
    assert sorted(actions) == commands.__all__

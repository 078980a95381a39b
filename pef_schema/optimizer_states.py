"""The states of a program's optimizers: what each is, what it starts from, when nobody needs it."""

from __future__ import annotations

from pef_schema.optimizer_rules import OPTIMIZER_RULES, StateRule, state_rules
from pef_schema.program import Optimizer


def states_of(optimizer: Optimizer) -> tuple[StateRule, ...]:
    """The states that an optimizer of a program keeps for each parameter.

    Args:
        optimizer: The optimizer.

    Returns:
        As :func:`state_rules`.
    """
    return state_rules(optimizer.kind, dict(optimizer.options))


def first_values(optimizer: Optimizer) -> dict[int, float]:
    """What states hold before the first step, where that is not 0.

    Args:
        optimizer: An optimizer of a verified program.

    Returns:
        Numbers by region.
    """
    options = dict(optimizer.options)
    numbers: dict[int, float] = {}
    for position, state in enumerate(states_of(optimizer)):
        first = options.get(state.first, 0.0) if isinstance(state.first, str) else state.first
        if first:
            numbers |= {param.states[position]: first for param in optimizer.params}
    return numbers


def idle_states(optimizer: Optimizer) -> frozenset[int]:
    """Regions that an optimizer neither reads nor writes while its momentum is 0.

    Args:
        optimizer: An optimizer of a verified program.

    Returns:
        Its momentum, and its count of steps if nothing else needs one.
    """
    places = [i for i, state in enumerate(states_of(optimizer)) if state.idle_without == "momentum"]
    regions = {param.states[place] for place in places for param in optimizer.params}
    if not OPTIMIZER_RULES[optimizer.kind].counts:
        regions.add(optimizer.step)
    return frozenset(regions)

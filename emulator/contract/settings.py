"""Optimizers against their update rules: the settings that these read."""

from __future__ import annotations

from collections.abc import Iterator

from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.program import Optimizer


def setting_problems(optimizer: Optimizer) -> Iterator[str]:
    """What an optimizer lacks.

    Args:
        optimizer: An optimizer of a verified program.

    Returns:
        Reasons why the device cannot run it.
    """
    rule = OPTIMIZER_RULES[optimizer.kind]
    for what, wanted, given in (
        ("option", rule.options, optimizer.options),
        ("argin", rule.argins, optimizer.argins),
    ):
        absent = [name for name in wanted if name not in dict(given)]
        if absent:
            yield f"no {what} {', '.join(absent)}, which {optimizer.kind.name} reads"

"""What an optimizer takes for each element that it updates: the operations of its update rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from emulator.op_facts.flops import Flops
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.program import Optimizer, Program, Role, SectionKind, Step

__all__ = ["keeps_no_momentum", "update_flops"]

_OPTIONS: Mapping[str, int] = MappingProxyType(
    {"amsgrad": 1, "centered": 5, "decoupled_weight_decay": -1, "maximize": 1}
)
"""What an option adds where it is set. Nesterov's adds 2 to momentum alone."""

_NORM_PER_ELEMENT = 3
"""Of a gradient whose norm is limited: its square, the sum, the product with the factor."""


def keeps_no_momentum(program: Program, optimizer: Optimizer) -> bool:
    """Whether an optimizer starts without momentum: its buffers are then neither read nor written.

    Args:
        program: The program, whose argins have the momentum.
        optimizer: The optimizer.
    """
    if "momentum" not in OPTIMIZER_RULES[optimizer.kind].argins:
        return False
    region = dict(optimizer.argins).get("momentum", -1)
    return all(argin.default == 0 for argin in program.argins if argin.region == region)


def update_flops(program: Program, step: Step) -> Flops:
    """What a step takes that is of no graph: ZEROGRAD, REDUCE, GRADNORM, OPT.

    Args:
        program: The program.
        step: The step.

    Returns:
        Its operations.
    """
    if step.kind is SectionKind.GRADNORM:
        elements = sum(
            math.prod(program.regions[r].shape)
            for r in step.reads
            if program.regions[r].role is Role.GRADIENT
        )
        return Flops(other=_NORM_PER_ELEMENT * elements)
    if step.kind is not SectionKind.OPT:
        return Flops()
    written, other = set(step.writes), 0
    for index in step.optimizers:
        optimizer = program.optimizers[index]
        elements = sum(
            math.prod(program.regions[p.weight].shape)
            for p in optimizer.params
            if p.weight in written
        )
        other += _per_element(program, optimizer) * elements
    return Flops(other=other)


def _per_element(program: Program, optimizer: Optimizer) -> int:
    rule, options = OPTIMIZER_RULES[optimizer.kind], dict(optimizer.options)
    more = sum(count for name, count in _OPTIONS.items() if options.get(name))
    if rule.momentum_flops and not keeps_no_momentum(program, optimizer):
        more += rule.momentum_flops + (2 if options.get("nesterov") else 0)
    return rule.flops + more

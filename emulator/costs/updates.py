"""What an optimizer takes for each element that it updates: the operations of its update rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from emulator.op_facts.flops import Flops
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.program import Optimizer, Program, Role, SectionKind, Step

__all__ = ["keeps_no_momentum", "update_flops"]

_PER_ELEMENT: Mapping[str, int] = MappingProxyType(
    {
        # Weight decay 2, learning rate 2.
        "SGD": 4,
        # Weight decay 2, first moment 3, second 4, denominator 3, step 3.
        "ADAM": 15,
        # The same with the decay as one product of the weight.
        "ADAMW": 14,
        # The same as Adam, with a choice for each moment.
        "QADAM": 17,
        # Weight decay 2, mean square 4, denominator 2, step 3.
        "RMSPROP": 11,
        # Weight decay 2, sum of squares 2, denominator 2, step 3.
        "ADAGRAD": 9,
        # Weight decay 2, mean squares of gradients and of changes 4 each, change 6, step 2.
        "ADADELTA": 18,
        # Weight decay 2, mean 3, norm 4, step 3.
        "ADAMAX": 12,
        # Weight decay 2, mean 3, mean square 4, denominator 3, steps by gradient and mean 3 each.
        "NADAM": 18,
        # Weight decay 2, mean 3, mean square 4, plain change 2, rectified one 5, choice and step 2.
        "RADAM": 18,
    }
)
"""By name of the kind, without momentum."""

_MOMENTUM: Mapping[str, int] = MappingProxyType({"SGD": 3, "RMSPROP": 2})
"""What momentum adds, by name of the kind."""

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
        Its operations; the name of an update rule of which nobody has said what it takes.
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
    written, other, unknown = set(step.writes), 0, set[str]()
    for index in step.optimizers:
        optimizer = program.optimizers[index]
        each = _per_element(program, optimizer)
        if each is None:
            unknown.add(f"optimizer {optimizer.kind.name.lower()}")
            continue
        elements = sum(
            math.prod(program.regions[p.weight].shape)
            for p in optimizer.params
            if p.weight in written
        )
        other += each * elements
    return Flops(other=other, unknown=tuple(sorted(unknown)))


def _per_element(program: Program, optimizer: Optimizer) -> int | None:
    each = _PER_ELEMENT.get(optimizer.kind.name)
    if each is None:
        return None
    options = dict(optimizer.options)
    more = sum(count for name, count in _OPTIONS.items() if options.get(name))
    if optimizer.kind.name in _MOMENTUM and not keeps_no_momentum(program, optimizer):
        more += _MOMENTUM[optimizer.kind.name] + (2 if options.get("nesterov") else 0)
    return each + more

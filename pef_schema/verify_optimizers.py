"""Rules of what optimizers and argins hold: settings, states and counts that their kinds know."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pef_schema.optimizer_rules import FINITE, OPTIMIZER_RULES, RATE, Range, states_of
from pef_schema.program import Argin, ArginKind, DType, Optimizer, Program, Role
from pef_schema.verify_rules import Report

_SEED: Range = (
    lambda value: -(2.0**63) <= value < 2.0**64 and value == int(value),
    "a whole number that torch.manual_seed takes",
)

# torch checks hyperparameters when an optimizer is made, and runs with any number that is written
# to param_groups later: a negative learning rate climbs.
_DEFAULTS: Mapping[ArginKind, Range] = {
    ArginKind.LR: FINITE,
    ArginKind.MOMENTUM: FINITE,
    ArginKind.WEIGHT_DECAY: FINITE,
    ArginKind.DROPOUT_RATE: RATE,
    ArginKind.DROPOUT_SEED: _SEED,
}


def check_settings(program: Program, report: Report) -> None:
    """Check what optimizers and argins hold.

    Args:
        program: A program whose indices are in range.
        report: Receives the problems.
    """
    argins: dict[int, Argin] = {}
    for index, argin in enumerate(program.argins):
        if not _within(_DEFAULTS[argin.kind], argin.default):
            wanted = _DEFAULTS[argin.kind][1]
            report.add(f"argin {index} ({argin.name[:80]}): default {argin.default}, not {wanted}")
        if argins.setdefault(argin.region, argin) is not argin:
            report.add(f"argin {index} ({argin.name[:80]}): region {argin.region} has one already")
    held: set[int] = set()
    for index, optimizer in enumerate(program.optimizers):
        where = f"optimizer {index} ({optimizer.kind.name})"
        _check_settings(optimizer, argins, where, report)
        _check_count(program, optimizer, where, report)
        _check_states(program, optimizer, held, where, report)


def _within(bounds: Range, value: float) -> bool:
    return math.isfinite(value) and bounds[0](value)


def _check_settings(
    optimizer: Optimizer, argins: dict[int, Argin], where: str, report: Report
) -> None:
    rule = OPTIMIZER_RULES[optimizer.kind]
    for name, value in optimizer.options:
        bounds = rule.options.get(name)
        if bounds is None:
            report.add(f"{where}: no option {name[:80]}, there are {', '.join(rule.options)}")
        elif not _within(bounds, value):
            report.add(f"{where}: option {name} is {value}, not {bounds[1]}")
    for name, region in optimizer.argins:
        kind = rule.argins.get(name)
        if kind is None:
            report.add(f"{where}: no argin {name[:80]}, there are {', '.join(rule.argins)}")
        elif region not in argins:
            report.add(f"{where}: its {name} is region {region}, which no argin sets")
        elif argins[region].kind is not kind:
            found = argins[region].kind.name
            report.add(f"{where}: its {name} is set by an argin of kind {found}")


def _check_count(program: Program, optimizer: Optimizer, where: str, report: Report) -> None:
    if optimizer.step >= 0:
        region = program.regions[optimizer.step]
        if region.role is not Role.OPTIMIZER_STATE or region.dtype is not DType.FLOAT32:
            report.add(
                f"{where}: its step count is {region.role.name} {region.dtype.name}, "
                "wanted OPTIMIZER_STATE FLOAT32"
            )
    elif OPTIMIZER_RULES[optimizer.kind].counts or dict(optimizer.options).get("dampening"):
        report.add(f"{where}: it has no region for its step count")


def _check_states(
    program: Program, optimizer: Optimizer, held: set[int], where: str, report: Report
) -> None:
    """Check the parameters: states of the right number and types, each of one parameter alone."""
    rules = states_of(optimizer)
    regions = program.regions
    for number, param in enumerate(optimizer.params):
        place = f"{where} param {number}"
        if len(param.states) != len(rules):
            report.add(f"{place}: {len(param.states)} states, wanted {len(rules)}")
        weight = regions[param.weight]
        if not weight.dtype.has_gradient:
            report.add(
                f"{place}: weight {param.weight} is {weight.dtype.name}, wanted a floating type or "
                "a complex one"
            )
        numbers = {
            state for state, rule in zip(param.states, rules, strict=False) if rule.is_number
        }
        for region in (param.grad, *param.states):
            dtype = regions[region].dtype
            if region in numbers and dtype is not DType.FLOAT32:
                report.add(f"{place}: region {region} is {dtype.name}, a number is FLOAT32")
            elif region not in numbers and dtype is not weight.dtype:
                report.add(
                    f"{place}: region {region} is {dtype.name}, its weight {weight.dtype.name}"
                )
            if region in held or region == optimizer.step:
                report.add(f"{place}: region {region} is another parameter's too")
            held.add(region)

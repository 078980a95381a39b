"""Rules of what optimizers and argins hold: settings, states and counts that their kinds know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pef_schema.program import (
    Argin,
    ArginKind,
    DType,
    Optimizer,
    OptimizerKind,
    Program,
    Role,
)
from pef_schema.verify_rules import Report

_Range = tuple[Callable[[float], bool], str]

_FRACTION: _Range = (lambda value: 0.0 <= value < 1.0, "a number from 0 to below 1")
_NOT_NEGATIVE: _Range = (lambda value: 0.0 <= value < math.inf, "a finite number from 0 up")
_FINITE: _Range = (math.isfinite, "a finite number")
_SWITCH: _Range = (lambda value: value in (0.0, 1.0), "0 or 1")
_RATE: _Range = (lambda value: 0.0 <= value <= 1.0, "a number from 0 to 1")
_SEED: _Range = (
    lambda value: -(2.0**63) <= value < 2.0**64 and value == int(value),
    "a whole number that torch.manual_seed takes",
)

_ADAM_OPTIONS: Mapping[str, _Range] = {
    "amsgrad": _SWITCH,
    "beta1": _FRACTION,
    "beta2": _FRACTION,
    "eps": _NOT_NEGATIVE,
    "maximize": _SWITCH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRule:
    """The settings of an optimizer of one kind.

    Args:
        options: Its options, with what each may be.
        argins: Its hyperparameters, with the kind of argin that each is.
        states: How many states each of its parameters has, ``amsgrad`` aside.
        counts: Whether it counts its steps in any case.
    """

    options: Mapping[str, _Range]
    argins: Mapping[str, ArginKind]
    states: int
    counts: bool


_ADAM = OptimizerRule(
    options=_ADAM_OPTIONS,
    argins={"lr": ArginKind.LR, "weight_decay": ArginKind.WEIGHT_DECAY},
    states=2,
    counts=True,
)
OPTIMIZER_RULES: Mapping[OptimizerKind, OptimizerRule] = {
    OptimizerKind.SGD: OptimizerRule(
        options={"dampening": _FINITE, "maximize": _SWITCH, "nesterov": _SWITCH},
        argins={
            "lr": ArginKind.LR,
            "momentum": ArginKind.MOMENTUM,
            "weight_decay": ArginKind.WEIGHT_DECAY,
        },
        states=1,
        counts=False,
    ),
    OptimizerKind.ADAM: _ADAM,
    OptimizerKind.ADAMW: _ADAM,
    OptimizerKind.QADAM: OptimizerRule(
        options={
            "beta1": _FRACTION,
            "beta2": _FRACTION,
            "eps": _NOT_NEGATIVE,
            "warmup_steps": _NOT_NEGATIVE,
        },
        argins=_ADAM.argins,
        states=2,
        counts=True,
    ),
}
"""What an optimizer of each kind has."""

# torch checks hyperparameters when an optimizer is made, and runs with any number that is written
# to param_groups later: a negative learning rate climbs.
_DEFAULTS: Mapping[ArginKind, _Range] = {
    ArginKind.LR: _FINITE,
    ArginKind.MOMENTUM: _FINITE,
    ArginKind.WEIGHT_DECAY: _FINITE,
    ArginKind.DROPOUT_RATE: _RATE,
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


def _within(bounds: _Range, value: float) -> bool:
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
    wanted = OPTIMIZER_RULES[optimizer.kind].states
    wanted += dict(optimizer.options).get("amsgrad") == 1.0
    regions = program.regions
    for number, param in enumerate(optimizer.params):
        place = f"{where} param {number}"
        if len(param.states) != wanted:
            report.add(f"{place}: {len(param.states)} states, wanted {wanted}")
        dtype = regions[param.weight].dtype
        if not dtype.is_floating:
            report.add(f"{place}: weight {param.weight} is {dtype.name}, wanted a floating type")
        for region in (param.grad, *param.states):
            if regions[region].dtype is not dtype:
                report.add(
                    f"{place}: region {region} is {regions[region].dtype.name}, "
                    f"its weight {dtype.name}"
                )
            if region in held or region == optimizer.step:
                report.add(f"{place}: region {region} is another parameter's too")
            held.add(region)

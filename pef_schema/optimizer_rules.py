"""What an optimizer of each kind has: options, hyperparameters, states and a count of its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pef_schema.program import ArginKind, Optimizer, OptimizerKind

Range = tuple[Callable[[float], bool], str]
"""Whether a number may stand somewhere, and what may."""

FINITE: Range = (math.isfinite, "a finite number")
RATE: Range = (lambda value: 0.0 <= value <= 1.0, "a number from 0 to 1")
_FRACTION: Range = (lambda value: 0.0 <= value < 1.0, "a number from 0 to below 1")
_NOT_NEGATIVE: Range = (lambda value: 0.0 <= value < math.inf, "a finite number from 0 up")
_SWITCH: Range = (lambda value: value in (0.0, 1.0), "0 or 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRule:
    """A state that an optimizer keeps for each of its parameters.

    Args:
        name: Its name, which names its region.
        option: The switch that it is kept for; empty if it is kept in any case.
        idle_without: The hyperparameter at whose 0 nobody reads or writes it; empty for none.
        is_number: Whether it is one number, 0-d and float32, instead of its weight's form.
        first: What it holds before the first step, or the option that says so.
        host_name: torch's name of it, where that is another.
    """

    name: str
    option: str = ""
    idle_without: str = ""
    is_number: bool = False
    first: float | str = 0.0
    host_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRule:
    """What an optimizer of one kind has.

    Args:
        host: Its class on the host, by module and name.
        options: Its options, with what each may be.
        argins: Its hyperparameters, with the kind of argin that each is.
        states: The states of each of its parameters, in order.
        flops: Operations of its update rule for each element, without momentum.
        momentum_flops: What momentum adds to them.
        counts: Whether it counts its steps in any case; else a count belongs to its momentum.
        since: The first version of the format that knows it.
    """

    host: str
    options: Mapping[str, Range]
    argins: Mapping[str, ArginKind]
    states: tuple[StateRule, ...]
    flops: int
    momentum_flops: int = 0
    counts: bool = True
    since: int = 1


_LR_AND_DECAY: Mapping[str, ArginKind] = {
    "lr": ArginKind.LR,
    "weight_decay": ArginKind.WEIGHT_DECAY,
}
_WITH_MOMENTUM: Mapping[str, ArginKind] = {
    "lr": ArginKind.LR,
    "momentum": ArginKind.MOMENTUM,
    "weight_decay": ArginKind.WEIGHT_DECAY,
}
_MOMENTUM = StateRule(name="momentum", idle_without="momentum", host_name="momentum_buffer")
_MOMENTS = (StateRule(name="exp_avg"), StateRule(name="exp_avg_sq"))
_BETAS: Mapping[str, Range] = {"beta1": _FRACTION, "beta2": _FRACTION, "eps": _NOT_NEGATIVE}

_ADAM = OptimizerRule(
    host="torch.optim.Adam",
    options={"amsgrad": _SWITCH, **_BETAS, "maximize": _SWITCH},
    argins=_LR_AND_DECAY,
    states=(*_MOMENTS, StateRule(name="max_exp_avg_sq", option="amsgrad")),
    flops=15,  # weight decay 2, first moment 3, second 4, denominator 3, step 3
)
OPTIMIZER_RULES: Mapping[OptimizerKind, OptimizerRule] = {
    OptimizerKind.SGD: OptimizerRule(
        host="torch.optim.SGD",
        options={"dampening": FINITE, "maximize": _SWITCH, "nesterov": _SWITCH},
        argins=_WITH_MOMENTUM,
        states=(_MOMENTUM,),
        flops=4,  # weight decay 2, step 2
        momentum_flops=3,
        counts=False,
    ),
    OptimizerKind.ADAM: _ADAM,
    # The decay is one product of the weight.
    OptimizerKind.ADAMW: replace(_ADAM, host="torch.optim.AdamW", flops=14),
    OptimizerKind.QADAM: OptimizerRule(
        host="samba.optim.qadam.QAdamOptimizer",
        options={**_BETAS, "warmup_steps": _NOT_NEGATIVE},
        argins=_LR_AND_DECAY,
        states=_MOMENTS,
        flops=17,  # Adam's, and a choice for each moment
    ),
    OptimizerKind.RMSPROP: OptimizerRule(
        host="torch.optim.RMSprop",
        options={
            "alpha": _NOT_NEGATIVE,
            "centered": _SWITCH,
            "eps": _NOT_NEGATIVE,
            "maximize": _SWITCH,
        },
        argins=_WITH_MOMENTUM,
        states=(
            StateRule(name="square_avg"),
            StateRule(name="grad_avg", option="centered"),
            _MOMENTUM,
        ),
        flops=11,  # weight decay 2, mean square 4, denominator 2, step 3
        momentum_flops=2,
        since=3,
    ),
    OptimizerKind.ADAGRAD: OptimizerRule(
        host="torch.optim.Adagrad",
        options={
            "eps": _NOT_NEGATIVE,
            "initial_accumulator_value": _NOT_NEGATIVE,
            "lr_decay": _NOT_NEGATIVE,
            "maximize": _SWITCH,
        },
        argins=_LR_AND_DECAY,
        states=(StateRule(name="sum", first="initial_accumulator_value"),),
        flops=9,  # weight decay 2, sum of squares 2, denominator 2, step 3
        since=3,
    ),
    OptimizerKind.ADADELTA: OptimizerRule(
        host="torch.optim.Adadelta",
        options={"eps": _NOT_NEGATIVE, "maximize": _SWITCH, "rho": RATE},
        argins=_LR_AND_DECAY,
        states=(StateRule(name="square_avg"), StateRule(name="acc_delta")),
        flops=18,  # weight decay 2, mean squares 4 each, change 6, step 2
        since=3,
    ),
    OptimizerKind.ADAMAX: OptimizerRule(
        host="torch.optim.Adamax",
        options={**_BETAS, "maximize": _SWITCH},
        argins=_LR_AND_DECAY,
        states=(StateRule(name="exp_avg"), StateRule(name="exp_inf")),
        flops=12,  # weight decay 2, mean 3, norm 4, step 3
        since=3,
    ),
    OptimizerKind.NADAM: OptimizerRule(
        host="torch.optim.NAdam",
        options={
            **_BETAS,
            "decoupled_weight_decay": _SWITCH,
            "maximize": _SWITCH,
            "momentum_decay": _NOT_NEGATIVE,
        },
        argins=_LR_AND_DECAY,
        states=(*_MOMENTS, StateRule(name="mu_product", is_number=True, first=1.0)),
        # Weight decay 2, mean 3, mean square 4, denominator 3, steps by gradient and mean 3 each.
        flops=18,
        since=3,
    ),
    OptimizerKind.RADAM: OptimizerRule(
        host="torch.optim.RAdam",
        options={**_BETAS, "decoupled_weight_decay": _SWITCH, "maximize": _SWITCH},
        argins=_LR_AND_DECAY,
        states=_MOMENTS,
        # Weight decay 2, mean 3, mean square 4, plain change 2, rectified 5, choice and step 2.
        flops=18,
        since=3,
    ),
}
"""What an optimizer of each kind has."""


def settings_of(rule: OptimizerRule) -> tuple[str, ...]:
    """The settings of a parameter group that a PEF holds as options, by torch's names.

    Args:
        rule: What the optimizer has.

    Returns:
        Names of settings. What a state starts from is none: torch takes it from the optimizer.

    Example:
        >>> settings_of(OPTIMIZER_RULES[OptimizerKind.ADAMAX])
        ('betas', 'eps', 'maximize')
    """
    firsts = {state.first for state in rule.states}
    names = ("betas" if n in ("beta1", "beta2") else n for n in rule.options if n not in firsts)
    return tuple(dict.fromkeys(names))


def state_rules(kind: OptimizerKind, options: Mapping[str, float]) -> tuple[StateRule, ...]:
    """The states that an optimizer keeps for each parameter.

    Args:
        kind: Its kind.
        options: Its options.

    Returns:
        A rule for each of ``OptimizerParam.states``, in their order.

    Example:
        >>> [s.name for s in state_rules(OptimizerKind.RMSPROP, {"centered": 0.0})]
        ['square_avg', 'momentum']
    """
    states = OPTIMIZER_RULES[kind].states
    return tuple([s for s in states if not s.option or options.get(s.option) == 1.0])


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
    found: dict[int, float] = {}
    for position, state in enumerate(states_of(optimizer)):
        first = options.get(state.first, 0.0) if isinstance(state.first, str) else state.first
        if first:
            found |= {param.states[position]: first for param in optimizer.params}
    return found


def idle_states(optimizer: Optimizer) -> frozenset[int]:
    """Regions that an optimizer neither reads nor writes while its momentum is 0.

    Args:
        optimizer: An optimizer of a verified program.

    Returns:
        Its momentum, and its count of steps if nothing else needs one.
    """
    places = [i for i, state in enumerate(states_of(optimizer)) if state.idle_without == "momentum"]
    found = {param.states[place] for place in places for param in optimizer.params}
    if not OPTIMIZER_RULES[optimizer.kind].counts:
        found.add(optimizer.step)
    return frozenset(found)

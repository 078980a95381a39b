"""The kinds of optimizers, and what each has: options, hyperparameters, states, a count of steps.

Everything that is true of one kind alone stands here and in its update rule. The enum of the
schema, the version of the format and the table in docs/optimizers.md come from here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


class OptimizerKind(enum.IntEnum):
    """Update rules the device knows. A number is never used again."""

    SGD = 1
    ADAM = 2
    ADAMW = 3
    QADAM = 4
    RMSPROP = 5
    ADAGRAD = 6
    ADADELTA = 7
    ADAMAX = 8
    NADAM = 9
    RADAM = 10


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
        argins: Its hyperparameters, by the names of their ``ArginKind`` in small letters.
        states: The states of each of its parameters, in order.
        flops: Operations of its update rule for each element, without momentum.
        momentum_flops: What momentum adds to them.
        option_flops: What an option adds to them where it is set.
        counts: Whether it counts its steps in any case; else a count belongs to its momentum.
        counts_with: The option that it counts for, where it does not in any case.
        since: The first version of the format that knows it.
    """

    host: str
    options: Mapping[str, Range]
    argins: tuple[str, ...]
    states: tuple[StateRule, ...]
    flops: int
    momentum_flops: int = 0
    option_flops: Mapping[str, int] = field(default_factory=dict[str, int])
    counts: bool = True
    counts_with: str = ""
    since: int = 1


_LR_AND_DECAY = ("lr", "weight_decay")
_WITH_MOMENTUM = ("lr", "momentum", "weight_decay")
_MOMENTUM = StateRule(name="momentum", idle_without="momentum", host_name="momentum_buffer")
_MOMENTS = (StateRule(name="exp_avg"), StateRule(name="exp_avg_sq"))
_BETAS: Mapping[str, Range] = {"beta1": _FRACTION, "beta2": _FRACTION, "eps": _NOT_NEGATIVE}

_ADAM = OptimizerRule(
    host="torch.optim.Adam",
    options={"amsgrad": _SWITCH, **_BETAS, "maximize": _SWITCH},
    argins=_LR_AND_DECAY,
    states=(*_MOMENTS, StateRule(name="max_exp_avg_sq", option="amsgrad")),
    flops=15,  # weight decay 2, first moment 3, second 4, denominator 3, step 3
    option_flops={"amsgrad": 1},
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
        counts_with="dampening",
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
        option_flops={"centered": 5},
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
        option_flops={"decoupled_weight_decay": -1},
        since=3,
    ),
    OptimizerKind.RADAM: OptimizerRule(
        host="torch.optim.RAdam",
        options={**_BETAS, "decoupled_weight_decay": _SWITCH, "maximize": _SWITCH},
        argins=_LR_AND_DECAY,
        states=_MOMENTS,
        # Weight decay 2, mean 3, mean square 4, plain change 2, rectified 5, choice and step 2.
        flops=18,
        option_flops={"decoupled_weight_decay": -1},
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


def counts_steps(kind: OptimizerKind, options: Mapping[str, float]) -> bool:
    """Whether an optimizer counts its steps.

    Args:
        kind: Its kind.
        options: Its options.

    Returns:
        Whether it has a region for the count.

    Example:
        >>> [counts_steps(OptimizerKind.SGD, {"dampening": d}) for d in (0.0, 0.5)]
        [False, True]
    """
    rule = OPTIMIZER_RULES[kind]
    return rule.counts or bool(options.get(rule.counts_with))

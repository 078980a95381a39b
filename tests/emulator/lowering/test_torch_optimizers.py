"""A hundred steps of each optimizer, with all of its options.

One program trains a weight for every case, under an optimizer of its own, so that all of them take
one compilation. The loss is linear in the weights: gradients are the batch, to the bit, and what
differs is the update rule's.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from emulator.device import Device
from emulator.errors import CannotRun
from emulator.plans.steps import all_steps
from pef_schema.optimizer_rules import OPTIMIZER_RULES, state_rules
from pef_schema.program import (
    OptimizerKind,
    Program,
    Role,
)
from samba.compiler.build import build_program
from samba.compiler.optimizers import describe_optimizers
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy, view_as_torch
from tests.emulator.lowering.one_rule import OneRule
from tests.emulator.lowering.optimizer_cases import (
    CASES,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
)
from tests.pef_schema.cases import edit
from tests.tracing import trace

STEPS, EARLY = 100, 10
FLOATS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
TOLERANCES = {
    # A hundred updates of weights of order one, each within a few ulps, of which most cancel.
    "float32": 4e-6,
    # NAdam's product is float32, with torch as here, and rounded alike.
    "float64": 1e-12,
    # One rounding to bfloat16 (2**-8) a step on either side, over the first ten steps.
    "bfloat16": 2**-5,
}


NARROW = (
    *("sgd momentum", "adamw", "rmsprop momentum", "adagrad all", "adadelta all"),
    *("adamax all", "nadam all", "radam all"),
)
FAST = [(case, "float32") for case in CASES] + [(case, "bfloat16") for case in NARROW]
"""Cases with the types of their weights, which the fast tests compile."""
WIDE = [(case, "float64") for case in CASES]
Key = tuple[str, str]


def weight_at_first(dtype: str) -> Tensor:
    """What every weight starts from."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(4, 3, generator=generator).to(FLOATS[dtype])


def batches() -> list[Tensor]:
    """The gradients of all steps, numbers that each type holds."""
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(4, 3, generator=generator).bfloat16().float() for _ in range(STEPS)]


class Linear(nn.Module):
    """The gradient of every weight is the batch."""

    def __init__(self, keys: list[Key]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(weight_at_first(d)) for _, d in keys])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([(w * x.to(w.dtype)).sum().float() for w in self.weights]).sum()


def by_torch(cls: type[torch.optim.Optimizer], options: dict[str, Any], dtype: str) -> list[Tensor]:
    """The weight after the first steps and after all, as torch has it."""
    weight = nn.Parameter(weight_at_first(dtype))
    optimizer = cls([weight], **options)
    found = []
    for number, x in enumerate(batches(), 1):
        weight.grad = x.to(weight.dtype)
        optimizer.step()
        if number in (EARLY, STEPS):
            found.append(weight.detach().clone())
    return found


Trained = dict[Key, list[Tensor]]


@pytest.fixture(scope="module")
def trained() -> Trained:
    return by_device(FAST)


@pytest.fixture(scope="module")
def trained_wide() -> Trained:
    return by_device(WIDE)


def by_device(keys: list[Key]) -> Trained:
    """The same on the device, by case and type."""
    model, data = Linear(keys), batches()
    cases = [CASES[case] for case, _ in keys]
    optimizers = [cls([w], **o) for (cls, o), w in zip(cases, model.weights, strict=True)]
    traced = trace(model, (data[0],))
    program = build_program(traced, optimizers, CompileOptions(name="all"))
    device = Device(program)
    homes = []
    for number, weight in enumerate(model.weights):
        homes.append(device.region_of(f"linear__weights__{number}"))
        device.write(homes[-1], view_as_numpy(weight.detach()))
    plan = device.plan(all_steps(program))
    found: Trained = {key: [] for key in keys}
    for number, x in enumerate(data, 1):
        device.write(device.region_of("x"), view_as_numpy(x))
        device.run(plan)
        if number in (EARLY, STEPS):
            for key, home in zip(found, homes, strict=True):
                found[key].append(view_as_torch(device.read(home)))
    assert device.counters.compiles == 1
    return found


def is_close(got: Tensor, want: Tensor, dtype: str) -> bool:
    bound = TOLERANCES[dtype]
    return torch.allclose(got.double(), want.double(), rtol=bound, atol=bound)


@pytest.mark.parametrize(("case", "dtype"), FAST)
def test_a_hundred_steps_follow_torch(trained: Trained, case: str, dtype: str) -> None:
    follow(trained, case, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "dtype"), WIDE)
def test_a_hundred_steps_of_float64(trained_wide: Trained, case: str, dtype: str) -> None:
    follow(trained_wide, case, dtype)


def follow(trained: Trained, case: str, dtype: str) -> None:
    cls, options = CASES[case]
    if dtype == "bfloat16":
        # torch rounds every intermediate result, over a hundred steps further than any bound.
        pairs = [(trained[case, dtype][0], by_torch(cls, options, dtype)[0])]
    else:
        pairs = list(zip(trained[case, dtype], by_torch(cls, options, dtype), strict=True))
    for got, want in pairs:
        assert got.dtype is want.dtype
        bound = TOLERANCES[dtype]
        torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def changed(value: Any) -> list[Any]:
    """An option, a hundredth larger; a pair one by one, a switch the other way, a count by one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, tuple):
        return [
            tuple(v * (1.01 if i == k else 1) for k, v in enumerate(value))
            for i in range(len(value))
        ]
    return [value * 1.01]


OTHERS = [
    (case, name, value)
    for case, (_, options) in CASES.items()
    for name, old in options.items()
    if name not in ("foreach", "fused")
    for value in changed(old)
    # What is never rectified does not go by the squares, and a later end of the warmup not at all.
    if (case, value) not in (("radam never rectified", (0.9, 0.505)), ("qadam warming up", 102))
]


def test_every_option_of_every_optimizer_is_among_the_cases() -> None:
    """But for those that say how torch computes, and the settings of ``samba.optim``."""
    how = {"foreach", "fused", "capturable", "differentiable"}
    how |= {"argin_region_name", "max_grad_norm", "fp32_params"}
    for cls in {cls for cls, _ in CASES.values()}:
        given = {name for other, options in CASES.values() if other is cls for name in options}
        known = set(inspect.signature(cls).parameters) - {"params"}
        assert given - how == known - how, cls.__name__


@pytest.mark.parametrize(("case", "name", "value"), OTHERS)
def test_another_setting_is_found(trained: Trained, case: str, name: str, value: Any) -> None:
    """The comparison bites: a hundredth more of any setting is another result."""
    cls, options = CASES[case]
    want = by_torch(cls, options | {name: value}, "float32")
    assert not is_close(trained[case, "float32"][-1], want[-1], "float32")


# -- states ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_torch(case: str) -> None:
    """By name, form and first value; so each goes to torch and comes from it."""
    cls, options = CASES[case]
    weight = nn.Parameter(torch.zeros(2, 3))
    optimizer = cls([weight], **options)
    (group,) = describe_optimizers([optimizer])
    weight.grad = torch.zeros(2, 3)
    optimizer.step()
    names = {state.host_name or state.name: state for state in group.states}
    if not options.get("momentum"):
        names.pop("momentum_buffer", None)
    theirs = optimizer.state[weight]
    counted = {"step"} if OPTIMIZER_RULES[group.kind].counts else set()
    assert counted | names.keys() == theirs.keys()
    for name, state in names.items():
        assert theirs[name].shape == (() if state.is_number else weight.shape)
        assert theirs[name].dtype is torch.float32
    # Of momentum SGD counts on the device whether the first step was made.
    assert group.has_step == (bool(counted) or bool(options.get("dampening")))


def one_of_each(dtype: torch.dtype) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """A model with a weight for each kind, and optimizers that keep all states there are."""
    makers = [
        lambda p: RMSprop(p, lr=0.1, momentum=0.5, centered=True),
        lambda p: Adagrad(p, initial_accumulator_value=0.25),
        *(Adadelta, Adamax, NAdam, RAdam, AdamW),
        lambda p: Adam(p, amsgrad=True),
        lambda p: SGD(p, lr=0.1, momentum=0.9),
        lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ]
    model = nn.Module()
    model.ws = ws = nn.ParameterList([nn.Parameter(torch.zeros(32, 64).to(dtype)) for _ in makers])
    model.forward = lambda x: sum(nn.functional.linear(x, w).square().mean() for w in ws)
    return model, [make([w]) for make, w in zip(makers, ws, strict=True)]


def program_of(model: nn.Module, optimizers: list[torch.optim.Optimizer], x: Tensor) -> Program:
    return build_program(trace(model, (x,)), optimizers, CompileOptions(name="q"))


def test_bfloat16_states_and_weights_are_overwritten_in_place() -> None:
    model, optimizers = one_of_each(torch.bfloat16)
    program = program_of(model, optimizers, torch.zeros(8, 64).bfloat16())
    device = Device(program)
    for i, region in enumerate(program.regions):
        if region.role is Role.WEIGHT:
            device.write(i, view_as_numpy(torch.zeros(32, 64).bfloat16()))
    text = device.plan(all_steps(program)).executables[0].as_text()
    assert re.search(r"= bf16\[32,64\]\S* fusion\(", text), "the update is looked for by shape"
    assert not re.search(r"= bf16\[32,64\]\S* copy\(", text)


def test_memory_has_first_values_before_any_step_and_after_a_reset() -> None:
    model, optimizers = one_of_each(torch.float32)
    program = program_of(model, optimizers, torch.zeros(8, 64))
    device = Device(program)
    names = {region.name: i for i, region in enumerate(program.regions)}
    total = next(i for name, i in names.items() if name.endswith("adagrad1__sum"))
    product = next(i for name, i in names.items() if name.endswith("nadam4__mu_product"))
    for _ in range(2):
        assert (device.read(total) == 0.25).all() and device.read(product) == 1.0
        for region, value in ((total, 3.0), (product, 0.5)):
            shape = program.regions[region].shape
            device.write(region, np.full(shape, value, np.float32))
            assert (device.read(region) == value).all()
            device.reset(region)


def test_a_setting_that_is_missing_is_named() -> None:
    model, optimizers = one_of_each(torch.float32)
    program = program_of(model, optimizers, torch.zeros(8, 64))
    for index, optimizer in enumerate(program.optimizers):
        for name, _ in optimizer.options:
            rest = tuple(pair for pair in optimizer.options if pair[0] != name)
            if len(state_rules(optimizer.kind, dict(rest))) < len(optimizer.params[0].states):
                continue  # without this option a state would be one too many
            wanted = f"no option {name}, which {optimizer.kind.name} reads"
            with pytest.raises(CannotRun, match=wanted):
                Device(edit(program, f"optimizers.{index}", options=rest))


# -- any options, any shapes -----------------------------------------------------------------


def _rate(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


_COMMON = {"lr": _rate(0.0, 0.1), "weight_decay": _rate(0.0, 0.5), "maximize": st.booleans()}
_BETAS = {"betas": st.tuples(_rate(0.0, 0.99), _rate(0.0, 0.99)), "eps": _rate(1e-3, 0.1)}
OPTIONS: dict[type[torch.optim.Optimizer], dict[str, st.SearchStrategy[Any]]] = {
    SGD: {**_COMMON, "momentum": _rate(0.0, 0.9), "dampening": _rate(0.0, 1.0)},
    Adam: {**_COMMON, **_BETAS, "amsgrad": st.booleans()},
    AdamW: {**_COMMON, **_BETAS, "amsgrad": st.booleans()},
    RMSprop: {
        **_COMMON,
        "alpha": _rate(0.0, 1.0),
        "eps": _rate(0.1, 0.5),
        "momentum": _rate(0.0, 0.9),
    },
    Adagrad: {
        **_COMMON,
        "lr_decay": _rate(0.0, 1.0),
        "initial_accumulator_value": _rate(0.0, 2.0),
        "eps": _rate(1e-3, 0.1),
    },
    Adadelta: {**_COMMON, "rho": _rate(0.0, 1.0), "eps": _rate(1e-3, 0.1)},
    Adamax: {**_COMMON, **_BETAS},
    NAdam: {
        **_COMMON,
        **_BETAS,
        "momentum_decay": _rate(0.0, 1.0),
        "decoupled_weight_decay": st.booleans(),
    },
    RAdam: {**_COMMON, **_BETAS, "decoupled_weight_decay": st.booleans()},
}


@pytest.mark.parametrize("cls", OPTIONS)
@settings(max_examples=5, deadline=None, database=None)
@given(data=st.data())
def test_any_options_and_shapes_follow_torch(cls: type[torch.optim.Optimizer], data: Any) -> None:
    """The rule alone, in float64, operation by operation, so that nothing is compiled again."""
    options = data.draw(st.fixed_dictionaries(OPTIONS[cls]))
    shape = data.draw(st.sampled_from([(), (0, 3), (1,), (2, 3)]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    optimizer = cls([weight], **options)
    (group,) = describe_optimizers([optimizer])
    device = OneRule(group, weight)
    for _ in range(6):
        weight.grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        device.step(weight.grad)
        optimizer.step()
    torch.testing.assert_close(device.weight(), weight.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", OptimizerKind)
def test_rules_say_where_a_state_starts(kind: OptimizerKind) -> None:
    """An option that a first value comes from is one, and so is the switch of a state."""
    rule = OPTIMIZER_RULES[kind]
    for state in rule.states:
        assert not state.option or state.option in rule.options
        assert not isinstance(state.first, str) or state.first in rule.options
        assert not state.idle_without or state.idle_without in rule.argins

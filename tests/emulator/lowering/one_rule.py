"""One weight under one update rule, without a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from emulator.lowering.update_rules import update
from emulator.lowering.variant import Variant
from emulator.trace_settings import wide_types
from pef_schema.optimizer_states import first_values
from pef_schema.program import (
    DType,
    Optimizer,
    OptimizerParam,
    Program,
    Region,
    Role,
    SectionKind,
    Step,
)
from samba.compiler.optimizers import GroupSpec


class OneRule:
    """One weight under one update rule, without a plan.

    Args:
        group: The optimizer, described.
        weight: The weight that it starts from.
    """

    def __init__(self, group: GroupSpec, weight: Tensor) -> None:
        count = len(group.states)
        names = ["weight", "grad", *(state.name for state in group.states), "step"]
        names += [name for _, name, _ in group.argins]
        self.optimizer = Optimizer(
            name="o",
            kind=group.kind,
            params=(OptimizerParam(weight=0, grad=1, states=tuple(range(2, 2 + count))),),
            argins=tuple((name, 3 + count + i) for i, (_, name, _) in enumerate(group.argins)),
            options=group.options,
            step=2 + count,
        )
        self.written = (0, *self.optimizer.params[0].states, self.optimizer.step)
        self.program = Program(
            name="rule",
            mapping="section",
            inference=False,
            symbols=(),
            graphs=(),
            argins=(),
            sections=(),
            schedules=(),
            regions=tuple(
                Region(name=name, shape=(), dtype=DType.FLOAT64, role=Role.OPTIMIZER_STATE)
                for name in names
            ),
            optimizers=(self.optimizer,),
        )
        first = first_values(self.optimizer)
        self.state: dict[int, Any] = {0: weight.detach().numpy().copy()}
        for place, rule in enumerate(group.states, 2):
            shape = () if rule.is_number else weight.shape
            dtype = np.float32 if rule.is_number else np.float64
            self.state[place] = np.full(shape, first.get(place, 0.0), dtype)
        self.state[2 + count] = np.zeros((), np.float32)
        for place, (_, _, value) in enumerate(group.argins, 3 + count):
            self.state[place] = np.asarray(value, np.float64)
        momentum = dict(self.optimizer.argins).get("momentum")
        idle = momentum is not None and self.state[momentum] == 0.0
        self.variant = Variant(no_momentum=frozenset([0] if idle else []))

    def check(self, failed: bool) -> None:
        """Let the updates from now on ask a check of a branch that failed or did not."""
        region = len(self.program.regions)
        self.state[region] = np.asarray(failed)
        self.variant = replace(self.variant, checks=frozenset([region]))

    def step(self, grad: Tensor) -> None:
        """Update with a gradient."""
        self.state[1] = grad.numpy()
        step = Step(kind=SectionKind.OPT, optimizers=(0,), writes=self.written)
        with wide_types():
            arrays = {region: jnp.asarray(array) for region, array in self.state.items()}
            self.state.update(update(self.program, step, arrays, self.variant))

    def weight(self) -> Tensor:
        """The weight as it is now."""
        return torch.from_numpy(np.array(self.state[0]))

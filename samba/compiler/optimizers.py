"""Optimizers: described as data that the device can execute, with their regions.

``pef_schema.optimizer_rules`` says what an optimizer of each kind has.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pef_schema.errors import SambaError
from pef_schema.optimizer_rules import (
    OPTIMIZER_RULES,
    OptimizerRule,
    StateRule,
    counts_steps,
    state_rules,
)
from pef_schema.printable import some_of
from pef_schema.program import (
    ArginKind,
    DType,
    Optimizer,
    OptimizerKind,
    OptimizerParam,
    Role,
    Value,
)
from samba.compiler.placement import PlacedGraph, RegionTable
from samba.tracer.shared_memory import HeldTensor, refuse_shared_memory
from samba.tracer.traced import Source, Traced


class UnsupportedOptimizer(SambaError):
    """The optimizer's update rule is not known to the device."""

    deviation = "unsupported-optimizer"

    def __init__(self, *, found: str, reason: str = "") -> None:
        self.found = found
        known = ", ".join(cls.__name__ for cls in KINDS)
        super().__init__(
            f"optimizer {found}: {reason or 'the device has no update rule for it'}; "
            f"expected one of {known} (from samba.optim, torch.optim or samba.distributed.bagua). "
            "Use one of these, or compile without an optimizer and step on the host."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One parameter group of an optimizer, before regions are assigned.

    Args:
        name: Unique name such as ``adamw0`` or ``adamw0_group1``.
        owner: Index of the optimizer it belongs to.
        kind: Update rule.
        parameters: The host parameters.
        argins: ``(key in groups, argin name, default)`` rows.
        options: Fixed settings, sorted by name.
        states: States of each parameter, in the order that the rule takes them.
        has_step: Whether the rule counts steps: for bias correction, or to know the first one.
        max_grad_norm: Norm to clip the whole optimizer's gradients to, None for no clipping.
    """

    name: str
    owner: int
    kind: OptimizerKind
    parameters: tuple[torch.Tensor, ...]
    argins: tuple[tuple[str, str, float], ...]
    options: tuple[tuple[str, float], ...]
    states: tuple[StateRule, ...]
    has_step: bool
    max_grad_norm: float | None


KINDS: dict[type[torch.optim.Optimizer], OptimizerKind] = {
    pkgutil.resolve_name(rule.host): kind for kind, rule in OPTIMIZER_RULES.items()
}
"""The kind of each class that the device knows."""

_HALVES = (torch.bfloat16, torch.float16)


def as_optimizers(optimizers: Any) -> tuple[torch.optim.Optimizer, ...]:
    """Turn None, one optimizer or a sequence of them into a tuple.

    Raises:
        UnsupportedOptimizer: If something else is found.
    """
    if optimizers is None:
        return ()
    items = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    for optimizer in items:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UnsupportedOptimizer(found=type(optimizer).__name__, reason="not an optimizer")
    return tuple(items)


def describe_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> list[GroupSpec]:
    """Describe every parameter group of every optimizer.

    Args:
        optimizers: Torch or samba optimizers, in the order users pass them.

    Returns:
        One :class:`GroupSpec` per parameter group.

    Raises:
        UnsupportedOptimizer: If one has no update rule on the device.
    """
    specs: list[GroupSpec] = []
    several = sum(len(o.param_groups) for o in optimizers) > 1
    for owner, optimizer in enumerate(optimizers):
        kind = _kind(optimizer)
        rule = OPTIMIZER_RULES[kind]
        prefix = getattr(optimizer, "argin_region_name", "") or ""
        for index, group in enumerate(optimizer.param_groups):
            name = f"{kind.name.lower()}{owner}" + (f"_group{index}" if index else "")
            options = _options(rule, optimizer, group)
            suffix = f"_group{index}" if index else ""
            label = f"{prefix}{suffix}" if prefix else (name if several else "")
            specs.append(
                GroupSpec(
                    name=name,
                    owner=owner,
                    kind=kind,
                    parameters=tuple(group["params"]),
                    argins=tuple(
                        (key, f"{label}__{key}" if label else key, float(group[key]))
                        for key in rule.argins
                    ),
                    options=tuple(sorted(options.items())),
                    states=state_rules(kind, options),
                    has_step=counts_steps(kind, options),
                    max_grad_norm=getattr(optimizer, "max_grad_norm", None),
                )
            )
    return specs


def lost_copies(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """What to tell of optimizers that ask for float32 copies of parameters of fewer bits.

    Args:
        optimizers: Torch or samba optimizers.

    Returns:
        A warning; empty where none asks, or all parameters are float32 themselves.
    """
    narrow = {
        str(parameter.dtype).removeprefix("torch."): None
        for optimizer in optimizers
        if getattr(optimizer, "fp32_params", False)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and parameter.dtype in _HALVES
    }
    if not narrow:
        return ""
    return (
        f"fp32_params=True: the device keeps no float32 copy of {some_of(list(narrow))} "
        "parameters, and rounds them after each update. Leave the model in float32 and compile it "
        "with --graphamp-preset mp4, which computes in bfloat16"
    )


def _kind(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    for cls in type(optimizer).__mro__:  # AdamW before Adam, whose subclass it is
        if cls in KINDS:
            _refuse_own_step(optimizer, cls)
            kind = KINDS[cls]
            return _adam_kind(optimizer) if kind is OptimizerKind.ADAM else kind
    raise UnsupportedOptimizer(found=type(optimizer).__name__)


def _options(
    rule: OptimizerRule, optimizer: torch.optim.Optimizer, group: dict[str, Any]
) -> dict[str, float]:
    """Options of a group: its settings, or attributes of the optimizer that it lacks."""
    settings: dict[str, Any] = vars(optimizer) | group
    if "beta1" in rule.options:
        settings["beta1"], settings["beta2"] = group["betas"]
    for state in rule.states:
        if isinstance(state.first, str):
            # torch fills all states with the optimizer's own value, whatever a group says.
            settings[state.first] = optimizer.defaults[state.first]
    return {name: float(settings[name]) for name in rule.options}


def _refuse_own_step(optimizer: torch.optim.Optimizer, cls: type[torch.optim.Optimizer]) -> None:
    """Refuse a subclass that steps otherwise: the device would step as its base does."""
    step = inspect.unwrap(type(optimizer).step)
    if not step.__module__.startswith(("torch.optim.", "samba.")):
        raise UnsupportedOptimizer(
            found=type(optimizer).__name__,
            reason=f"it is a {cls.__name__} with a step() of its own "
            f"({step.__code__.co_filename}:{step.__code__.co_firstlineno})",
        )


def _adam_kind(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """``Adam(decoupled_weight_decay=True)`` is AdamW."""
    groups = optimizer.param_groups
    decoupled = {bool(group.get("decoupled_weight_decay", False)) for group in groups}
    if len(decoupled) > 1:
        raise UnsupportedOptimizer(
            found=type(optimizer).__name__,
            reason="only some of its parameter groups have decoupled_weight_decay",
        )
    return OptimizerKind.ADAMW if decoupled == {True} else OptimizerKind.ADAM


class StaleParameter(SambaError):
    """An optimizer holds a parameter that the model does not have."""

    deviation = "stale-parameter"

    def __init__(self, *, optimizer: str, count: int) -> None:
        self.optimizer, self.count = optimizer, count
        super().__init__(
            f"optimizer {optimizer}: {count} of its parameters are not parameters of the model "
            "that is compiled; build the optimizer from model.parameters() again after replacing "
            "parameters"
        )


def refuse_shared_weights(traced: Traced, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise if torch would train a parameter of a model with another one.

    Args:
        traced: The model's trace.
        optimizers: What trains its parameters on the device.

    Raises:
        SharedMemory: If a parameter that is trained shows elements of another tensor of the graph.
    """
    trained = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    held = [
        HeldTensor(
            path=source.path or source.name,
            tensor=source.tensor,
            changes=source.requires_grad and id(source.tensor) in trained,
        )
        for source in traced.sources
        if source.tensor is not None and source.role is not Role.INPUT
    ]
    refuse_shared_memory(held, traced.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedGraph:
    """A graph, and the optimizers that update its weights.

    Args:
        placed: The graph with all its regions.
        groups: Parameter groups of the optimizers as they were described.
        optimizers: The same with their regions.
    """

    placed: PlacedGraph
    groups: tuple[GroupSpec, ...]
    optimizers: tuple[Optimizer, ...]


def place_optimizers(
    optimizers: Sequence[torch.optim.Optimizer],
    placed: PlacedGraph,
    table: RegionTable,
    *,
    inference: bool,
) -> UpdatedGraph:
    """Give every parameter group regions for its states and argins.

    Parameters that no gradient reaches are left out, as torch leaves out those
    whose ``grad`` is None.

    Args:
        optimizers: Torch or samba optimizers, in the order users pass them.
        placed: The graph of the model, with the regions of weights and gradients.
        table: Region table to add to.
        inference: Whether nothing is updated; optimizers must be known to the device all the same.

    Returns:
        The graph with an optimizer for each group.

    Raises:
        UnsupportedOptimizer: If one has no update rule on the device.
        StaleParameter: If an optimizer's parameter is not in the model.
    """
    groups = describe_optimizers(optimizers)
    if inference:
        return UpdatedGraph(placed=placed, groups=(), optimizers=())
    traced = placed.graph.traced
    weights = {id(s.tensor): s for s in traced.sources if s.role is Role.WEIGHT}
    return UpdatedGraph(
        placed=placed,
        groups=tuple(groups),
        optimizers=tuple(
            _optimizer(
                group, [placed.values[s.value] for s in _used(group, weights, traced)], table
            )
            for group in groups
        ),
    )


def _used(group: GroupSpec, weights: dict[int, Source], traced: Traced) -> list[Source]:
    """Find the parameters of a group that ``forward`` uses."""
    stale = [p for p in group.parameters if id(p) not in weights and not traced.knows(p)]
    if stale:
        raise StaleParameter(optimizer=group.name, count=len(stale))
    return [weights[id(p)] for p in group.parameters if id(p) in weights]


def _optimizer(group: GroupSpec, weights: Sequence[Value], table: RegionTable) -> Optimizer:
    params = _params(group, weights, table)
    step = -1
    if group.has_step:
        step = table.add(f"{group.name}__step", (), DType.FLOAT32, Role.OPTIMIZER_STATE)
    return Optimizer(
        name=group.name,
        kind=group.kind,
        params=params,
        argins=_argins(group, table),
        options=group.options,
        step=step,
    )


def _params(
    group: GroupSpec, weights: Sequence[Value], table: RegionTable
) -> tuple[OptimizerParam, ...]:
    params: dict[int, OptimizerParam] = {}
    for value in weights:
        # One that shares its region with an earlier one shares its gradient, too.
        if value.grad_region < 0 or value.region in params:
            continue
        weight = table.regions[value.region]
        states = tuple(
            table.add(
                f"{weight.name}__{group.name}__{state.name}",
                () if state.is_number else weight.shape,
                DType.FLOAT32 if state.is_number else weight.dtype,
                Role.OPTIMIZER_STATE,
            )
            for state in group.states
        )
        params[value.region] = OptimizerParam(
            weight=value.region, grad=value.grad_region, states=states
        )
    return tuple(params.values())


def _argins(group: GroupSpec, table: RegionTable) -> tuple[tuple[str, int], ...]:
    rows = []
    for key, name, default in group.argins:
        region = table.add(name, (), DType.FLOAT64, Role.ARGIN)
        kind = ArginKind[key.upper()]
        table.add_argin(table.regions[region].name, region, kind, default)
        rows.append((key, region))
    return tuple(rows)

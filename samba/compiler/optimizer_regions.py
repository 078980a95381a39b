"""Regions of the optimizers: states, step counts and hyperparameters of each parameter group."""

from __future__ import annotations

from collections.abc import Sequence

from pef_schema.errors import SambaError
from pef_schema.program import DType, Optimizer, OptimizerParam, Role, Value
from samba.compiler.optimizer_groups import ARGIN_KEYS, GroupSpec
from samba.compiler.placed import PlacedGraph
from samba.compiler.regions import RegionTable
from samba.tracer.traced import Source, Traced


class StaleParameter(SambaError):
    """An optimizer holds a parameter that the model does not have."""

    deviation = "stale-parameter"

    def __init__(self, *, optimizer: str, count: int) -> None:
        self.optimizer, self.count = optimizer, count
        super().__init__(
            f"optimizer {optimizer}: {count} of its parameters are not parameters of the model "
            "that is compiled; build the optimizer from model.parameters() after every "
            "replacement of parameters"
        )


def place_optimizers(
    groups: Sequence[GroupSpec], placed: PlacedGraph, table: RegionTable
) -> tuple[Optimizer, ...]:
    """Give every parameter group regions for its states and argins.

    Parameters that no gradient reaches are left out, as torch leaves out those
    whose ``grad`` is None.

    Args:
        groups: Described parameter groups.
        placed: The graph of the model, with the regions of weights and gradients.
        table: Region table to add to.

    Returns:
        An optimizer for each group.

    Raises:
        StaleParameter: If an optimizer's parameter is not in the model.
    """
    traced = placed.graph.traced
    weights = {id(s.tensor): s for s in traced.sources if s.role is Role.WEIGHT}
    return tuple(
        _optimizer(group, [placed.values[s.value] for s in _used(group, weights, traced)], table)
        for group in groups
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
    for kind, name, default in group.argins:
        region = table.add(name, (), DType.FLOAT64, Role.ARGIN)
        table.add_argin(table.regions[region].name, region, kind, default)
        rows.append((ARGIN_KEYS[kind], region))
    return tuple(rows)

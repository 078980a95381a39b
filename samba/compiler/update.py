"""Regions and sections of the optimizers: GRADNORM and OPT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.errors import SambaError
from pef_schema.program import (
    Argin,
    DType,
    Optimizer,
    OptimizerParam,
    Role,
    SectionKind,
    Step,
    Value,
)
from samba.compiler.optimizer import ARGIN_KEYS, GroupSpec
from samba.compiler.regions import RegionTable
from samba.tracer.traced import Traced


class StaleParameter(SambaError):
    """An optimizer holds a parameter that the model does not have."""

    def __init__(self, *, optimizer: str, count: int) -> None:
        self.optimizer, self.count = optimizer, count
        super().__init__(
            f"optimizer {optimizer}: {count} of its parameters are not parameters of the model "
            "that is compiled; build the optimizer from model.parameters() after every "
            "replacement of parameters"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRegions:
    """Optimizers over regions, and the named sections that run them."""

    optimizers: tuple[Optimizer, ...]
    steps: tuple[tuple[str, tuple[Step, ...]], ...]


def add_optimizers(
    groups: Sequence[GroupSpec],
    traced: Traced,
    values: Sequence[Value],
    table: RegionTable,
    argins: list[Argin],
    *,
    inference: bool,
) -> OptimizerRegions:
    """Give optimizers their state regions and argins, and make their sections.

    Parameters that no gradient reaches are left out, as torch leaves out those
    whose ``grad`` is None.

    Args:
        groups: Described parameter groups.
        traced: The graph, for the identity of its parameters.
        values: Values with regions and gradient regions.
        table: Region table to add to.
        argins: Argin list to add to.
        inference: Whether optimizers are ignored.

    Returns:
        The optimizers and their sections.

    Raises:
        StaleParameter: If an optimizer's parameter is not in the model.
    """
    if inference:
        return OptimizerRegions(optimizers=(), steps=())
    by_id = {id(s.tensor): s for s in traced.sources if s.role is Role.WEIGHT}
    optimizers: list[Optimizer] = []
    norms: dict[int, tuple[float, list[int]]] = {}
    owners: dict[int, list[int]] = {}
    for group in groups:
        found = [by_id.get(id(p)) for p in group.parameters]
        stale = [
            p
            for p, source in zip(group.parameters, found, strict=True)
            if source is None and not traced.knows(p)
        ]
        if stale:
            raise StaleParameter(optimizer=group.name, count=len(stale))
        params = []
        for source in found:
            if source is None or values[source.value].grad_region < 0:
                continue
            value = values[source.value]
            weight = table.regions[value.region]
            states = tuple(
                table.add(
                    f"{weight.name}__{group.name}__{state}",
                    weight.shape,
                    weight.dtype,
                    Role.OPTIMIZER_STATE,
                )
                for state in group.states
            )
            params.append(
                OptimizerParam(weight=value.region, grad=value.grad_region, states=states)
            )
        step = -1
        if group.has_step:
            step = table.add(f"{group.name}__step", (), DType.FLOAT32, Role.OPTIMIZER_STATE)
        rows = []
        for kind, name, default in group.argins:
            region = table.add(name, (), DType.FLOAT64, Role.ARGIN)
            rows.append((ARGIN_KEYS[kind], region))
            argins.append(
                Argin(name=table.regions[region].name, region=region, kind=kind, default=default)
            )
        owners.setdefault(group.owner, []).append(len(optimizers))
        if group.max_grad_norm is not None:
            norms.setdefault(group.owner, (float(group.max_grad_norm), []))[1].append(
                len(optimizers)
            )
        optimizers.append(
            Optimizer(
                name=group.name,
                kind=group.kind,
                params=tuple(params),
                argins=tuple(rows),
                options=group.options,
                step=step,
            )
        )
    steps = [
        (f"gradnorm_{optimizers[members[0]].name}", (_gradnorm(limit, members, optimizers, table),))
        for limit, members in norms.values()
    ]
    steps += [
        (f"opt_{optimizers[members[0]].name}", (_opt(members, optimizers),))
        for members in owners.values()
    ]
    return OptimizerRegions(optimizers=tuple(optimizers), steps=tuple(steps))


def _gradnorm(
    limit: float, members: list[int], optimizers: list[Optimizer], table: RegionTable
) -> Step:
    grads = {p.grad for i in members for p in optimizers[i].params}
    norm = table.add(f"{optimizers[members[0]].name}__grad_norm", (), DType.FLOAT32, Role.METRIC)
    return Step(
        kind=SectionKind.GRADNORM,
        optimizers=tuple(members),
        max_norm=limit,
        reads=tuple(sorted(grads)),
        writes=tuple(sorted(grads | {norm})),
    )


def _opt(members: list[int], optimizers: list[Optimizer]) -> Step:
    reads: set[int] = set()
    writes: set[int] = set()
    for i in members:
        optimizer = optimizers[i]
        for p in optimizer.params:
            reads |= {p.weight, p.grad, *p.states}
            writes |= {p.weight, *p.states}
        reads |= {region for _, region in optimizer.argins}
        if optimizer.step >= 0:
            reads.add(optimizer.step)
            writes.add(optimizer.step)
    return Step(
        kind=SectionKind.OPT,
        optimizers=tuple(members),
        reads=tuple(sorted(reads)),
        writes=tuple(sorted(writes)),
    )

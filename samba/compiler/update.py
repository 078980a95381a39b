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
    buckets: Sequence[Sequence[int]] = (),
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
        buckets: Gradients that are reduced together; an OPT section is made for each of them, so
            that it need not wait for the others. Empty: one OPT section per optimizer.

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
            if any(p.weight == value.region for p in params):
                continue  # it shares its region, and so its gradient, with an earlier one
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
    normed = {i for _, members in norms.values() for i in members}
    steps = [
        (f"gradnorm_{optimizers[members[0]].name}", (_gradnorm(limit, members, optimizers, table),))
        for limit, members in norms.values()
    ]
    for members in owners.values():
        name = f"opt_{optimizers[members[0]].name}"
        parts = _opts(members, optimizers, [] if set(members) & normed else buckets)
        for number, part in enumerate(parts):
            steps.append((f"{name}_{number}" if len(parts) > 1 else name, (part,)))
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


def _opts(
    members: list[int], optimizers: list[Optimizer], buckets: Sequence[Sequence[int]]
) -> list[Step]:
    """One step for all parameters, or one for those of each bucket."""
    touched = [
        [i for i in members if any(p.grad in bucket for p in optimizers[i].params)]
        for bucket in map(frozenset, buckets)
    ]
    if sum(map(bool, touched)) < 2:
        return [_opt(members, members, optimizers, None)]
    # The last step that uses an optimizer advances its count; the others only read it.
    counts = {i: n for n, used in enumerate(touched) for i in used}
    return [
        _opt(used, [i for i in used if counts[i] == n], optimizers, frozenset(bucket))
        for n, (used, bucket) in enumerate(zip(touched, buckets, strict=True))
        if used
    ]


def _opt(
    members: list[int],
    counting: list[int],
    optimizers: list[Optimizer],
    grads: frozenset[int] | None,
) -> Step:
    reads: set[int] = set()
    writes: set[int] = set()
    for i in members:
        optimizer = optimizers[i]
        for p in optimizer.params:
            if grads is None or p.grad in grads:
                reads |= {p.weight, p.grad, *p.states}
                writes |= {p.weight, *p.states}
        reads |= {region for _, region in optimizer.argins}
        if optimizer.step >= 0:
            reads.add(optimizer.step)
            if i in counting:
                writes.add(optimizer.step)
    return Step(
        kind=SectionKind.OPT,
        optimizers=tuple(members),
        reads=tuple(sorted(reads)),
        writes=tuple(sorted(writes)),
    )

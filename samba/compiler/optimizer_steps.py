"""Sections of the optimizers: GRADNORM clips gradients, OPT updates weights."""

from __future__ import annotations

from collections.abc import Sequence

from pef_schema.program import DType, Optimizer, Role, SectionKind, Step
from samba.compiler.buckets import GradientBucket
from samba.compiler.optimizer_groups import GroupSpec
from samba.compiler.regions import RegionTable
from samba.compiler.steps import NamedSteps


def optimizer_steps(
    groups: Sequence[GroupSpec],
    optimizers: Sequence[Optimizer],
    buckets: Sequence[GradientBucket],
    table: RegionTable,
) -> list[NamedSteps]:
    """Write down the sections of optimizers: first all norms, then all updates.

    The groups of one optimizer are clipped and updated together.

    Args:
        groups: Parameter groups as they were described.
        optimizers: The same with their regions.
        buckets: Gradients that are reduced together. An OPT section is made for each of them, so
            that it need not wait for the others; an optimizer that clips needs all gradients and
            has one.
        table: Region table, to add the norms to.
    """
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group.owner, []).append(i)
    norms: list[NamedSteps] = []
    updates: list[NamedSteps] = []
    for together in members.values():
        limit = groups[together[0]].max_grad_norm
        name = optimizers[together[0]].name
        if limit is not None:
            norm = _gradnorm(float(limit), together, optimizers, table)
            norms.append(NamedSteps(name=f"gradnorm_{name}", steps=(norm,)))
        parts = _opts(together, optimizers, buckets if limit is None else ())
        for number, part in enumerate(parts):
            suffix = f"_{number}" if len(parts) > 1 else ""
            updates.append(NamedSteps(name=f"opt_{name}{suffix}", steps=(part,)))
    return [*norms, *updates]


_WIDE = frozenset({DType.FLOAT64, DType.COMPLEX128})
"""Types of gradients whose norm is of 64 bits."""


def _gradnorm(
    limit: float, members: Sequence[int], optimizers: Sequence[Optimizer], table: RegionTable
) -> Step:
    grads = {p.grad for i in members for p in optimizers[i].params}
    wide = any(table.regions[grad].dtype in _WIDE for grad in grads)
    dtype = DType.FLOAT64 if wide else DType.FLOAT32
    norm = table.add(f"{optimizers[members[0]].name}__grad_norm", (), dtype, Role.METRIC)
    return Step(
        kind=SectionKind.GRADNORM,
        optimizers=tuple(members),
        max_norm=limit,
        reads=tuple(sorted(grads)),
        writes=tuple(sorted(grads | {norm})),
    )


def _opts(
    members: Sequence[int], optimizers: Sequence[Optimizer], buckets: Sequence[GradientBucket]
) -> list[Step]:
    """Make one step for all parameters, or one for those of each bucket."""
    held = [frozenset(bucket.regions) for bucket in buckets]
    touched = [
        [i for i in members if any(p.grad in grads for p in optimizers[i].params)] for grads in held
    ]
    if sum(map(bool, touched)) < 2:
        return [_opt(members, members, optimizers, None)]
    # The last step that uses an optimizer advances its count; the others only read it.
    counts = {i: n for n, used in enumerate(touched) for i in used}
    return [
        _opt(used, [i for i in used if counts[i] == n], optimizers, grads)
        for n, (used, grads) in enumerate(zip(touched, held, strict=True))
        if used
    ]


def _opt(
    members: Sequence[int],
    counting: Sequence[int],
    optimizers: Sequence[Optimizer],
    grads: frozenset[int] | None,
) -> Step:
    """An update of the parameters whose gradients are among ``grads``; None for all."""
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

"""Rules of what runs: optimizers and what they hold, argins, sections and schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from pef_schema.optimizer_rules import FINITE, OPTIMIZER_RULES, RATE, Range, counts_steps
from pef_schema.optimizer_states import states_of
from pef_schema.program import (
    Argin,
    ArginKind,
    DType,
    Optimizer,
    Program,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
)
from pef_schema.verify_rules import Report

_NEVER_WRITTEN = frozenset({Role.INPUT, Role.CONSTANT, Role.ARGIN})
_BACKWARD = frozenset(
    {
        SectionKind.ZEROGRAD,
        SectionKind.BCKWD,
        SectionKind.REDUCE,
        SectionKind.GRADNORM,
        SectionKind.OPT,
    }
)
_ON_GRAPH = frozenset({SectionKind.FWD, SectionKind.BCKWD})
_ON_OPTIMIZERS = frozenset({SectionKind.GRADNORM, SectionKind.OPT})
_SPATIAL = (SectionKind.FWD, SectionKind.BCKWD)
_CALL_IDS = 2**31
_NOTHING: Set[int] = frozenset()


def check_optimizers(program: Program, report: Report) -> None:
    """Check every optimizer: its regions exist, have their roles and fit each other."""
    report.unique("optimizer", [optimizer.name for optimizer in program.optimizers])
    owner: dict[int, int] = {}
    for index, optimizer in enumerate(program.optimizers):
        where = f"optimizer {index}"
        _check_params(program, optimizer, where, report)
        for param in optimizer.params:
            if owner.setdefault(param.weight, index) != index:
                report.add(f"{where}: weight {param.weight} belongs to {owner[param.weight]} too")
        report.unique(f"{where} argin", [name for name, _ in optimizer.argins])
        for name, region in optimizer.argins:
            if _in_range(program, region, f"{where} argin {name[:80]}", report):
                _check_role(program, region, (Role.ARGIN,), f"{where} argin {name[:80]}", report)
        names = [name for name, _ in optimizer.options]
        report.unique(f"{where} option", names)
        if names != sorted(names):
            report.add(f"{where}: options are not sorted")
        for name, value in optimizer.options:
            if math.isnan(value):
                report.add(f"{where}: option {name[:80]} is NaN")
        if (
            optimizer.step != -1
            and _in_range(program, optimizer.step, f"{where} step", report)
            and program.regions[optimizer.step].shape != ()
        ):
            report.add(f"{where}: its step count has shape {program.regions[optimizer.step].shape}")


def _check_params(program: Program, optimizer: Optimizer, where: str, report: Report) -> None:
    regions = program.regions
    weights: set[int] = set()
    places = [i for i, rule in enumerate(states_of(optimizer)) if rule.is_number]
    for number, param in enumerate(optimizer.params):
        place = f"{where} param {number}"
        if param.weight in weights:
            report.add(f"{place}: weight {param.weight} comes twice")
        weights.add(param.weight)
        members = (param.weight, param.grad, *param.states)
        in_range = [_in_range(program, region, place, report) for region in members]
        if not all(in_range):
            continue
        _check_role(program, param.weight, (Role.WEIGHT,), place, report)
        _check_role(program, param.grad, (Role.GRADIENT,), place, report)
        for state in param.states:
            _check_role(program, state, (Role.OPTIMIZER_STATE,), place, report)
        shapes = [regions[region].shape for region in members]
        numbers = {param.states[i] for i in places if i < len(param.states)}
        shape = regions[param.weight].shape
        if any(s != (() if r in numbers else shape) for r, s in zip(members, shapes, strict=True)):
            shown = ", ".join(map(str, shapes[:8]))
            report.add(f"{place}: weight, gradient and states have shapes {shown}")
        count = len(optimizer.params[0].states)
        if len(param.states) != count:
            report.add(f"{place}: {len(param.states)} states, param 0 has {count}")


def check_argins(program: Program, report: Report) -> None:
    """Check every argin: a 0-d region of the right role and dtype, and a default."""
    report.unique("argin", [argin.name for argin in program.argins])
    for index, argin in enumerate(program.argins):
        where = f"argin {index}"
        if math.isnan(argin.default):
            report.add(f"{where}: its default is NaN")
        if not _in_range(program, argin.region, where, report):
            continue
        seed = argin.kind is ArginKind.DROPOUT_SEED
        _check_role(program, argin.region, (Role.SEED if seed else Role.ARGIN,), where, report)
        region = program.regions[argin.region]
        form = (DType.UINT32, (2,)) if seed else (DType.FLOAT64, ())
        if (region.dtype, region.shape) != form:
            report.add(
                f"{where}: its region is {region.dtype.name} {region.shape}, "
                f"expected {form[0].name} {form[1]}"
            )


def check_sections(program: Program, report: Report) -> None:
    """Check every section: its steps, its twin and what it reads and writes."""
    sections = program.sections
    report.unique("section", [section.name for section in sections])
    # Looked up by graph, so that steps which share a long vector cost no more than its length.
    updated = [frozenset([update.region for update in g.updates]) for g in program.graphs]
    reduced: set[int] = set()
    for index, section in enumerate(sections):
        where = f"section {index}"
        kinds = _kinds(section)
        if len(section.steps) != 1 and kinds != _SPATIAL:
            names = [kind.name for kind in kinds]
            report.add(f"{where}: steps {names}, expected one step or FWD and BCKWD")
        for step in section.steps:
            _check_step(program, step, updated, where, report)
            if step.kind is SectionKind.REDUCE:
                _check_reduce(program, step, where, reduced, report)
        if not 0 <= section.twin <= index:
            report.index(where, "twin", section.twin, index + 1)
        elif sections[section.twin].twin != section.twin:
            report.add(f"{where}: its twin {section.twin} is not the first of its structure")
        elif _kinds(sections[section.twin]) != kinds:
            report.add(f"{where}: its twin {section.twin} has steps of other kinds")


def _kinds(section: Section) -> tuple[SectionKind, ...]:
    """Kinds of a section's steps, as far as they matter: no section has more than two."""
    return tuple([step.kind for step in section.steps[:8]])


def _check_step(
    program: Program, step: Step, updated: Sequence[Set[int]], where: str, report: Report
) -> None:
    kind = step.kind
    count = len(program.regions)
    if program.inference and kind in _BACKWARD:
        report.add(f"{where}: a {kind.name} step in a program compiled for inference")
    if not -1 <= step.graph < len(program.graphs):
        report.index(where, "graph", step.graph, len(program.graphs))
    elif kind in _ON_GRAPH and step.graph == -1:
        report.add(f"{where}: a {kind.name} step without a graph")
    nodes = len(program.graphs[step.graph].nodes) if 0 <= step.graph < len(program.graphs) else 0
    report.ascending(where, "nodes", step.nodes, nodes)
    report.ascending(where, "recomputed nodes", step.recompute, nodes)
    if step.nodes and kind not in _ON_GRAPH:
        report.add(f"{where}: a {kind.name} step with nodes")
    if step.recompute and kind is not SectionKind.BCKWD:
        report.add(f"{where}: a {kind.name} step with recomputed nodes")
    report.ascending(where, "optimizers", step.optimizers, len(program.optimizers))
    if step.optimizers and kind not in _ON_OPTIMIZERS:
        report.add(f"{where}: a {kind.name} step with optimizers")
    if not step.max_norm >= 0:
        report.add(f"{where}: max_norm {step.max_norm}, expected a number from 0 up")
    report.ascending(where, "reads", step.reads, count)
    good = report.ascending(where, "writes", step.writes, count)
    report.ascending(where, "accumulates", step.accumulates, count)
    if step.accumulates and not set(step.accumulates) <= set(step.writes):
        report.add(f"{where}: it accumulates into regions that it does not write")
    if good:
        # A forward step writes the weights that its graph updates.
        on_graph = kind is SectionKind.FWD and 0 <= step.graph < len(program.graphs)
        own = updated[step.graph] if on_graph else _NOTHING
        for index in step.writes:
            role = program.regions[index].role
            changed = role is Role.WEIGHT and kind is not SectionKind.OPT
            if role in _NEVER_WRITTEN or (changed and index not in own):
                report.add(f"{where}: a {kind.name} step writes region {index}, a {role.name}")


def _check_reduce(
    program: Program, step: Step, where: str, reduced: set[int], report: Report
) -> None:
    """Check that a step reduces gradients of one dtype, which no other step reduces."""
    if step.reads != step.writes or not step.writes:
        report.add(
            f"{where}: a REDUCE step reads {step.reads[:8]} and writes {step.writes[:8]}; it must "
            "read and write the same gradients, one or more"
        )
    known = [r for r in step.writes if 0 <= r < len(program.regions)]
    for index in known:
        _check_role(program, index, (Role.GRADIENT,), where, report)
        if index in reduced:
            report.add(f"{where}: gradient {index} is reduced twice")
    reduced.update(known)
    dtypes = {program.regions[r].dtype for r in known}
    if len(dtypes) > 1:
        names = ", ".join(sorted(dtype.name for dtype in dtypes))
        report.add(f"{where}: gradients of several dtypes are reduced together: {names}")


def check_schedules(program: Program, report: Report) -> None:
    """Check every schedule: its graph, its call ids, its sections and their order."""
    sections = program.sections
    graphs: set[int] = set()
    transients = _Transients(program)
    for index, schedule in enumerate(program.schedules):
        where = f"schedule {index}"
        if not 0 <= schedule.graph < len(program.graphs):
            report.index(where, "graph", schedule.graph, len(program.graphs))
        elif schedule.graph in graphs:
            report.add(f"{where}: graph {schedule.graph} has a schedule already")
        graphs.add(schedule.graph)
        report.ascending(where, "call ids", [c.call_id for c in schedule.calls], _CALL_IDS)
        good = True
        for call in schedule.calls:
            if not 0 <= call.section < len(sections):
                report.index(where, "section", call.section, len(sections))
                good = False
        if good:
            _check_order(program, schedule, transients, where, report)


class _Transients(dict[int, list[tuple[list[int], list[int]]]]):
    """The transient regions that each step of a section reads and writes, looked up once.

    Args:
        program: The program whose sections are asked for.
    """

    __slots__ = ("_sections", "_transient")

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._sections = program.sections
        self._transient = {i for i, r in enumerate(program.regions) if r.role.is_transient}

    def __missing__(self, section: int) -> list[tuple[list[int], list[int]]]:
        known = self._transient
        pairs = self[section] = [
            ([i for i in step.reads if i in known], [i for i in step.writes if i in known])
            for step in self._sections[section].steps
        ]
        return pairs


def _check_order(
    program: Program, schedule: Schedule, transients: _Transients, where: str, report: Report
) -> None:
    """Check that no call reads a transient region before a call has written it.

    Regions that keep their contents between runs may be read first; a transient one may have been
    dropped, so that reading it first means a wrong or circular order.

    Raises:
        PefLimit: If schedules share so much that looking at all of it would take long.
    """
    regions = program.regions
    missing: dict[int, list[int]] = {}
    written: set[int] = set()
    for call in schedule.calls:
        if call.section not in missing:
            gaps = missing[call.section] = []
            for reads, writes in transients[call.section]:
                # Each schedule may call the same sections, and sections may share long vectors.
                report.spend("the order of calls", 1 + len(reads) + len(writes))
                gaps += [region for region in reads if region not in written]
                written.update(writes)
        elif missing[call.section]:
            # What one call of a section found written, the next one does too.
            gaps = missing[call.section] = [r for r in missing[call.section] if r not in written]
        else:
            continue
        for region in gaps:
            report.add(
                f"{where}: call {call.call_id} reads region {region} "
                f"({regions[region].name[:80]}) before any call writes it"
            )


def _in_range(program: Program, region: int, where: str, report: Report) -> bool:
    if 0 <= region < len(program.regions):
        return True
    report.index(where, "region", region, len(program.regions))
    return False


def _check_role(
    program: Program, region: int, roles: tuple[Role, ...], where: str, report: Report
) -> None:
    role = program.regions[region].role
    if role not in roles:
        names = " or ".join(r.name for r in roles)
        report.add(f"{where}: region {region} is {role.name}, expected {names}")


_SEED: Range = (
    lambda value: -(2.0**63) <= value < 2.0**64 and value == int(value),
    "a whole number that torch.manual_seed takes",
)

# torch checks hyperparameters when an optimizer is made, and runs with any number that is written
# to param_groups later: a negative learning rate climbs.
_DEFAULTS: Mapping[ArginKind, Range] = {
    ArginKind.LR: FINITE,
    ArginKind.MOMENTUM: FINITE,
    ArginKind.WEIGHT_DECAY: FINITE,
    ArginKind.DROPOUT_RATE: RATE,
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
            text = _DEFAULTS[argin.kind][1]
            report.add(f"argin {index} ({argin.name[:80]}): default {argin.default}, not {text}")
        if argins.setdefault(argin.region, argin) is not argin:
            report.add(f"argin {index} ({argin.name[:80]}): region {argin.region} has one already")
    of_params: set[int] = set()
    for index, optimizer in enumerate(program.optimizers):
        where = f"optimizer {index} ({optimizer.kind.name})"
        _check_settings(optimizer, argins, where, report)
        _check_count(program, optimizer, where, report)
        _check_states(program, optimizer, of_params, where, report)


def _within(bounds: Range, value: float) -> bool:
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
        if name not in rule.argins:
            report.add(f"{where}: no argin {name[:80]}, there are {', '.join(rule.argins)}")
        elif region not in argins:
            report.add(f"{where}: its {name} is region {region}, which no argin sets")
        elif argins[region].kind is not ArginKind[name.upper()]:
            kind = argins[region].kind.name
            report.add(f"{where}: its {name} is set by an argin of kind {kind}")


def _check_count(program: Program, optimizer: Optimizer, where: str, report: Report) -> None:
    if optimizer.step >= 0:
        region = program.regions[optimizer.step]
        if region.role is not Role.OPTIMIZER_STATE or region.dtype is not DType.FLOAT32:
            report.add(
                f"{where}: its step count is {region.role.name} {region.dtype.name}, "
                "expected OPTIMIZER_STATE FLOAT32"
            )
    elif counts_steps(optimizer.kind, dict(optimizer.options)):
        report.add(f"{where}: it has no region for its step count")


def _check_states(
    program: Program, optimizer: Optimizer, of_params: set[int], where: str, report: Report
) -> None:
    """Check the parameters: states of the right number and types, each of one parameter alone."""
    rules = states_of(optimizer)
    regions = program.regions
    for number, param in enumerate(optimizer.params):
        place = f"{where} param {number}"
        if len(param.states) != len(rules):
            report.add(f"{place}: {len(param.states)} states, expected {len(rules)}")
        weight = regions[param.weight]
        if not weight.dtype.has_gradient:
            report.add(
                f"{place}: weight {param.weight} is {weight.dtype.name}, expected a floating type "
                "or a complex one"
            )
        numbers = {
            state for state, rule in zip(param.states, rules, strict=False) if rule.is_number
        }
        for region in (param.grad, *param.states):
            dtype = regions[region].dtype
            if region in numbers and dtype is not DType.FLOAT32:
                report.add(f"{place}: region {region} is {dtype.name}, a number is FLOAT32")
            elif region not in numbers and dtype is not weight.dtype:
                report.add(
                    f"{place}: region {region} is {dtype.name}, its weight {weight.dtype.name}"
                )
            if region in of_params or region == optimizer.step:
                report.add(f"{place}: region {region} is another parameter's too")
            of_params.add(region)

"""Whether a PEF fits the model, the optimizers and the losses that ``trace_graph`` is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from emulator.op_facts.table import op_facts
from pef_schema import first_difference
from pef_schema.errors import SambaError
from pef_schema.fingerprint import renamed
from pef_schema.printable import some_of
from pef_schema.program import (
    ArginKind,
    Graph,
    Node,
    Optimizer,
    OutputGrad,
    Program,
    Role,
    SectionKind,
)
from samba.compiler.gradient_flow import gradient_values
from samba.compiler.optimizers import (
    GroupSpec,
    StaleParameter,
    describe_optimizers,
    lost_copies,
)
from samba.compiler.placement import tensor_bytes
from samba.errors import ArgumentError
from samba.support.autocast import AUTOCAST, autocast_in_force
from samba.support.deviations import tell
from samba.tracer.traced import Traced


class GraphMismatch(SambaError):
    """The model traces to another graph than the PEF was compiled from.

    Attributes:
        pef: Path of the PEF.
        difference: What differs first.
    """

    deviation = "changed-model"

    def __init__(self, *, pef: str, difference: object, advice: str = "", found: str = "") -> None:
        self.pef, self.difference = pef, difference
        advice = advice or (
            "Compile again, or run the model, input shapes (batch size: -b) and mode "
            "(train or inference) that were compiled."
        )
        found = found or "the model is not the one this PEF was compiled from"
        super().__init__(f"{pef}: {found}.\n{difference}\n{advice}")


class NamesMismatch(GraphMismatch):
    """The model computes the same as the PEF's, but its tensors have other names.

    Attributes:
        names: The name of each tensor in the PEF and its name now.
    """

    def __init__(self, *, pef: str, names: Sequence[tuple[str, str]]) -> None:
        self.names = tuple(names)
        rows = [f"  {compiled} is {traced} here" for compiled, traced in names[:_SHOWN]]
        if len(names) > _SHOWN:
            rows.append(f"  and {len(names) - _SHOWN} more")
        super().__init__(
            pef=pef,
            found="the model computes the same as this PEF, but names differ",
            difference="\n".join(rows),
            advice="Names come from the model's class, its attributes and its inputs. If one was "
            "renamed, compile again or restore the old name.",
        )


class AutocastMismatch(GraphMismatch):
    """``torch.autocast`` was in force when the model was compiled and is not now, or other way."""

    deviation = "autocast-mismatch"

    def __init__(self, *, pef: str, compiled: str, now: str, difference: object) -> None:
        self.compiled, self.now = compiled, now
        super().__init__(
            pef=pef,
            found=f"this PEF was compiled {_with_autocast(compiled)}, trace_graph is called "
            f"{_with_autocast(now)}",
            difference=difference,
            advice="torch.autocast takes effect while a model is traced, not when it runs: put it "
            "into forward(), or around both session.compile and trace_graph.",
        )


def _with_autocast(dtype: str) -> str:
    return f"with torch.autocast in {dtype}" if dtype else "without torch.autocast"


_SHOWN = 4
"""Names that a message lists."""


def refuse_other_graph(traced: Traced, program: Program, *, pef: str) -> None:
    """Raise unless a model computes what the only graph of a program does.

    Args:
        traced: The model's trace.
        program: The program from the PEF.
        pef: Its path.

    Raises:
        AutocastMismatch: If ``torch.autocast`` may be why.
        NamesMismatch: If only names differ.
        GraphMismatch: If the graph differs otherwise, or constants have other contents.
    """
    graph, current = program.graphs[0], traced.graph()
    if program.inference:
        graph, current = without_gradient_arguments(graph), without_gradient_arguments(current)
    difference = first_difference(graph, current)
    if difference is not None:
        compiled, now = dict(program.metadata).get(AUTOCAST, ""), autocast_in_force()
        if compiled != now:
            raise AutocastMismatch(pef=pef, compiled=compiled, now=now, difference=difference)
        if names := renamed(graph, current):
            raise NamesMismatch(pef=pef, names=names)
        raise GraphMismatch(pef=pef, difference=difference)
    if changed := changed_constants(traced, graph, program):
        raise GraphMismatch(pef=pef, difference=changed)


_FORWARD = {"aten.embedding.default": 2}
"""How many of an operation's arguments its result depends on: what follows is of its gradient.

Which index of an embedding is of padding often depends on the tokenizer, which a script that only
compiles does not have.
"""


def without_gradient_arguments(graph: Graph) -> Graph:
    """A graph in which equal nodes are those that compute the same forward.

    Args:
        graph: A graph that is compiled for inference, or traced for it.
    """
    return replace(graph, nodes=tuple(map(_forward, graph.nodes)))


def _forward(node: Node) -> Node:
    most = _FORWARD.get(node.op)
    return node if most is None else replace(node, args=node.args[:most], kwargs=())


class MissingOptimizer(SambaError):
    """``trace_graph`` was given optimizers that the PEF does not have.

    Attributes:
        pef: Path of the PEF.
        given: Parameter groups that were given.
        compiled: Parameter groups that the PEF has.
    """

    def __init__(self, *, pef: str, given: int, compiled: int, inference: bool) -> None:
        self.pef, self.given, self.compiled, self.inference = pef, given, compiled, inference
        if inference:
            text = "the PEF was compiled for inference and cannot train"
            advice = (
                "Compile without inference to train. To infer, run with --inference "
                "(config_dict={'inference': True}), or give no optimizer."
            )
        else:
            text = f"the PEF was compiled with {compiled}" if compiled else "the PEF has none"
            advice = (
                "Compile with the same optimizers: samba.session.compile(model, inputs, optimizer)."
            )
        super().__init__(
            f"{pef}: trace_graph was given {given} optimizer parameter group(s), {text}. {advice}"
        )


class OptimizerMismatch(SambaError):
    """``trace_graph`` was given another optimizer than the PEF was compiled with.

    Attributes:
        pef: Path of the PEF.
        optimizer: Name of the parameter group, such as ``adamw0``.
        differences: What differs, as ``(what, given, compiled)``.
    """

    deviation = "changed-optimizer"

    def __init__(
        self, *, pef: str, optimizer: str, differences: Sequence[tuple[str, str, str]]
    ) -> None:
        self.pef, self.optimizer, self.differences = pef, optimizer, tuple(differences)
        lines = "".join(f"\n  {what}: found {a}, compiled {b}" for what, a, b in differences)
        super().__init__(
            f"{pef}: optimizer {optimizer} given to trace_graph is not the compiled one:{lines}\n"
            "Only lr, momentum and weight_decay can change without a compile, through "
            "hyperparam_dict. Give the optimizers in the order in which they were compiled, "
            "or compile again."
        )


def check_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], traced: Traced, program: Program, *, pef: str
) -> None:
    """Check optimizers against those in a PEF; no optimizers always fit.

    Hyperparameters may differ: those of the optimizers hold until ``hyperparam_dict`` sets
    others, and a line in the log says so.

    Args:
        optimizers: What ``trace_graph`` was given.
        traced: The model's trace.
        program: The program from the PEF.
        pef: Its path.

    Raises:
        MissingOptimizer: If the PEF has fewer or more of them.
        OptimizerMismatch: If one has another update rule, settings or parameters.
        StaleParameter: If one holds parameters that the model does not have.
    """
    groups = describe_optimizers(optimizers)
    if not groups:
        return
    if program.inference or len(groups) != len(program.optimizers):
        raise MissingOptimizer(
            pef=pef,
            given=len(groups),
            compiled=len(program.optimizers),
            inference=program.inference,
        )
    values = program.graphs[0].values
    region_of = {id(s.tensor): values[s.value].region for s in traced.sources}
    wanting = _wanting_gradients(traced, program)
    for index, (group, entry) in enumerate(zip(groups, program.optimizers, strict=True)):
        stale = [p for p in group.parameters if not traced.knows(p)]
        if stale:
            raise StaleParameter(optimizer=group.name, count=len(stale))
        differences = _differences(index, group, entry, program, region_of, wanting)
        if differences:
            raise OptimizerMismatch(pef=pef, optimizer=entry.name, differences=differences)
        _tell_defaults(group, entry, program)
    if lost := lost_copies(optimizers):
        tell("fp32-params", lost)


def _differences(
    index: int,
    group: GroupSpec,
    entry: Optimizer,
    program: Program,
    region_of: dict[int, int],
    wanting: frozenset[int],
) -> list[tuple[str, str, str]]:
    if group.kind is not entry.kind:
        return [("kind", group.kind.name, entry.kind.name)]
    compiled = dict(entry.options)
    rows = [
        (name, f"{value:g}", f"{compiled.get(name, 0.0):g}")
        for name, value in group.options
        if value != compiled.get(name, 0.0)
    ]
    norm = next(
        (
            step.max_norm
            for section in program.sections
            for step in section.steps
            if step.kind is SectionKind.GRADNORM and index in step.optimizers
        ),
        None,
    )
    if group.max_grad_norm != norm:
        rows.append(("max_grad_norm", str(group.max_grad_norm), str(norm)))
    updated = {p.weight for p in entry.params}
    regions = {region_of.get(id(p), -1) for p in group.parameters}
    other = {p.weight for o in program.optimizers if o is not entry for p in o.params}
    missing, foreign = updated - regions, regions & other
    if missing or foreign:
        shown = _names(sorted(missing or foreign), program)
        difference = f"without {shown}" if missing else f"with {shown}"
        rows.append(("parameters", difference, f"{len(updated)} parameters"))
    thawed = sorted((regions & wanting) - updated - other)
    if thawed:
        rows.append(("requires_grad", f"True for {_names(thawed, program)}", "without them"))
    frozen = sorted((regions & updated) - wanting)
    if frozen:
        rows.append(("requires_grad", f"False for {_names(frozen, program)}", "with them"))
    return rows


def _names(regions: Sequence[int], program: Program) -> str:
    return some_of(regions, text=lambda r: program.regions[r].name)


def _wanting_gradients(traced: Traced, program: Program) -> frozenset[int]:
    """Regions of the weights that would be trained if the model were compiled as it is now."""
    inputs = {source.value for source in traced.sources}
    starts = [o.value for o in traced.outputs if o.value not in inputs]
    grads = gradient_values(traced, op_facts(), starts)
    values = program.graphs[0].values
    return frozenset(values[s.value].region for s in traced.sources if grads[s.value])


def _tell_defaults(group: GroupSpec, entry: Optimizer, program: Program) -> None:
    """Log hyperparameters of the optimizer that take the place of the compiled ones."""
    by_region = {argin.region: argin for argin in program.argins}
    compiled = dict(entry.argins)
    for key, _, value in group.argins:
        argin = by_region[compiled[key]]
        if argin.default != value:
            tell(
                "optimizer-hyperparameter",
                f"optimizer {entry.name}: {argin.name} is {value:g}, which is used from now on; "
                f"the PEF was compiled with {argin.default:g}",
            )


def tell_rates(traced: Traced, program: Program) -> None:
    """Log dropout rates that differ from the compiled ones, which hold until they are set."""
    rates = {s.name: s.default for s in traced.sources if s.role is Role.ARGIN}
    for argin in program.argins:
        if argin.kind is ArginKind.DROPOUT_RATE and rates.get(argin.name) != argin.default:
            tell(
                "compiled-hyperparameter",
                f"dropout rate {argin.name} is {rates.get(argin.name, 0.0):g} in the model, but "
                f"the PEF was compiled with {argin.default:g}, which is used until "
                "hyperparam_dict sets another",
            )


def changed_constants(traced: Traced, graph: Graph, program: Program) -> str:
    """Which constants have other contents than when a PEF was compiled, as text.

    Args:
        traced: The model's trace; it has the nodes of the compiled graph.
        graph: The compiled graph.
        program: The program that it is of.

    Returns:
        A line for each of them and what to do; empty if there is none.
    """
    region_of = {value.name: value.region for value in graph.values}
    lines = []
    for source in traced.sources:
        if source.role is not Role.CONSTANT or source.tensor is None:
            continue
        segment = program.regions[region_of[source.name]].segment
        if segment >= 0 and program.segments[segment] != tensor_bytes(source.tensor):
            form = f"{list(source.tensor.shape)} {str(source.tensor.dtype).removeprefix('torch.')}"
            lines.append(f"constant {source.name}, {form}: its contents differ from the PEF's")
    if lines:
        lines.append(
            "A tensor that forward() makes from numbers, or that is a plain attribute, is a "
            "constant of the program. Register a tensor that changes as a buffer, or pass it as "
            "an input."
        )
    return "\n".join(lines)


def narrow_losses(indices: tuple[int, ...] | None, program: Program, *, pef: str) -> Program:
    """A program whose losses are those of ``trace_graph(loss_indices=...)``.

    Scripts compile without ``loss_indices``, which without a scalar output makes every output a
    loss, and choose when they trace. Only where the backward pass starts depends on it.

    Args:
        indices: Positions of losses among the outputs; None for those that were compiled.
        program: The program of a PEF.
        pef: Its path.

    Returns:
        The program, itself if its losses are these.

    Raises:
        ArgumentError: If an output is chosen that is not a loss in the PEF.
    """
    (graph,) = program.graphs
    outputs = graph.outputs
    losses = {i for i, o in enumerate(outputs) if o.grad is OutputGrad.ONES}
    possible = {i for i, o in enumerate(outputs) if o.grad is not OutputGrad.ABSENT}
    if indices is None or not possible:
        return program
    chosen = possible.intersection(indices)
    if chosen == losses:
        return program
    if not chosen or chosen - losses:
        raise ArgumentError(
            where="utils.trace_graph(loss_indices=...)",
            found=f"{list(indices)}",
            wanted=f"{sorted(losses)}, the losses that {pef} was compiled with, or some of them",
            hint="Give session.compile the same loss_indices.",
        )
    fewer = tuple(
        replace(o, grad=OutputGrad.NONE) if i in losses - chosen else o
        for i, o in enumerate(outputs)
    )
    return replace(program, graphs=(replace(graph, outputs=fewer),))

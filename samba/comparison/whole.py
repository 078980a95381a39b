"""The compiled program and the model itself, held against the traced graph run by torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from emulator.device import Device
from emulator.op_facts.names import CASTS
from emulator.op_facts.table import facts_of
from emulator.plans.steps import all_steps
from pef_schema.program import ArginKind, Graph, OutputGrad, Program, Role
from samba.comparison.report import Gap, Phase, Row, Status
from samba.comparison.sides import EXACT, Tensors, Tol, dtype_name, gap, nonfinite
from samba.tensor.views import view_as_numpy, view_as_torch
from samba.tracer.inputs import TraceInputs
from samba.tracer.patched_functions import TracedFunctions
from samba.tracer.torch_internals import tree_leaves
from samba.tracer.traced import Traced

DRIFT = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
    torch.complex64: 1e-4,
    torch.complex128: 1e-9,
}
"""What rounding alone may add up to in a whole model, as a part of the tensor's largest entry."""

_NODES_DRIFT = 10.0
"""How many times the accumulated error of the single operations a compiled program may show."""


def compiled_rows(
    program: Program,
    sources: Tensors,
    values: tuple[Tensors, Tensors],
    gradients: tuple[Tensors | None, Tensors],
) -> list[Row]:
    """Run the compiled program and compare its outputs and gradients.

    Args:
        program: The program.
        sources: What goes in.
        values: The graph's values as torch has them, and as the device has them node by node.
        gradients: The same for gradients; torch's are None if they are not compared.

    Returns:
        A row for each output, and for each gradient of a weight or an input; one alone if the
        program cannot be compiled or run.
    """
    graph = program.graphs[0]
    device = Device(program)
    for v, tensor in sources.items():
        region = graph.values[v].region
        if program.regions[region].role not in (Role.ARGIN, Role.SEED, Role.CONSTANT):
            device.write(region, view_as_numpy(tensor))
    for i, argin in enumerate(program.argins):
        if argin.kind is ArginKind.DROPOUT_RATE:
            device.set_argin(i, 0.0)
    try:
        device.run(device.plan(all_steps(program)))
    except Exception as error:  # whatever a lowering raises
        return [_failed(program.name, error)]
    rows = []
    for output in graph.outputs:
        got = view_as_torch(device.read(output.region))
        rows.append(
            _row(Phase.COMPILED, output.name, got, values[0][output.value], values[1][output.value])
        )
    host, own = gradients
    if host is None:
        return rows
    # Sources that share a region share its gradient.
    shared: dict[int, list[int]] = {}
    for v in sources:
        if graph.values[v].grad_region >= 0:
            shared.setdefault(graph.values[v].grad_region, []).append(v)
    for region, members in shared.items():
        parts = [v for v in members if v in host]
        if parts:
            got = view_as_torch(device.read(region))
            want = torch.stack([host[v] for v in parts]).sum(0)
            ours = torch.stack([own[v] for v in parts]).sum(0)
            name = f"{graph.values[members[0]].name}__grad"
            rows.append(_row(Phase.COMPILED, name, got, want, ours))
    return rows


def model_rows(
    model: torch.nn.Module,
    given: TraceInputs,
    traced: Traced,
    graph: Graph,
    values: Tensors,
    gradients: Tensors | None,
) -> tuple[list[Row], list[str]]:
    """Run the model itself and compare the traced graph with it.

    Args:
        model: The model; its buffers are put back.
        given: What its ``forward`` takes.
        traced: Its trace.
        graph: The graph with the flags of its outputs.
        values, gradients: What torch computes from the graph.

    Returns:
        A row for each output and each gradient of a weight, and notes on what was left out.
    """
    if _draws(traced):
        return [], ["the model itself was not run: it draws random numbers"]
    try:
        with _as_it_was(model), TracedFunctions(model), torch.enable_grad():
            outputs = _outputs(_run(model, given, traced, values))
            model_gradients = _gradients(outputs, graph, traced) if gradients is not None else {}
    except Exception as error:  # e.g. a mixture of dtypes that torch refuses
        return [], [f"the model itself could not be run: {type(error).__name__}: {error}"]
    rows = []
    for output, tensor in zip(graph.outputs, outputs, strict=False):
        want = tensor.detach().as_subclass(torch.Tensor)
        rows.append(_row(Phase.MODEL, output.name, values[output.value], want, None))
    if gradients is not None:
        for v, want in model_gradients.items():
            got = gradients.get(v, torch.zeros_like(want))
            rows.append(_row(Phase.MODEL, f"{graph.values[v].name}__grad", got, want, None))
    if any(node.op in CASTS for node in graph.nodes):
        rows = [
            replace(row, status=Status.EXPECTED, detail="due to rounding to bfloat16")
            if row.status is Status.BEYOND
            else row
            for row in rows
        ]
    return rows, []


def _draws(traced: Traced) -> bool:
    """Whether the model draws random numbers, other than for dropout at rate 0."""
    dropping = any(s.role is Role.ARGIN and s.default != 0.0 for s in traced.sources)
    drawing = {node.op for node in traced.nodes if "seed" in dict(node.kwargs)} - CASTS
    return dropping or any(facts_of(op).rate is None for op in drawing)


def _run(model: torch.nn.Module, given: TraceInputs, traced: Traced, values: Tensors) -> Any:
    by_name = {s.name: values[s.value] for s in traced.sources if s.role is Role.INPUT}
    args, kwargs = given.call_with(by_name.get(t.name, t.tensor).clone() for t in given.tensors)
    return model(*args, **kwargs)


def _outputs(result: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]


def _gradients(
    outputs: list[torch.Tensor], graph: Graph, traced: Traced
) -> dict[int, torch.Tensor]:
    losses = [
        (t, torch.ones_like(t))
        for t, o in zip(outputs, graph.outputs, strict=False)
        if o.grad is OutputGrad.ONES
    ]
    weights = [
        s for s in traced.sources if s.role is Role.WEIGHT and graph.values[s.value].needs_grad
    ]
    if not losses or not weights:
        return {}
    gradients = torch.autograd.grad(
        [t for t, _ in losses],
        [s.tensor for s in weights if s.tensor is not None],
        [seed for _, seed in losses],
        allow_unused=True,
    )
    return {
        s.value: g.as_subclass(torch.Tensor)
        for s, g in zip(weights, gradients, strict=True)
        if g is not None
    }


@contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Put buffers, and torch's random state, back afterwards."""
    buffers = [(b, b.detach().clone()) for b in model.buffers() if getattr(b, "has_data", True)]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


def _row(
    phase: Phase, name: str, got: torch.Tensor, want: torch.Tensor, nodes: torch.Tensor | None
) -> Row:
    """A verdict on a whole: rounding may add up, as much as node by node or as ``DRIFT`` says."""
    distance: Gap | None = None
    status, detail = Status.OK, ""
    if got.shape != want.shape:
        status, detail = Status.SHAPE, f"found {list(got.shape)}"
    elif got.dtype != want.dtype:
        status, detail = Status.DTYPE, f"found {got.dtype}"
    else:
        limit = _limit(want, nodes)
        distance = gap(got, want, Tol(rtol=0.0, atol=limit))
        if bool((got.isfinite() != want.isfinite()).any()):
            status = Status.NOT_FINITE
        elif distance.wrong:
            status = Status.BEYOND
            detail = (
                "the traced graph is not what the model computes"
                if phase is Phase.MODEL
                else "errors exceed those of single operations: check sections and saved values"
            )
    return Row(
        phase=phase,
        name=name,
        dtype=dtype_name(want),
        shape=tuple(want.shape),
        status=status,
        detail=detail,
        whole=distance,
        nonfinite=(nonfinite(want), nonfinite(got)),
    )


def _failed(name: str, error: Exception) -> Row:
    return Row(
        phase=Phase.COMPILED,
        name=name,
        status=Status.FAILED,
        detail=f"{type(error).__name__}: {error}",
    )


def _limit(want: torch.Tensor, nodes: torch.Tensor | None) -> float:
    finite = want[want.isfinite()]
    largest = finite.abs().to(torch.float64).max().item() if finite.numel() else 0.0
    limit = DRIFT.get(want.dtype, 0.0) * largest
    if nodes is not None and nodes.shape == want.shape:
        drift = gap(nodes, want, EXACT).largest
        if drift < torch.inf:
            limit = max(limit, _NODES_DRIFT * drift)
    return limit

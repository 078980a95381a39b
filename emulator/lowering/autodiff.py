"""The backward pass: every node's gradient is the ``jax.vjp`` of its own lowering."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.lowering.channels_last import channels_last_nodes
from emulator.lowering.failures import failures_of
from emulator.lowering.section import (
    Pullback,
    State,
    Tape,
    active_outputs,
    gradient_targets,
    pull_form,
    run_nodes,
    starts_as_ones,
    zeros_like_value,
)
from emulator.lowering.variant import Variant
from emulator.lowering.write_order import Readers
from emulator.ops.registry import OpSpec, load_ops
from pef_schema.program import Graph, Node, Program, Role, Step, refs_of


def backward(
    program: Program,
    step: Step,
    state: State,
    variant: Variant,
    tape: Tape | None = None,
    readers: Readers | None = None,
) -> State:
    """Execute a BCKWD step: walk the mirrored nodes in reverse.

    Primal values come from regions in ``step.reads`` or from recomputed nodes; an
    argument whose value no gradient reads is stood in for by zeros, which XLA removes.

    Args:
        program: The program.
        step: The step.
        state: Device memory that the step reads.
        variant: Which output gradients the host has set.
        tape: Pullbacks of nodes that the forward step has differentiated.
        readers: Where to note what is computed from a parameter beside its own gradient.

    Returns:
        Gradient and cotangent regions.
    """
    graph = program.graphs[step.graph]
    ops = load_ops()
    last = channels_last_nodes(graph, sorted({*step.recompute, *step.nodes}), ops)
    env = _primals(graph, step, state, last)
    cotangents = _seeds(graph, step, state, variant)
    for i in reversed(step.nodes):
        node = graph.nodes[i]
        with failures_of(node), jax.named_scope(f"{node.module or node.op}__grad"):
            pullback = None if tape is None else tape.get(i)
            new = _node_backward(graph, node, ops[node.op], env, cotangents, pullback, i in last)
        if readers is not None:
            _note(program, graph, node, ops[node.op], new, readers)
    return _collect(graph, step, state, cotangents)


def _primals(graph: Graph, step: Step, state: State, last: frozenset[int]) -> dict[int, jax.Array]:
    reads = set(step.reads)
    recomputed = {v for i in step.recompute for v in graph.nodes[i].outputs}
    env: dict[int, jax.Array] = {}
    for i in (*step.recompute, *step.nodes):
        for v in graph.nodes[i].refs():
            region = graph.values[v].region
            if v not in env and v not in recomputed and region in reads:
                env[v] = state[region]
    run_nodes(graph, step.recompute, env, last)
    return env


def _seeds(graph: Graph, step: Step, state: State, variant: Variant) -> dict[int, jax.Array]:
    """Cotangents that come from outside: later sections and the host."""
    reads = set(step.reads)
    produced = {v for i in step.nodes for v in graph.nodes[i].outputs if v >= 0}
    cotangents: dict[int, jax.Array] = {}
    for v in sorted(produced):
        region = graph.values[v].grad_region
        if region in reads:
            cotangents[v] = state[region]
    for output in graph.outputs:
        if output.value not in produced or output.grad_region not in reads:
            continue
        if output.grad_region in variant.seeded:
            _add(cotangents, output.value, state[output.grad_region])
        elif starts_as_ones(graph, output, variant):
            value = graph.values[output.value]
            ones = jnp.ones(value.shape, TO_NUMPY[value.dtype])  # pyright: ignore[reportUnknownMemberType]  # jax types it in part
            _add(cotangents, output.value, ones)
    return cotangents


def _add(cotangents: dict[int, jax.Array], value: int, cotangent: jax.Array) -> None:
    have = cotangents.get(value)
    cotangents[value] = cotangent if have is None else have + cotangent


def _node_backward(
    graph: Graph,
    node: Node,
    spec: OpSpec,
    env: dict[int, jax.Array],
    cotangents: dict[int, jax.Array],
    pullback: Pullback | None,
    last: bool,
) -> dict[int, jax.Array]:
    active = active_outputs(graph, node)
    if not any(v in cotangents for v in active):
        return {}
    incoming = tuple(
        cotangents[v] if v in cotangents else zeros_like_value(graph, v) for v in active
    )
    if pullback is None:
        full = {v: env[v] if v in env else zeros_like_value(graph, v) for v in node.refs()}
        outgoing = pull_form(graph, node, full, spec, incoming, last)
    else:
        outgoing = pullback(incoming)
    new = dict(zip(gradient_targets(graph, node), outgoing, strict=True))
    for v, cotangent in new.items():
        _add(cotangents, v, cotangent)
    return new


def _note(
    program: Program,
    graph: Graph,
    node: Node,
    spec: OpSpec,
    new: dict[int, jax.Array],
    readers: Readers,
) -> None:
    """Note which cotangents were made from a weight."""

    def is_weight(value: int) -> bool:
        region = graph.values[value].region
        return region >= 0 and program.regions[region].role is Role.WEIGHT

    others = [cotangent for v, cotangent in new.items() if not is_weight(v)]
    if not others:
        return
    for position, arg in enumerate(node.args):
        if spec.reads is None or position in spec.reads:
            for v in filter(is_weight, refs_of(arg)):
                readers.setdefault(graph.values[v].region, []).extend(others)


def _collect(graph: Graph, step: Step, state: State, cotangents: dict[int, jax.Array]) -> State:
    writes, accumulates = set(step.writes), set(step.accumulates)
    produced = {v for i in step.nodes for v in graph.nodes[i].outputs}
    sums: dict[int, jax.Array] = {}
    shapes: dict[int, int] = {}
    for i in step.nodes:
        for v in dict.fromkeys(graph.nodes[i].refs()):
            region = graph.values[v].grad_region
            if v in produced or region not in writes:
                continue
            shapes[region] = v
            if v in cotangents:
                _add(sums, region, cotangents.pop(v))
    result: State = {}
    for region in step.writes:
        total = sums.get(region)
        if region in accumulates:
            total = state[region] if total is None else state[region] + total
        result[region] = zeros_like_value(graph, shapes[region]) if total is None else total
    return result

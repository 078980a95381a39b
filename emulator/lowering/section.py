"""Lower steps of a section to pure functions of device memory.

A step becomes a function ``{region: array} -> {region: array}`` that jax can
trace. Composition and compilation are the business of ``emulator.plans``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.errors import LoweringError, OpLimit
from emulator.kernels.unfused import compile_apart, inlined
from emulator.lowering.branch_checks import checked_parts
from emulator.lowering.channels_last import (
    channels_last_nodes,
    to_channels_last,
    to_channels_second,
)
from emulator.lowering.failures import failures_of
from emulator.lowering.index_watch import WatchedIndex, look
from emulator.lowering.node_cache import call_once_traced
from emulator.lowering.variant import Variant
from emulator.ops.registry import OpSpec, load_ops
from pef_schema.program import (
    Arg,
    Gradient,
    Graph,
    Node,
    Output,
    OutputGrad,
    Program,
    Ref,
    Role,
    Step,
)

State = dict[int, Any]
"""Device memory inside a plan, by region index: arrays, and numbers that the plan relies on."""

Pullback = Callable[[tuple[jax.Array, ...]], tuple[jax.Array, ...]]
"""From cotangents of results to cotangents of arguments."""

Tape = dict[int, Pullback | None]
"""Nodes of a graph that a plan differentiates where it runs them; None until then."""


def starts_as_ones(graph: Graph, output: Output, variant: Variant) -> bool:
    """Whether the backward pass starts from ones at an output: a loss that the host left alone.

    Of losses that are not scalars, those alone start it whose gradient the host has written, as
    soon as there is one: a script that weights its loss per sample does not mean the logits.

    Args:
        graph: The graph.
        output: The output.
        variant: What the host has written, and whether the rest starts from ones.
    """
    seeded = variant.seeded
    if not variant.ones or output.grad is not OutputGrad.ONES or output.grad_region in seeded:
        return False
    if graph.values[output.value].shape == ():
        return True
    return not any(
        other.grad_region in seeded and graph.values[other.value].shape != ()
        for other in graph.outputs
        if other.grad is OutputGrad.ONES
    )


def resolve(arg: Arg, env: Mapping[int, jax.Array]) -> Any:
    """An argument with arrays in place of references."""
    if isinstance(arg, Ref):
        return env[arg.value]
    if isinstance(arg, tuple):
        return tuple(resolve(item, env) for item in arg)
    return arg


def run_node(
    graph: Graph | Gradient,
    node: Node,
    env: Mapping[int, jax.Array],
    spec: OpSpec,
    last: bool = False,
) -> tuple[Any, ...]:
    """Execute one node.

    Args:
        graph: The node's graph, or the custom gradient that it is of.
        node: The node.
        env: Arrays by value index.
        spec: The op.
        last: Whether to run it channels last.

    Returns:
        One array per result that is used, None for the others, of the dtypes the graph states.

    Raises:
        LoweringError: If a result has another shape than the graph states.
        OpLimit: If the op is asked for more than the device computes with.
    """
    if last:
        env = {v: to_channels_last(env[v]) for v in node.refs()}
    kwargs = {name: resolve(arg, env) for name, arg in node.kwargs}
    gradient = _gradient_of(graph, node)
    try:
        if gradient is None:
            lower = spec.last if last and spec.last is not None else spec.lower
            output: Any = lower(*(resolve(arg, env) for arg in node.args), **kwargs)
        else:
            lists = (resolve(arg, env) for arg in node.args[1:])
            output = spec.lower(partial(run_gradient, gradient), *lists)
    except OpLimit as limit:
        raise limit.at(op=node.op, source=node.source, module=node.module) from None
    results = cast("Sequence[Any]", output) if isinstance(output, (tuple, list)) else (output,)
    if len(results) < len(node.outputs):
        raise _failure(node, f"gave {len(results)} result(s), the graph has {len(node.outputs)}")
    checked: list[Any] = []
    for result, index in zip(results, node.outputs, strict=False):
        if index < 0:
            checked.append(None)
            continue
        value = graph.values[index]
        array = to_channels_second(result) if last else result
        if tuple(array.shape) != value.shape:
            raise _failure(node, f"gave shape {tuple(array.shape)}, the graph says {value.shape}")
        dtype = TO_NUMPY[value.dtype]
        checked.append(array if array.dtype == dtype else array.astype(dtype))
    return tuple(checked)


def _failure(node: Node, reason: str) -> LoweringError:
    return LoweringError(op=node.op, source=node.source, module=node.module, reason=reason)


def _gradient_of(graph: Graph | Gradient, node: Node) -> Gradient | None:
    return graph.gradient_of(node) if isinstance(graph, Graph) else None


def run_gradient(
    gradient: Gradient, cotangents: Sequence[jax.Array], reads: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Compute a custom gradient.

    Args:
        gradient: The gradient.
        cotangents: Gradients of the outputs of the node that refers to it.
        reads: What that node reads.

    Returns:
        Gradients of the node's inputs. All gradients are as jax has them, see :func:`turned`.
    """
    ops = load_ops()
    env = dict(zip(gradient.inputs, (*turned(cotangents), *reads), strict=True))
    for node in gradient.nodes:
        with failures_of(node):
            results = run_node(gradient, node, env, ops[node.op])
        env.update((v, r) for v, r in zip(node.outputs, results, strict=True) if v >= 0)
    return turned([env[v] for v in gradient.outputs])


def turned(gradients: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Gradients of complex values as torch has them from those that jax has, and back.

    Of a real loss of ``x + iy``, torch's gradient is ``d/dx + i d/dy`` and jax's is its conjugate,
    ``d/dx - i d/dy``, whether functions are holomorphic or not.

    Args:
        gradients: Gradients; real ones stay as they are.
    """
    return tuple([jnp.conj(g) if jnp.iscomplexobj(g) else g for g in gradients])


def run_form(
    graph: Graph, node: Node, env: Mapping[int, jax.Array], spec: OpSpec, last: bool = False
) -> tuple[Any, ...]:
    """Execute one node as :func:`run_node` does; nodes of one form are traced once."""
    key, values, name = _form(graph, node, env, spec)

    def run(*arrays: jax.Array) -> tuple[Any, ...]:
        return run_node(graph, node, {**env, **dict(zip(values, arrays, strict=True))}, spec, last)

    arrays = [env[v] for v in values]
    return call_once_traced(("run", last, *key), run, arrays, name)


def pull_form(
    graph: Graph,
    node: Node,
    env: Mapping[int, jax.Array],
    spec: OpSpec,
    cotangents: tuple[jax.Array, ...],
    last: bool = False,
) -> tuple[jax.Array, ...]:
    """The gradient of one node; nodes of one form are traced once.

    Args:
        graph, node, env, spec, last: As :func:`run_node` takes them.
        cotangents: Of the results that carry a gradient.

    Returns:
        Cotangents of the values in :func:`gradient_targets`.
    """
    key, values, name = _form(graph, node, env, spec)

    def pull(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        inputs = dict(zip(values, arrays, strict=False))
        _, pullback = pull_node(graph, node, {**env, **inputs}, spec, last)
        return pullback(arrays[len(values) :])

    arrays = [*(env[v] for v in values), *cotangents]
    return call_once_traced(("pull", last, *key), pull, arrays, f"{name}__grad")


def _form(
    graph: Graph, node: Node, env: Mapping[int, Any], spec: OpSpec
) -> tuple[tuple[Any, ...], list[int], str]:
    """Key of all that a node's function depends on besides arrays, their values, and its name."""
    refs = list(dict.fromkeys(node.refs()))
    position = {v: i for i, v in enumerate(refs)}
    known = {v: env[v] for v in refs if isinstance(env[v], (bool, int, float))}

    def of(arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return Ref(position[arg.value])
        if isinstance(arg, tuple):
            return tuple([of(item) for item in arg])
        return type(arg), repr(arg)  # 1, 1.0 and True are equal; 0.0 and -0.0 are, too

    gradient = graph.gradient_of(node)  # the index of one says nothing in another graph
    args = node.args if gradient is None else node.args[1:]
    key = (
        spec.name,
        spec.lower,
        gradient,
        tuple([of(arg) for arg in args]),
        tuple([(name, of(arg)) for name, arg in node.kwargs]),
        tuple([(graph.values[v].needs_grad, repr(known.get(v))) for v in refs]),
        tuple([v if v < 0 else _kind(graph, v) for v in node.outputs]),
    )
    return key, [v for v in refs if v not in known], node.op


def _kind(graph: Graph, value: int) -> tuple[Any, ...]:
    tensor = graph.values[value]
    return tensor.shape, tensor.dtype, tensor.needs_grad


def pull_node(
    graph: Graph, node: Node, env: Mapping[int, jax.Array], spec: OpSpec, last: bool = False
) -> tuple[tuple[Any, ...], Pullback]:
    """Execute one node and keep what its gradient needs.

    Args:
        graph, node, env, spec, last: As :func:`run_node` takes them.

    Returns:
        All results, and the function from gradients of those that carry one to gradients of the
        values in :func:`gradient_targets`, both as torch has them.
    """
    targets = gradient_targets(graph, node)

    def primal(*arrays: jax.Array) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        inputs = {**env, **dict(zip(targets, arrays, strict=True))}
        results = run_node(graph, node, inputs, spec, last)
        pairs = zip(node.outputs, results, strict=True)
        return tuple([r for v, r in pairs if v >= 0 and graph.values[v].needs_grad]), results

    operands = [env[v] for v in targets]
    _, pullback, results = cast(
        "tuple[Any, Pullback, tuple[Any, ...]]",
        jax.vjp(primal, *operands, has_aux=True),  # pyright: ignore[reportUnknownMemberType]  # jax types it in part
    )
    values = (*targets, *[v for v in node.outputs if v >= 0])
    if not any(graph.values[v].dtype.is_complex for v in values):
        return results, pullback
    return results, lambda gradients: turned(pullback(turned(gradients)))


def active_outputs(graph: Graph, node: Node) -> list[int]:
    """Results of a node through which a gradient flows."""
    return [v for v in node.outputs if v >= 0 and graph.values[v].needs_grad]


def gradient_targets(graph: Graph, node: Node) -> list[int]:
    """Values a node takes that carry a gradient, each once, in order."""
    return list(dict.fromkeys(v for v in node.refs() if graph.values[v].needs_grad))


def run_nodes(
    graph: Graph,
    indices: tuple[int, ...],
    env: dict[int, jax.Array],
    last: frozenset[int],
    tape: Tape | None = None,
    apart: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> None:
    """Execute nodes in order and add their results to ``env``.

    Args:
        graph: Their graph.
        indices: The nodes.
        env: Arrays by value index.
        last: Those to run channels last.
        tape: Nodes to differentiate at once; their pullbacks are put there.
        apart: Groups of nodes to compile apart from the others, by the last node of each, which
            computes the only value that others read.
    """
    ops = load_ops()
    together = {i for part in apart.values() for i in part}
    for i in indices:
        if i in apart:
            _run_apart(graph, apart[i], env, last)
        if i in together:
            continue
        node = graph.nodes[i]
        with failures_of(node), jax.named_scope(node.module or node.op):
            if tape is not None and i in tape:
                results, tape[i] = pull_node(graph, node, env, ops[node.op], i in last)
            else:
                results = run_form(graph, node, env, ops[node.op], i in last)
        for index, array in zip(node.outputs, results, strict=True):
            if index >= 0:
                env[index] = array


def _run_apart(
    graph: Graph, part: tuple[int, ...], env: dict[int, Any], last: frozenset[int]
) -> None:
    """Execute nodes as one function that XLA fuses with nothing around it."""
    produced = {v for i in part for v in graph.nodes[i].outputs}
    refs = dict.fromkeys(v for i in part for v in graph.nodes[i].refs() if v not in produced)
    inputs = [v for v in refs if not isinstance(env[v], (bool, int, float))]
    (result,) = graph.nodes[part[-1]].outputs

    def run(*arrays: jax.Array) -> jax.Array:
        inside = {**{v: env[v] for v in refs}, **dict(zip(inputs, arrays, strict=True))}
        with inlined():
            run_nodes(graph, part, inside, last)
        return inside[result]

    env[result] = compile_apart(run, *[env[v] for v in inputs])


def forward(
    program: Program,
    step: Step,
    state: State,
    tape: Tape | None = None,
    watched: Sequence[WatchedIndex] = (),
) -> State:
    """Execute a FWD step.

    Args:
        program: The program.
        step: The step.
        state: Device memory that the step reads.
        tape: Nodes to differentiate at once.
        watched: Indices to look at.

    Returns:
        The regions it writes: saved activations, outputs for the host, updated buffers; and what
        was found of the indices that it looks at.
    """
    graph = program.graphs[step.graph]
    produced = {v for i in step.nodes for v in graph.nodes[i].outputs}
    env: dict[int, jax.Array] = {}
    for i in step.nodes:
        for v in graph.nodes[i].refs():
            if v not in produced and v not in env:
                env[v] = state[graph.values[v].region]
    last = channels_last_nodes(graph, step.nodes, load_ops())
    writes = set(step.writes)
    outputs = {o.value for o in graph.outputs} | {u.value for u in graph.updates}
    outputs |= {v for v in produced - {-1} if graph.values[v].region in writes}
    outputs |= {entry.use.value for entry in watched if entry.graph == step.graph}
    run_nodes(graph, step.nodes, env, last, tape, checked_parts(graph, step.nodes, outputs))
    result: State = {}

    def of(value: int) -> jax.Array:
        # A copy: the host's view of an output must not alias memory that a later run donates.
        return env[value] if value in produced else jnp.copy(state[graph.values[value].region])

    for v in sorted(produced - {-1}):
        region = graph.values[v].region
        if region in writes and program.regions[region].role is Role.ACTIVATION:
            result[region] = env[v]
    for output in graph.outputs:
        if output.region in writes:
            result[output.region] = of(output.value)
    for update in graph.updates:
        if update.region in writes:
            result[update.region] = of(update.value)
    for entry in watched:
        if entry.graph == step.graph and entry.use.node in step.nodes:
            result[entry.key] = look(env[entry.use.value], entry.use, state.get(entry.key))
    return result


def zeros_like_value(graph: Graph, index: int) -> jax.Array:
    """Zeros of a value's shape and dtype."""
    value = graph.values[index]
    return jnp.zeros(value.shape, TO_NUMPY[value.dtype])  # pyright: ignore[reportUnknownMemberType]  # jax types it in part

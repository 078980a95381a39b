"""Single nodes of a graph, run apart from any section: for looking closely, not for speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from emulator.lowering.section import (
    active_outputs,
    gradient_targets,
    pull_node,
    run_node,
    zeros_like_value,
)
from emulator.ops.registry import load_ops
from pef_schema.program import Arg, Graph, Node, Ref

Arrays = Mapping[int, np.ndarray]
"""Host arrays by value index."""


class SingleNodes:
    """Runs nodes one at a time; nodes of equal form share an executable.

    Args:
        graph: Their graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ops = load_ops()
        self._made: dict[Any, Callable[..., Any]] = {}

    def forward(self, node: Node, env: Arrays) -> dict[int, np.ndarray]:
        """Execute a node.

        Args:
            node: The node.
            env: Values that it takes.

        Returns:
            Its results by value.
        """
        refs = list(dict.fromkeys(node.refs()))

        def run(*arrays: jax.Array) -> tuple[Any, ...]:
            inputs = dict(zip(refs, arrays, strict=True))
            return run_node(self._graph, node, inputs, self._ops[node.op])

        results = self._call(("forward", self._form(node)), run, [env[v] for v in refs])
        return {v: np.array(r) for v, r in zip(node.outputs, results, strict=True) if v >= 0}

    def backward(self, node: Node, env: Arrays, cotangents: Arrays) -> dict[int, np.ndarray]:
        """Differentiate a node.

        Args:
            node: The node.
            env: Values that it takes.
            cotangents: Gradients of its results; missing ones are zeros.

        Returns:
            Gradients by value that it takes.
        """
        graph, spec = self._graph, self._ops[node.op]
        refs = list(dict.fromkeys(node.refs()))
        active, targets = active_outputs(graph, node), gradient_targets(graph, node)
        incoming = [v for v in active if v in cotangents]
        positions = [node.outputs.index(v) for v in active]

        def run(*arrays: jax.Array) -> tuple[Any, ...]:
            full = dict(zip(refs, arrays[: len(refs)], strict=True))
            seeds = dict(zip(incoming, arrays[len(refs) :], strict=True))

            _, pullback = pull_node(graph, node, full, spec)
            return pullback(
                tuple(seeds[v] if v in seeds else zeros_like_value(graph, v) for v in active)
            )

        form = (
            "backward",
            self._form(node),
            tuple(node.outputs.index(v) for v in incoming),
            tuple(positions),
            tuple(refs.index(v) for v in targets),
        )
        arrays = [*(env[v] for v in refs), *(cotangents[v] for v in incoming)]
        results = self._call(form, run, arrays)
        return {v: np.array(g) for v, g in zip(targets, results, strict=True)}

    def _call(self, form: Any, run: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Any:
        with jax.enable_x64(True):
            function = self._made.setdefault(form, jax.jit(run))  # pyright: ignore[reportUnknownMemberType]  # jax types it in part
            # Copies: jax may alias a numpy array, and the caller may write to its own.
            results = function(*(np.array(a) for a in arrays))
            return cast("Any", jax.block_until_ready(results))  # pyright: ignore[reportUnknownMemberType]  # jax types it in part

    def _form(self, node: Node) -> Any:
        """Key of all that the executable of a node depends on."""
        numbers: dict[int, int] = {}
        values = self._graph.values

        def arg(item: Arg) -> Any:
            if isinstance(item, Ref):
                value = values[item.value]
                number = numbers.setdefault(item.value, len(numbers))
                return "value", number, value.shape, value.dtype
            if isinstance(item, tuple):
                return tuple(arg(inner) for inner in item)
            return type(item), repr(item)

        results = tuple(None if v < 0 else (values[v].shape, values[v].dtype) for v in node.outputs)
        kwargs = tuple((name, arg(item)) for name, item in node.kwargs)
        return node.op, tuple(arg(item) for item in node.args), kwargs, results

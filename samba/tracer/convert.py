"""From an exported program to plain graph data: values, nodes, names, sources."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)

from emulator.op_facts.names import ALIAS, CHECKED_BRANCH, NEXT_SEED
from pef_schema.program import CUSTOM_GRADIENT, Arg, DType, Node, Ref, Role, Value
from samba.directives import fusion_of
from samba.support.naming import join_name
from samba.support.tracing import NO_GRAPHAMP
from samba.tracer.arguments import DROPPED_KWARGS, plain_argument, plain_dtype, used_results
from samba.tracer.custom_gradients import GradientRecorder
from samba.tracer.dropout import ZERO_RATE
from samba.tracer.dropout_rates import drawing_nodes, is_training, rate_position
from samba.tracer.embedding_renorms import RENORM
from samba.tracer.errors import TraceError
from samba.tracer.gradient_graphs import GradientGraphs
from samba.tracer.gradient_parts import separated
from samba.tracer.inputs import NamedInput, TraceInputs
from samba.tracer.marker_ops import CHECK, MARKER
from samba.tracer.module_calls import label, last_nodes
from samba.tracer.names import Namer, node_line
from samba.tracer.sources import source_of
from samba.tracer.torch_internals import arguments_of, is_operation
from samba.tracer.traced import Source, Traced, TracedOutput


def convert(
    program: ExportedProgram,
    *,
    model: torch.nn.Module,
    given: TraceInputs,
    root: str,
    prefix: str = "",
    inference: bool,
    rates: Sequence[bool] = (),
    recorder: GradientRecorder | None = None,
) -> Traced:
    """Turn an exported program into a :class:`Traced`.

    Args:
        program: Decomposed so far that every op has a lowering.
        model: The model, for its parameters and their names.
        given: The trace-time inputs in the order of ``forward``.
        root: First part of every name.
        prefix: What the names of operations have before it.
        inference: Whether no gradients are wanted.
        rates: See :func:`samba.tracer.capture.trace_model`.
        recorder: What recorded the gradients that the model defines itself.

    Returns:
        The graph and everything it refers to.

    Raises:
        TraceError: A PEF cannot hold something of it.
    """
    return _Converter(program, model, given, (root, prefix), inference, rates, recorder).build()


class _Converter:
    def __init__(
        self,
        program: ExportedProgram,
        model: torch.nn.Module,
        given: TraceInputs,
        names: tuple[str, str],
        inference: bool,
        rates: Sequence[bool],
        recorder: GradientRecorder | None,
    ) -> None:
        self.program, self.model, self.given = program, model, given
        self.tensor_root, prefix = names
        self.root = f"{prefix}__{self.tensor_root}" if prefix else self.tensor_root
        self.inference, self.recorder = inference, recorder
        self.namer = Namer()
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.sources: list[Source] = []
        self.inputs: list[int] = []
        self.updates: list[tuple[int, int]] = []
        self.of: dict[torch.fx.Node, int | tuple[int, ...]] = {}
        self.tied: dict[int, int] = {}
        self.seed: Ref | None = None
        self.streams = 0
        self.rates = rates
        self.random: frozenset[torch.fx.Node] = frozenset()
        self.exempt: list[int] = []
        self.tables: dict[int, int] = {}
        """Parameters that forward changes, by their latest values."""
        self.separated = separated(program, recorder, self._tensor)
        self.gradients = GradientGraphs(self)

    def build(self) -> Traced:
        nodes = self.separated.nodes
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        given = iter(self.given.tensors)
        for node in nodes:
            if node.op == "placeholder":
                self._source(node, specs[node.name], given)
        self.random = drawing_nodes(nodes, self.rates)
        if self.random or self.gradients.draw(self.separated.parts.values()):
            self._start_seed()
        last = last_nodes(nodes)
        for node in nodes:
            if node.op == "call_function":
                self._node(node, last)
        outputs = self._outputs(nodes[-1])
        self.updates += self.tables.items()
        return Traced(
            name=self.root,
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            inputs=tuple(self.inputs),
            sources=tuple(self.sources),
            outputs=outputs,
            updates=tuple(self.updates),
            structure=_structure(
                self.program, gradients=bool(self.recorder and self.recorder.outputs)
            ),
            fusions=_fusions(self.model, self.root),
            parameter_ids=frozenset(id(p) for p in self.model.parameters()),
            exempt=frozenset(self.exempt),
            gradients=self.gradients.found(),
            graded_state=self.recorder.graded_state if self.recorder else frozenset(),
        )

    def _tensor(self, node: torch.fx.Node) -> object:
        """The tensor that a source stands for, where it can be another's, too."""
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        spec = specs[node.name]
        is_parameter = spec.kind is InputKind.PARAMETER
        return id(self.model.get_parameter(spec.target or "")) if is_parameter else node

    def _value(self, name: str, shape: tuple[int, ...], dtype: DType) -> int:
        self.values.append(Value(name=self.namer.unique(name), shape=shape, dtype=dtype))
        return len(self.values) - 1

    def _source(self, node: torch.fx.Node, spec: InputSpec, given: Iterator[NamedInput]) -> None:
        if not isinstance(spec.arg, TensorArgument):
            return
        source = source_of(
            spec,
            given,
            program=self.program,
            model=self.model,
            root=self.root,
            tensor_root=self.tensor_root,
        )
        if source.role in (Role.WEIGHT, Role.BUFFER):
            first = self.tied.setdefault(id(source.tensor), len(self.values))
            if first < len(self.values):
                self.of[node] = first
                return
        fake = node.meta["val"]
        index = self._value(source.name, tuple(fake.shape), plain_dtype(fake.dtype, source.name))
        if source.role is Role.INPUT:
            self.inputs.append(index)
        self.sources.append(
            replace(
                source,
                value=index,
                name=self.values[index].name,
                requires_grad=source.requires_grad and not self.inference,
            )
        )
        self.of[node] = index

    def _start_seed(self) -> None:
        """The stream state: read once, advanced once, used by every random op."""
        before = self._value(f"{self.root}__seed", (2,), DType.UINT32)
        after = self._value(f"{self.root}__seed__next", (2,), DType.UINT32)
        name = self.values[before].name
        self.sources.append(Source(value=before, role=Role.SEED, name=name, region_name=name))
        self.nodes.append(
            Node(op=NEXT_SEED, args=(Ref(before),), outputs=(after,), module=self.root)
        )
        self.updates.append((after, before))
        self.seed = Ref(after)

    def _node(self, node: torch.fx.Node, last: dict[str, torch.fx.Node]) -> None:
        if node.target is operator.getitem:
            parent, position = node.args
            results = self.of[parent]  # pyright: ignore[reportArgumentType]  # getitem's first argument is a node
            self.of[node] = results[position]  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue]  # of a multi-result op
            return
        op = str(node.target)
        if op == MARKER:
            self._marker(node, last)
            return
        if op == CHECK:
            self._check(node, last)
            return
        if not is_operation(node.target):
            raise TraceError(
                where=node_line(node) or f"model {self.root}",
                reason=f"the Python function {op} stays in the graph",
                hint="Compute on tensors with torch operations only.",
            )
        module, name = label(node, last)
        prefix = join_name(self.root, module)
        args = [self._arg(a, node) for a in node.args]
        kwargs = {k: self._arg(a, node) for k, a in node.kwargs.items() if k not in DROPPED_KWARGS}
        position = rate_position(op)
        if node not in self.random:
            if position is not None and not is_training(node):
                # Nothing is dropped, whatever the rate.
                key = arguments_of(node.target)[position].name
                if position < len(args):
                    args[position] = 0.0
                elif key in kwargs:
                    kwargs[key] = 0.0
        else:
            if position is not None:
                self._rate(args, kwargs, position, f"{prefix}__{name}", node)
            kwargs["seed"] = self.seed
            kwargs["stream"] = self.streams
            self.streams += 1
        outputs, by_position = self._results(node, f"{prefix}__{name}__outputs")
        self.of[node] = by_position
        if op == RENORM and isinstance(args[0], Ref):
            self._changed_table(args[0].value, outputs[0])
        if NO_GRAPHAMP in (node.meta.get("custom") or {}):
            self.exempt.append(len(self.nodes))
        self.nodes.append(
            Node(
                op=op,
                args=tuple(args),
                kwargs=tuple(sorted(kwargs.items())),
                outputs=outputs,
                module=prefix,
                source=node_line(node),
            )
        )

    def _changed_table(self, before: int, after: int) -> None:
        """A parameter that has another value from here on; a buffer's changes are outputs."""
        source = self.tables.pop(before, before)
        if any(s.value == source and s.role is Role.WEIGHT for s in self.sources):
            self.tables[after] = source

    def _marker(self, node: torch.fx.Node, last: dict[str, torch.fx.Node]) -> None:
        """A node whose gradient the model defines itself."""
        module, name = label(node, last)
        prefix = join_name(self.root, module)
        outputs, by_position = self._results(node, f"{prefix}__{name}__outputs")
        results, inputs, _ = node.args
        index, reads = self.gradients.add(self.separated.parts[node])
        self.of[node] = by_position
        self.nodes.append(
            Node(
                op=CUSTOM_GRADIENT,
                args=(index, self._arg(results, node), self._arg(inputs, node), reads),
                outputs=outputs,
                module=prefix,
                source=node_line(node),
            )
        )

    def _check(self, node: torch.fx.Node, last: dict[str, torch.fx.Node]) -> None:
        """A branch that goes one way in the graph: whether it would have gone the other way."""
        module, _ = label(node, last)
        before = self._value(f"{self.root}__check", (), DType.BOOL)
        name = self.values[before].name
        after = self._value(f"{name}__next", (), DType.BOOL)
        self.sources.append(Source(value=before, role=Role.METRIC, name=name, region_name=name))
        condition, taken = node.args
        self.nodes.append(
            Node(
                op=CHECKED_BRANCH,
                args=(Ref(before), self._arg(condition, node), bool(taken)),
                outputs=(after,),
                module=join_name(self.root, module),
                source=node_line(node),
            )
        )
        self.updates.append((after, before))

    def _rate(
        self,
        args: list[Arg],
        kwargs: dict[str, Arg],
        position: int,
        prefix: str,
        node: torch.fx.Node,
    ) -> None:
        """Make the dropout rate an argin, so that it can change without a compile."""
        schema = arguments_of(node.target)
        index = self._value(f"{prefix}__p", (), DType.FLOAT64)
        name = self.values[index].name
        key = schema[position].name
        if key in kwargs:
            rate, kwargs[key] = kwargs[key], Ref(index)
        else:
            args += [self._arg(s.default_value, node) for s in schema[len(args) : position + 1]]
            rate, args[position] = args[position], Ref(index)
        self.sources.append(
            Source(
                value=index,
                role=Role.ARGIN,
                name=name,
                region_name=name,
                default=0.0 if rate == ZERO_RATE else float(rate),  # pyright: ignore[reportArgumentType]  # schema says float
            )
        )

    def _results(
        self, node: torch.fx.Node, prefix: str
    ) -> tuple[tuple[int, ...], int | tuple[int, ...]]:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            index = self._value(
                f"{prefix}__0", tuple(value.shape), plain_dtype(value.dtype, prefix)
            )
            return (index,), index
        results = tuple(
            -1
            if v is None
            else self._value(f"{prefix}__{i}", tuple(v.shape), plain_dtype(v.dtype, prefix))
            for i, v in enumerate(used_results(node))
        )
        return results, results

    def _arg(self, arg: Any, node: torch.fx.Node) -> Arg:
        return plain_argument(arg, node, self._ref, where=f"model {self.root}")

    def _ref(self, node: torch.fx.Node) -> Arg:
        value = self.of.get(node)
        if isinstance(value, tuple):
            return tuple(Ref(v) for v in value)
        return None if value is None else Ref(value)  # None: an absent optional input

    def _outputs(self, node: torch.fx.Node) -> tuple[TracedOutput, ...]:
        results = cast("list[torch.fx.Node]", node.args[0])
        buffers = {s.path: s.value for s in self.sources if s.role is Role.BUFFER}
        outputs: list[TracedOutput] = []
        names = Namer()
        count = self.separated.outputs
        specs = self.program.graph_signature.output_specs[:count]
        for spec, result in zip(specs, results[:count], strict=True):
            if spec.kind is OutputKind.TOKEN:
                continue  # torch's order of checks, which are dropped
            if not isinstance(spec.arg, TensorArgument):
                value = getattr(spec.arg, "value", spec.arg)
                if value is None:
                    continue
                raise self._no_tensor(f"{type(value).__name__} {value!r:.60}")
            if result.op == "placeholder" and result.target == spec.target:
                continue  # changed in form only
            index = self.of[result]
            if not isinstance(index, int):
                raise self._no_tensor(spec.arg.name)
            if spec.kind is OutputKind.USER_OUTPUT:
                index = self._own_value(index)
                outputs.append(
                    TracedOutput(value=index, name=names.unique(self.values[index].name))
                )
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                self.updates.append((index, buffers[spec.target or ""]))
            else:
                raise TraceError(
                    where=f"model {self.root}",
                    reason=f"forward() changes {spec.target} in place ({spec.kind.name})",
                    hint="Only registered buffers may change in forward(); "
                    "work on a copy of the input.",
                )
        if not outputs:
            raise self._no_tensor("nothing but None")
        return tuple(outputs)

    def _no_tensor(self, found: str) -> TraceError:
        return TraceError(
            where=f"model {self.root}",
            reason=f"forward() returns {found}, which is no tensor",
            hint="It must return a tensor, or tensors in tuples, lists, dicts or dataclasses; None "
            "among them is left out.",
        )

    def _own_value(self, index: int) -> int:
        """A value of its own for an output that is an input, a parameter or a buffer.

        It then has a name, a place in memory and a gradient that starts there.
        """
        if all(source.value != index for source in self.sources):
            return index
        value = self.values[index]
        name = f"{join_name(self.root, 'output')}__{value.name.removeprefix(f'{self.root}__')}"
        copy = self._value(name, value.shape, value.dtype)
        self.nodes.append(Node(op=ALIAS, args=(Ref(index),), outputs=(copy,), module=self.root))
        return copy


def _structure(program: ExportedProgram, *, gradients: bool) -> str:
    kind = program.call_spec.out_spec
    if gradients and kind is not None:
        kind = kind.child(0)  # behind the model's own results
    type_ = getattr(kind, "type", None)
    return {tuple: "tuple", list: "list", dict: "dict"}.get(type_, "tensor")


def _fusions(model: torch.nn.Module, root: str) -> tuple[tuple[str, str], ...]:
    found = []
    for path, module in model.named_modules():
        name = fusion_of(module)
        if name:
            found.append((join_name(root, path), name))
    return tuple(found)

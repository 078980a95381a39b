"""From an exported program to plain graph data: values, nodes, names, sources."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

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
from samba.support.marks import mark_of
from samba.support.naming import Namer, join_name
from samba.support.tracing import NO_GRAPHAMP
from samba.tracer.errors import TraceError
from samba.tracer.grad_mode import RENORM
from samba.tracer.gradient_parts import SeparatedGraph
from samba.tracer.inputs import NamedInput
from samba.tracer.kernel_refusals import refuse_raising
from samba.tracer.marker_ops import CHECK, MARKER
from samba.tracer.nodes import dropout_module, label, last_nodes
from samba.tracer.plain_nodes import GradientGraphs, PlainNodes, plain_dtype
from samba.tracer.preparing import Prepared
from samba.tracer.random_draws import ZERO_RATE, drawing_nodes, rate_position
from samba.tracer.torch_internals import arguments_of, is_operation
from samba.tracer.traced import Source, Traced, TracedOutput


def convert(
    separated: SeparatedGraph,
    prepared: Prepared,
    *,
    root: str,
    prefix: str = "",
    rates: Sequence[bool] = (),
) -> Traced:
    """Turn an exported graph into a :class:`Traced`.

    Args:
        separated: The graph, decomposed so far that every op has a lowering, without backward
            passes.
        prepared: The model, the trace-time inputs, and the gradients that the model defines itself.
        root: First part of every name.
        prefix: What the names of operations have before it.
        rates: See :func:`samba.tracer.capture.trace_model`.

    Returns:
        The graph and everything it refers to.

    Raises:
        TraceError: A PEF cannot hold something of it, or torch would raise in every run.
    """
    traced = _Converter(separated, prepared, root, prefix, rates).build()
    refuse_raising(traced)
    return traced


class _Converter(PlainNodes):
    def __init__(
        self,
        separated: SeparatedGraph,
        prepared: Prepared,
        root: str,
        prefix: str,
        rates: Sequence[bool],
    ) -> None:
        self.tensor_root, self.root = root, f"{prefix}__{root}" if prefix else root
        super().__init__(f"model {self.root}")
        self.separated, self.program, self.model = separated, separated.program, prepared.model
        self.given, self.inference, self.rates = prepared.given, prepared.inference, rates
        self.recorder, self.known = prepared.recorder, prepared.branches.known
        self.namer = Namer()
        self.sources: list[Source] = []
        self.inputs: list[int] = []
        self.updates: list[tuple[int, int]] = []
        self.tied: dict[int, int] = {}
        self.buffers: dict[str, int] = {}
        """Parameters and buffers by their paths, several of which may be one."""
        self.exempt: list[int] = []
        self.tables: dict[int, int] = {}
        """Parameters that forward changes, by their latest values."""
        self.gradients = GradientGraphs(self)

    def build(self) -> Traced:
        nodes = self.separated.nodes
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        entries = iter(self.given.tensors)
        for node in nodes:
            if node.op == "placeholder":
                self._source(node, specs[node.name], entries)
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
            structure=_structure(self.program, gradients=bool(self.recorder.outputs)),
            fusions=_fusions(self.model, self.root),
            parameter_ids=frozenset(id(p) for p in self.model.parameters()),
            exempt=frozenset(self.exempt),
            gradients=self.gradients.all(),
            graded_state=self.recorder.graded_state,
            known=self.known.buffers(),
        )

    def _value(self, name: str, shape: tuple[int, ...], dtype: DType) -> int:
        self.values.append(Value(name=self.namer.unique(name), shape=shape, dtype=dtype))
        return len(self.values) - 1

    def _source(self, node: torch.fx.Node, spec: InputSpec, entries: Iterator[NamedInput]) -> None:
        if not isinstance(spec.arg, TensorArgument):
            return
        source = self._source_of(spec, entries)
        if source.role in (Role.WEIGHT, Role.BUFFER):
            first = self.tied.setdefault(id(source.tensor), len(self.values))
            self.buffers[source.path] = first
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

    def _source_of(self, spec: InputSpec, entries: Iterator[NamedInput]) -> Source:
        """Find the tensor behind an input of the graph, and its names; of no value yet (-1).

        Args:
            spec: The input.
            entries: The trace-time inputs that no spec before this one stood for.

        Raises:
            TraceError: It is neither an argument, a parameter, a buffer nor a constant.
        """
        path = spec.target or ""
        tensor: torch.Tensor
        requires_grad = False
        match spec.kind:
            case InputKind.USER_INPUT:
                entry = next(entries)
                role, name, region = Role.INPUT, entry.name, entry.region_name
                tensor, requires_grad = entry.tensor, entry.requires_grad
            case InputKind.PARAMETER:
                tensor = self.model.get_parameter(path)
                role, requires_grad = Role.WEIGHT, bool(tensor.requires_grad)
                name, region = self._names(tensor, path)
            case InputKind.BUFFER:
                tensor = self.model.get_buffer(path)
                role = Role.BUFFER
                name, region = self._names(tensor, path)
            case InputKind.CONSTANT_TENSOR:
                tensor = cast(torch.Tensor, self.program.constants[path])
                role = Role.CONSTANT
                name = region = join_name(self.root, path)
            case _:
                raise TraceError(
                    where=self.where,
                    reason=f"an input of kind {spec.kind.name} cannot be compiled",
                    hint="Pass plain tensors to forward().",
                )
        return Source(
            value=-1,
            role=role,
            name=name,
            region_name=region,
            path=path,
            tensor=tensor,
            requires_grad=requires_grad,
        )

    def _names(self, tensor: torch.Tensor, path: str) -> tuple[str, str]:
        name = getattr(tensor, "sn_name", "") or join_name(self.tensor_root, path)
        return name, getattr(tensor, "sn_region_name", "") or name

    def _start_seed(self) -> None:
        """The stream state: read once, advanced once, used by every random op."""
        before, after = self._state(f"{self.root}__seed", Role.SEED, (2,), DType.UINT32)
        self.nodes.append(
            Node(op=NEXT_SEED, args=(Ref(before),), outputs=(after,), module=self.root)
        )
        self.seed = Ref(after)

    def _node(self, node: torch.fx.Node, last: dict[str, torch.fx.Node]) -> None:
        if node.target is operator.getitem:
            self.part(node)
            return
        op = str(node.target)
        module, name = label(node, last) if is_operation(node.target) else ("", "")
        module = join_name(self.root, module)
        prefix = f"{module}__{name}"
        if op == CHECK:
            self._check(node, module)
        elif op == MARKER:
            self._marker(node, module, prefix)
        else:
            if mark_of(node, NO_GRAPHAMP):
                self.exempt.append(len(self.nodes))
            self.operation(node, module=module, prefix=prefix)
            table = self.nodes[-1].args[0] if op == RENORM else None
            if isinstance(table, Ref):
                self._changed_table(table.value, self.nodes[-1].outputs[0])

    def new_value(self, name: str, tensor: torch.Tensor) -> int:
        return self._value(name, tuple(tensor.shape), plain_dtype(tensor.dtype, name))

    def draw(
        self, node: torch.fx.Node, args: list[Arg], kwargs: dict[str, Arg], prefix: str
    ) -> None:
        """Draw of the graph's stream, at a rate that can change from run to run."""
        position = rate_position(str(node.target))
        if position is not None:
            self._rate(args, kwargs, position, prefix, node)
        kwargs.update(seed=self.seed, stream=self.streams)
        self.streams += 1

    def _changed_table(self, before: int, after: int) -> None:
        """A parameter that has another value from here on; a buffer's changes are outputs."""
        source = self.tables.pop(before, before)
        if any(s.value == source and s.role is Role.WEIGHT for s in self.sources):
            self.tables[after] = source

    def _marker(self, node: torch.fx.Node, module: str, prefix: str) -> None:
        """A node whose gradient the model defines itself."""
        results, inputs, _ = node.args
        outputs = self.results(node, prefix)
        index, reads = self.gradients.add(self.separated.parts[node])
        args = index, self.argument(results, node), self.argument(inputs, node), reads
        self.add(node, CUSTOM_GRADIENT, args, {}, outputs, module)

    def _check(self, node: torch.fx.Node, module: str) -> None:
        """A branch that goes one way in the graph: whether it would have gone the other way."""
        before, after = self._state(f"{self.root}__check", Role.METRIC, (), DType.BOOL)
        condition, outcome = node.args
        args = Ref(before), self.argument(condition, node), bool(outcome)
        self.add(node, CHECKED_BRANCH, args, {}, (after,), module)

    def _state(
        self, name: str, role: Role, shape: tuple[int, ...], dtype: DType
    ) -> tuple[int, int]:
        """State of the graph's own: its value before a run, and the one after it."""
        before = self._value(name, shape, dtype)
        name = self.values[before].name
        after = self._value(f"{name}__next", shape, dtype)
        self.sources.append(Source(value=before, role=role, name=name, region_name=name))
        self.updates.append((after, before))
        return before, after

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
        if kind := dropout_module(node):  # a module of several operations is one to scripts
            prefix = f"{prefix.rpartition('__')[0]}__{kind}"
        index = self._value(f"{prefix}__p", (), DType.FLOAT64)
        name = self.values[index].name
        key = schema[position].name
        if key in kwargs:
            rate, kwargs[key] = kwargs[key], Ref(index)
        else:
            args += [self.argument(s.default_value, node) for s in schema[len(args) : position + 1]]
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

    def _outputs(self, node: torch.fx.Node) -> tuple[TracedOutput, ...]:
        results = cast("list[torch.fx.Node]", node.args[0])
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
                self.updates.append((index, self.buffers[spec.target or ""]))
            else:
                raise TraceError(
                    where=self.where,
                    reason=f"forward() changes {spec.target} in place ({spec.kind.name})",
                    hint="Only registered buffers may change in forward(); "
                    "work on a copy of the input.",
                )
        if not outputs:
            raise self._no_tensor("nothing but None")
        return tuple(outputs)

    def _no_tensor(self, result: str) -> TraceError:
        return TraceError(
            where=self.where,
            reason=f"forward() returns {result}, which is not a tensor",
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
    fusions = []
    for path, module in model.named_modules():
        name = fusion_of(module)
        if name:
            fusions.append((join_name(root, path), name))
    return tuple(fusions)

"""From an exported program to plain graph data: values, nodes, names, sources."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument

from emulator.op_facts.names import ALIAS, NEXT_SEED
from emulator.op_facts.table import op_facts
from pef_schema.program import Arg, DType, Graph, Node, Ref, Role, Value
from samba.support.naming import join_name
from samba.support.tracing import NO_GRAPHAMP
from samba.tracer.dropout import ZERO_RATE
from samba.tracer.errors import TraceError
from samba.tracer.inputs import TraceInputs
from samba.tracer.names import Namer, source_line
from samba.tracer.torch_internals import arguments_of, is_operation, packet_of
from samba.tracer.traced import TO_DTYPE, Source, Traced, TracedOutput

_DROPPED_KWARGS = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
)
_RATE_ARGUMENT = {
    "aten.native_dropout.default": 1,
    "aten.dropout.default": 1,
    "aten.scaled_dot_product_attention.default": 4,
    "aten.lstm.input": 5,
    "aten.gru.input": 5,
    "aten.rnn_tanh.input": 5,
    "aten.rnn_relu.input": 5,
}
"""Where an op takes its dropout rate: the rate becomes an argin."""

_DROPOUTS = frozenset({"aten.native_dropout.default", "aten.dropout.default"})
"""Those that do nothing else: their rate is an argin even if it is 0."""


def convert(
    program: ExportedProgram,
    *,
    model: torch.nn.Module,
    given: TraceInputs,
    root: str,
    prefix: str = "",
    inference: bool,
    rates: Sequence[bool] = (),
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

    Returns:
        The graph and everything it refers to.
    """
    return _Converter(program, model, given, (root, prefix), inference, rates).build()


def takes_rate(op: str) -> bool:
    """Whether an operation takes a dropout rate, and so draws nothing at rate 0."""
    return op in _RATE_ARGUMENT


def rate_argins(graph: Graph) -> tuple[bool, ...]:
    """For each operation of a graph that takes a dropout rate, whether that is an argin."""
    return tuple(
        isinstance(dict(enumerate(node.args)).get(_RATE_ARGUMENT[node.op]), Ref)
        for node in graph.nodes
        if node.op in _RATE_ARGUMENT
    )


class _Converter:
    def __init__(
        self,
        program: ExportedProgram,
        model: torch.nn.Module,
        given: TraceInputs,
        names: tuple[str, str],
        inference: bool,
        rates: Sequence[bool],
    ) -> None:
        self.program, self.model, self.given = program, model, given
        self.tensor_root, prefix = names
        self.root = f"{prefix}__{self.tensor_root}" if prefix else self.tensor_root
        self.inference = inference
        self.ops = op_facts()
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
        self.random: set[torch.fx.Node] = set()
        self.exempt: list[int] = []

    def build(self) -> Traced:
        nodes = list(self.program.graph.nodes)
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        remaining = list(self.given.tensors)
        for node in nodes:
            if node.op == "placeholder":
                self._source(node, specs[node.name], remaining)
        self._find_random(nodes)
        if self.random:
            self._start_seed()
        last = _last_of_module(nodes)
        for node in nodes:
            if node.op == "call_function":
                self._node(node, last)
        outputs = self._outputs(nodes[-1])
        return Traced(
            name=self.root,
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            inputs=tuple(self.inputs),
            sources=tuple(self.sources),
            outputs=outputs,
            updates=tuple(self.updates),
            structure=_structure(self.program),
            fusions=_fusions(self.model, self.root),
            parameter_ids=frozenset(id(p) for p in self.model.parameters()),
            exempt=frozenset(self.exempt),
        )

    def _value(self, name: str, shape: tuple[int, ...], dtype: DType) -> int:
        self.values.append(Value(name=self.namer.unique(name), shape=shape, dtype=dtype))
        return len(self.values) - 1

    def _source(self, node: torch.fx.Node, spec: InputSpec, remaining: list[Any]) -> None:
        if not isinstance(spec.arg, TensorArgument):
            return
        fake = node.meta["val"]
        path = spec.target or ""
        tensor: torch.Tensor | None = None
        requires_grad = False
        match spec.kind:
            case InputKind.USER_INPUT:
                entry = remaining.pop(0)
                role, name, region = Role.INPUT, entry.name, entry.region_name
                tensor, requires_grad = entry.tensor, entry.requires_grad
            case InputKind.PARAMETER:
                tensor = self.model.get_parameter(path)
                role, requires_grad = Role.WEIGHT, bool(tensor.requires_grad)
                name, region = self._tensor_name(tensor, path)
            case InputKind.BUFFER:
                tensor = self.model.get_buffer(path)
                role = Role.BUFFER
                name, region = self._tensor_name(tensor, path)
            case InputKind.CONSTANT_TENSOR:
                tensor = cast(torch.Tensor, self.program.constants[path])
                role = Role.CONSTANT
                name = region = join_name(self.root, path)
            case _:
                raise TraceError(
                    where=f"model {self.root}",
                    reason=f"an input of kind {spec.kind.name} cannot be compiled",
                    hint="Pass plain tensors to forward().",
                )
        if role in (Role.WEIGHT, Role.BUFFER):
            first = self.tied.setdefault(id(tensor), len(self.values))
            if first < len(self.values):
                self.of[node] = first
                return
        index = self._value(name, tuple(fake.shape), _dtype(fake.dtype, name))
        name = self.values[index].name
        if role is Role.INPUT:
            self.inputs.append(index)
        self.sources.append(
            Source(
                value=index,
                role=role,
                name=name,
                region_name=region,
                path=path,
                tensor=tensor,
                requires_grad=requires_grad and not self.inference,
            )
        )
        self.of[node] = index

    def _tensor_name(self, tensor: torch.Tensor, path: str) -> tuple[str, str]:
        name = getattr(tensor, "sn_name", "") or join_name(self.tensor_root, path)
        return name, getattr(tensor, "sn_region_name", "") or name

    def _find_random(self, nodes: list[torch.fx.Node]) -> None:
        rated = 0
        for node in nodes:
            op = str(node.target)
            spec = self.ops.get(op) if node.op == "call_function" else None
            if spec is None or not spec.random:
                continue
            position = _RATE_ARGUMENT.get(op)
            if position is None:
                self.random.add(node)
                continue
            wanted = rated < len(self.rates) and self.rates[rated]
            rated += 1
            given = op in _DROPOUTS or bool(_argument(node, position, 0.0))
            if (wanted or given) and _trains(node):
                self.random.add(node)

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
        if not is_operation(node.target):
            raise TraceError(
                where=source_line(node.meta.get("stack_trace")) or f"model {self.root}",
                reason=f"the Python function {op} stays in the graph",
                hint="Compute on tensors with torch operations only.",
            )
        module, label = _label(node, last)
        prefix = join_name(self.root, module)
        args = [self._arg(a, node) for a in node.args]
        kwargs = {k: self._arg(a, node) for k, a in node.kwargs.items() if k not in _DROPPED_KWARGS}
        position = _RATE_ARGUMENT.get(op)
        if node not in self.random:
            if position is not None and position < len(args) and not _trains(node):
                args[position] = 0.0  # nothing is dropped, whatever the rate
        else:
            if position is not None:
                self._rate(args, kwargs, position, f"{prefix}__{label}", node)
            kwargs["seed"] = self.seed
            kwargs["stream"] = self.streams
            self.streams += 1
        outputs, by_position = self._results(node, f"{prefix}__{label}__outputs")
        self.of[node] = by_position
        if NO_GRAPHAMP in (node.meta.get("custom") or {}):
            self.exempt.append(len(self.nodes))
        self.nodes.append(
            Node(
                op=op,
                args=tuple(args),
                kwargs=tuple(sorted(kwargs.items())),
                outputs=outputs,
                module=prefix,
                source=source_line(node.meta.get("stack_trace")),
            )
        )

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
            index = self._value(f"{prefix}__0", tuple(value.shape), _dtype(value.dtype, prefix))
            return (index,), index
        used = {cast(int, user.args[1]) for user in node.users if user.target is operator.getitem}
        results = tuple(
            self._value(f"{prefix}__{i}", tuple(v.shape), _dtype(v.dtype, prefix))
            if i in used and isinstance(v, torch.Tensor)
            else -1
            for i, v in enumerate(value)
        )
        return results, results

    def _arg(self, arg: Any, node: torch.fx.Node) -> Arg:
        if isinstance(arg, torch.fx.Node):
            value = self.of.get(arg)
            if value is None:
                return None  # an absent optional input
            if isinstance(value, tuple):
                return tuple(Ref(v) for v in value)
            return Ref(value)
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(a, node) for a in arg)
        if arg is None or isinstance(arg, (bool, int, float, str)):
            return arg
        if isinstance(arg, torch.dtype):
            return _dtype(arg, str(node.target))
        if isinstance(arg, (torch.device, torch.layout, torch.memory_format)):
            return None
        raise TraceError(
            where=source_line(node.meta.get("stack_trace")) or f"model {self.root}",
            reason=f"{node.target} takes {type(arg).__name__} {arg!r}, which a PEF cannot hold",
            hint="Shapes and settings must be fixed numbers when the model is compiled.",
        )

    def _outputs(self, node: torch.fx.Node) -> tuple[TracedOutput, ...]:
        results = cast("list[torch.fx.Node]", node.args[0])
        buffers = {s.path: s.value for s in self.sources if s.role is Role.BUFFER}
        outputs: list[TracedOutput] = []
        names = Namer()
        specs = self.program.graph_signature.output_specs
        for spec, result in zip(specs, results, strict=True):
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
                index = self._apart(index)
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

    def _apart(self, index: int) -> int:
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


def _argument(node: torch.fx.Node, position: int, default: Any) -> Any:
    if position < len(node.args):
        return node.args[position]
    name = arguments_of(node.target)[position].name
    return node.kwargs.get(name, default)


def _trains(node: torch.fx.Node) -> bool:
    op = str(node.target)
    if op in _DROPOUTS:
        return _argument(node, 2, True) is not False
    if op.startswith("aten.scaled_dot_product_attention"):
        return True
    return bool(_argument(node, 6, False))


def _dtype(dtype: torch.dtype, where: str) -> DType:
    try:
        return TO_DTYPE[dtype]
    except KeyError:
        raise TraceError(
            where=where,
            reason=f"dtype {dtype} is not supported",
            hint=f"Supported: {', '.join(sorted(str(d) for d in TO_DTYPE))}.",
        ) from None


def _stack(node: torch.fx.Node) -> list[tuple[str, str, str]]:
    """``(call key, module path, class)`` from the model down to the innermost module."""
    stack = node.meta.get("nn_module_stack") or {}
    result = []
    for key, (path, cls) in stack.items():
        name = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        result.append((key, str(path).split("@")[0], name))
    return result


def _last_of_module(nodes: list[torch.fx.Node]) -> dict[str, torch.fx.Node]:
    """The last node of each call of a module; it carries the module's own name."""
    last: dict[str, torch.fx.Node] = {}
    for node in nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            stack = _stack(node)
            if stack:
                last[stack[-1][0]] = node
    return last


def _label(node: torch.fx.Node, last: dict[str, torch.fx.Node]) -> tuple[str, str]:
    """Module path and op label: a torch.nn module's last op is called like the module's class."""
    packet = packet_of(node.target)
    stack = _stack(node)
    if not stack:
        return "", packet.strip("_")
    key, path, cls = stack[-1]
    if cls.startswith("torch.nn.modules.") and last.get(key) is node:
        return path, cls.rsplit(".", 1)[-1].lower()
    return path, packet.strip("_")


def _structure(program: ExportedProgram) -> str:
    kind = program.call_spec.out_spec
    type_ = getattr(kind, "type", None)
    return {tuple: "tuple", list: "list", dict: "dict"}.get(type_, "tensor")


def _fusions(model: torch.nn.Module, root: str) -> tuple[tuple[str, str], ...]:
    from samba.directives import fusion_of

    found = []
    for path, module in model.named_modules():
        name = fusion_of(module)
        if name:
            found.append((join_name(root, path), name))
    return tuple(found)

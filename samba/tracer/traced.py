"""The result of a trace: a graph without regions, and where each outside value comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pef_schema.program import DType, Gradient, Graph, Node, Output, Role, Update, Value
from samba.tracer.layouts import Looks

TO_DTYPE: dict[torch.dtype, DType] = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.uint32: DType.UINT32,
    torch.complex64: DType.COMPLEX64,
    torch.complex128: DType.COMPLEX128,
}
FROM_DTYPE: dict[DType, torch.dtype] = {v: k for k, v in TO_DTYPE.items()}


def carries_gradient(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a type that can carry a gradient: floating or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A value that comes from outside the graph.

    Args:
        value: Its index among the graph's values.
        role: INPUT, WEIGHT, BUFFER, CONSTANT, ARGIN or SEED.
        name: SambaFlow name.
        region_name: Name of its place in device memory.
        path: Attribute path in the model (``lin_layer.weight``), empty where there is none.
        tensor: The host tensor; None for argins and the seed.
        requires_grad: Whether a gradient is wanted.
        default: Default of an argin.
    """

    value: int
    role: Role
    name: str
    region_name: str
    path: str = ""
    tensor: torch.Tensor | None = None
    requires_grad: bool = False
    default: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOutput:
    """One result of ``forward``.

    Args:
        value: Its value.
        name: Its SambaFlow name.
        region_name: Name of its place in device memory, if it shares that with other tensors.
    """

    value: int
    name: str
    region_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A traced model.

    Args:
        name: Root name, the lower-cased class name.
        values, nodes: The graph, without regions.
        inputs: Values the host provides, in the order of ``forward``.
        sources: Every value that no node produces.
        outputs: Results in order.
        updates: ``(new value, source value)`` pairs: state that forward changes.
        structure: ``"tensor"``, ``"tuple"``, ``"list"`` or ``"dict"``: what forward returns.
        fusions: ``(module name, fusion name)`` pairs from ``directives.op_fusion``.
        parameter_ids: Identities of all parameters of the model.
        exempt: Nodes traced inside of ``session.disable_graphamp()``.
        gradients: Custom gradients that nodes refer to.
        graded_state: Paths of the buffers that forward gives something with a gradient.
        looks: What forward asks of how tensors lie in memory, None if it does not.
        known: Paths of buffers whose values are part of the graph, with these values.
        viewed: Places of the inputs that may have a view that hangs on how they lie in memory.
    """

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    sources: tuple[Source, ...]
    outputs: tuple[TracedOutput, ...]
    updates: tuple[tuple[int, int], ...]
    structure: str
    fusions: tuple[tuple[str, str], ...] = ()
    parameter_ids: frozenset[int] = frozenset()
    exempt: frozenset[int] = frozenset()
    gradients: tuple[Gradient, ...] = ()
    graded_state: frozenset[str] = frozenset()
    looks: Looks | None = None
    known: tuple[tuple[str, torch.Tensor], ...] = ()
    viewed: frozenset[int] = frozenset()

    def changed_buffers(self) -> frozenset[str]:
        """Paths of the buffers that ``forward`` changes."""
        changed = {old for _, old in self.updates}
        return frozenset(s.path for s in self.sources if s.value in changed and s.path)

    def knows(self, parameter: torch.Tensor) -> bool:
        """Whether a tensor is a parameter of the traced model, used by ``forward`` or not."""
        return id(parameter) in self.parameter_ids

    def graph(self) -> Graph:
        """The bare graph, for comparing with a compiled one.

        Regions say only which state an update changes: sources of one region name share a number.
        """
        first: dict[str, int] = {}
        home = {s.value: first.setdefault(s.region_name, s.value) for s in self.sources}
        return Graph(
            name=self.name,
            values=tuple(
                replace(value, region=home.get(index, -1))
                for index, value in enumerate(self.values)
            ),
            nodes=self.nodes,
            inputs=self.inputs,
            outputs=tuple(Output(name=o.name, value=o.value, region=-1) for o in self.outputs),
            updates=tuple(
                Update(value=new, region=home[old]) for new, old in self.updates if old in home
            ),
            gradients=self.gradients,
        )

"""The Program: what a PEF holds and what the device runs, as plain frozen data.

A ``Program`` is the contract between the compiler (``samba.compiler``, which
builds one) and the device (``emulator``, which lowers and runs one). It is made
of tuples and enums only: no tensors, no callables, nothing that needs torch or
jax. Cross references are indices into the program's own tuples, so that a
reader can check every one of them.

How the parts hang together::

    Graph      values + nodes: one functional forward graph
    Gradient   values + nodes: a backward pass that a model defines itself
    Region     a named piece of device memory; a value with a home has one
    Section    what the device runs as one unit: one or more Steps
    Step       one phase of a section (FWD, BCKWD, OPT, ...) over the graph's nodes
    Schedule   the order of section calls, one per graph
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from pef_schema.drawing import Drawable
from pef_schema.optimizer_rules import OptimizerKind as OptimizerKind


class DType(enum.IntEnum):
    """Element types of device memory; the names are torch's. Last used id: 13."""

    BOOL = 1
    UINT8 = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    FLOAT16 = 7
    BFLOAT16 = 8
    FLOAT32 = 9
    FLOAT64 = 10
    UINT32 = 11
    COMPLEX64 = 12
    COMPLEX128 = 13

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def is_floating(self) -> bool:
        """Whether values of this type are real numbers with fractions."""
        return self in _FLOATING

    @property
    def is_complex(self) -> bool:
        """Whether values of this type are complex numbers."""
        return self in _COMPLEX

    @property
    def has_gradient(self) -> bool:
        """Whether values of this type can carry a gradient."""
        return self in _FLOATING or self in _COMPLEX


_ITEMSIZE = {
    **dict.fromkeys((DType.BOOL, DType.UINT8, DType.INT8), 1),
    **dict.fromkeys((DType.INT16, DType.FLOAT16, DType.BFLOAT16), 2),
    **dict.fromkeys((DType.INT32, DType.FLOAT32, DType.UINT32), 4),
    **dict.fromkeys((DType.INT64, DType.FLOAT64, DType.COMPLEX64), 8),
    DType.COMPLEX128: 16,
}
_FLOATING = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
_COMPLEX = frozenset({DType.COMPLEX64, DType.COMPLEX128})


class Role(enum.IntEnum):
    """Why a region exists. Last used id: 13."""

    INPUT = 1
    """Written by the host before a run."""
    WEIGHT = 2
    """A trainable or frozen parameter."""
    BUFFER = 3
    """Module state that is not a parameter, such as BatchNorm statistics."""
    CONSTANT = 4
    """Data stored in the PEF; never written."""
    ACTIVATION = 5
    """A forward value kept for another section. Transient."""
    OUTPUT = 6
    """A value that the host may fetch after a run."""
    GRADIENT = 7
    """Gradient of a weight or of an input; the host may read and write it."""
    OUTPUT_GRADIENT = 8
    """Cotangent of an output: what seeds the backward pass."""
    COTANGENT = 9
    """Gradient of an activation between two backward sections. Transient."""
    OPTIMIZER_STATE = 10
    """Momentum, second moments, step counts."""
    ARGIN = 11
    """A 0-d hyperparameter that the host sets between runs."""
    SEED = 12
    """State of the random number stream, advanced once per forward pass."""
    METRIC = 13
    """A 0-d figure a section reports, such as a gradient norm."""

    @property
    def is_transient(self) -> bool:
        """Whether contents may be dropped once every reader has run."""
        return self in (Role.ACTIVATION, Role.COTANGENT)


class SectionKind(enum.IntEnum):
    """Kind of a step: what it computes. Last used id: 6."""

    ZEROGRAD = 1
    FWD = 2
    BCKWD = 3
    REDUCE = 4
    GRADNORM = 5
    OPT = 6


class ArginKind(enum.IntEnum):
    """Kind of an argin: what it controls. Last used id: 5."""

    LR = 1
    MOMENTUM = 2
    WEIGHT_DECAY = 3
    DROPOUT_RATE = 4
    DROPOUT_SEED = 5


class OutputGrad(enum.IntEnum):
    """Cotangent of an output until the host sets it. Last used id: 3."""

    NONE = 1
    """The output takes no part in the backward pass unless the host sets a gradient."""
    ONES = 2
    """The output is a loss."""
    ABSENT = 3
    """The output is not differentiable, or the program has no backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A named piece of device memory.

    Args:
        name: Unique name, e.g. ``logreg__lin_layer__weight``.
        shape: Sizes, outermost first.
        dtype: Element type.
        role: Why it exists.
        segment: Index into ``Program.segments`` of its initial bytes; -1 for none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: Role
    segment: int = -1

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A tensor name users know, and where its data and its gradient live.

    Several symbols may share a region (``SambaTensor.sn_region_name``).
    """

    name: str
    region: int
    grad_region: int = -1


@dataclass(frozen=True, slots=True)
class Ref:
    """A node argument that is a value of the graph."""

    value: int


Arg = Ref | DType | None | bool | int | float | complex | str | tuple["Arg", ...]
"""A node argument. A tuple is a list; a ``Ref`` may stand inside one, two levels deep at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One tensor of a graph.

    Args:
        name: Unique in the graph, e.g. ``logreg__lin_layer__linear__outputs__0``.
        shape: Sizes.
        dtype: Element type.
        region: Home in device memory, -1 if it lives only inside a section.
        grad_region: Home of its gradient, -1 for none.
        needs_grad: Whether a gradient flows through it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    region: int = -1
    grad_region: int = -1
    needs_grad: bool = False

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def refs_of(arg: Arg) -> Iterator[int]:
    """Values an argument refers to.

    Example:
        >>> list(refs_of((Ref(3), (None, Ref(5)), 7)))
        [3, 5]
    """
    if isinstance(arg, Ref):
        yield arg.value
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs_of(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation.

    Args:
        op: Name in the op registry, e.g. ``aten.linear.default``.
        args: Positional arguments in the order of the op's schema.
        kwargs: Keyword arguments, sorted by name.
        outputs: Value indices; -1 for a result that nobody uses.
        module: Module path, e.g. ``logreg__lin_layer``.
        source: ``file:line`` of the user's code, empty if unknown.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outputs: tuple[int, ...]
    module: str = ""
    source: str = ""

    def refs(self) -> Iterator[int]:
        """Values it takes, positional arguments first; repeats are kept."""
        for arg in self.args:
            yield from refs_of(arg)
        for _, arg in self.kwargs:
            yield from refs_of(arg)


CUSTOM_GRADIENT = "samba.custom_gradient"
"""The op of a node whose gradient is not the derivative of what it computes.

Its arguments are the index of a :class:`Gradient` of its graph and three lists of values: results,
which it passes on, one for each output; inputs, the values that get a gradient; and reads, the
values that the gradient is computed from, besides the gradients of the outputs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """How gradients are computed where the model says so itself: a function of its own values.

    Args:
        name: What the model calls it, e.g. ``StraightThrough.backward``.
        source: ``file:line`` of the user's code, empty if unknown.
        values: All of its tensors; none has a region.
        nodes: All of its operations, in topological order; none has a custom gradient itself.
        inputs: Values that are given: the gradients of a node's outputs, then what the node reads.
        outputs: Values that are the gradients of a node's inputs.
    """

    name: str
    source: str = ""
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A result of the graph that the host may fetch.

    ``region`` holds a copy made for the host; the device never reads it back.
    ``grad_region`` is -1 where ``grad`` is ``ABSENT``.
    """

    name: str
    value: int
    region: int
    grad_region: int = -1
    grad: OutputGrad = OutputGrad.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A value written back over a region at the end of its section.

    BatchNorm statistics and the seed are such values.
    """

    value: int
    region: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A functional forward graph; nodes are in topological order.

    Args:
        name: Name of the graph.
        values: All tensors.
        nodes: All operations.
        inputs: Values that the host provides, in the order of ``forward``.
        outputs: Results, in the order that ``forward`` returns them.
        updates: State that the forward pass changes.
        gradients: What nodes with the op :data:`CUSTOM_GRADIENT` refer to.
    """

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]
    updates: tuple[Update, ...] = ()
    gradients: tuple[Gradient, ...] = ()

    def gradient_of(self, node: Node) -> Gradient | None:
        """The gradient that a node refers to; None if its gradient is the derivative."""
        if node.op != CUSTOM_GRADIENT:
            return None
        index = node.args[0]
        return self.gradients[index] if isinstance(index, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerParam:
    """One parameter under an optimizer.

    ``states`` are regions in the order of the kind's state names.
    """

    weight: int
    grad: int
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One parameter group of an optimizer.

    Args:
        name: Unique, e.g. ``sgd0``.
        kind: Update rule.
        params: Parameters with their gradients and states.
        argins: ``(hyperparameter, region)`` pairs such as ``("lr", 7)``.
        options: Fixed settings as ``(name, number)`` pairs, sorted by name; those of each kind
            stand in :mod:`pef_schema.optimizer_rules`.
        step: Region of the step count (float32, 0-d), -1 where the rule needs none.
    """

    name: str
    kind: OptimizerKind
    params: tuple[OptimizerParam, ...]
    argins: tuple[tuple[str, int], ...]
    options: tuple[tuple[str, float], ...] = ()
    step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Argin:
    """A hyperparameter the host may set.

    Its region is 0-d and float64, or the SEED region, uint32[2], for a seed.
    """

    name: str
    region: int
    kind: ArginKind
    default: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One phase of a section.

    Args:
        kind: What it computes.
        graph: Index of its graph, -1 for steps over regions only.
        nodes: FWD: the nodes to execute. BCKWD: the forward nodes to differentiate, in forward
            order.
        recompute: BCKWD: forward nodes to execute again first, in forward order.
        optimizers: GRADNORM and OPT: indices into ``Program.optimizers``.
        max_norm: GRADNORM: largest 2-norm of all gradients together.
        reads: Regions read, ascending.
        writes: Regions written, ascending. REDUCE: the gradients of one dtype that form a bucket,
            the same as ``reads``; they lie one after the other in device memory. OPT: of its
            optimizers' parameters, those whose weights are here are updated.
        accumulates: Regions among ``writes`` that are added to instead of replaced, ascending.
    """

    kind: SectionKind
    graph: int = -1
    nodes: tuple[int, ...] = ()
    recompute: tuple[int, ...] = ()
    optimizers: tuple[int, ...] = ()
    max_norm: float = 0.0
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    accumulates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A unit that the device runs as a whole; its id is its index in ``Program.sections``.

    A section has one step, or FWD and BCKWD together under spatial mapping.
    ``twin`` is the first section of the same structure (its own id if none is
    earlier): twins share one compiled function.
    """

    name: str
    steps: tuple[Step, ...]
    twin: int

    @property
    def kinds(self) -> tuple[SectionKind, ...]:
        """Kinds of the steps, in order."""
        return tuple(step.kind for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One entry of a schedule."""

    call_id: int
    section: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The calls that make a full run of one graph, in order."""

    graph: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Drawable):
    """Everything a PEF says.

    Args:
        name: Name of the model.
        mapping: ``"section"`` or ``"spatial"``.
        inference: Whether it was compiled without a backward pass.
        regions: Device memory; symbols: names of tensors in it.
        graphs, sections, schedules, optimizers, argins: see their classes.
        segments: Bytes of the constants, by ``Region.segment``.
        metadata: Free ``(key, value)`` text, sorted by key.
    """

    name: str
    mapping: str
    inference: bool
    regions: tuple[Region, ...]
    symbols: tuple[Symbol, ...]
    graphs: tuple[Graph, ...]
    optimizers: tuple[Optimizer, ...]
    argins: tuple[Argin, ...]
    sections: tuple[Section, ...]
    schedules: tuple[Schedule, ...]
    segments: tuple[bytes, ...] = field(default=(), repr=False)
    metadata: tuple[tuple[str, str], ...] = ()

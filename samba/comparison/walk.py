"""Compare torch and the device, node by node and as a whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from emulator.lowering.section import active_outputs, gradient_targets
from emulator.op_facts.names import CASTS, NEXT_SEED
from emulator.op_facts.table import facts_of
from pef_schema.program import Graph, Node, OutputGrad, Program, Role
from samba.comparison.report import Comparison, Phase, Row, Statistics, Status
from samba.comparison.sides import (
    EXACT,
    DeviceNodes,
    Exactly,
    Tensors,
    dtype_name,
    exactly,
    gap,
    host_backward,
    host_forward,
    judge,
    nonfinite,
    source_values,
    statistics,
    tolerance,
)
from samba.comparison.whole import compiled_rows, model_rows
from samba.compiler.arithmetic import wanted_arithmetic
from samba.compiler.build import build_program
from samba.compiler.rounding import apply_arithmetic
from samba.compiler.sections import CompileOptions
from samba.session.settings import loss_index_tuple
from samba.tracer import reference
from samba.tracer.capture import trace_model
from samba.tracer.inputs import TraceInputs, collect_inputs
from samba.tracer.traced import Traced

Values = dict[int, torch.Tensor]


def compare(
    model: torch.nn.Module,
    inputs: Any,
    *,
    loss_indices: Sequence[Any] | None = None,
    inference: bool = False,
    backward: bool = True,
    graphamp_preset: str | None = None,
    bf16_cast: str | None = None,
) -> Comparison:
    """Run torch and the device side by side and say where their numbers part.

    Each operation is computed three times: by torch, by the device from torch's inputs, and by
    the device from its own. The second shows what the operation itself does differently, and is
    what the verdict is about; the third shows what has accumulated. After the operations the
    whole compiled program, and the model itself, are held against the same values.

    Dropout is off on both sides. Other random numbers are drawn by the device and given to torch.

    Args:
        model: The model; nothing of it changes.
        inputs: What ``forward`` takes: a tensor, a tuple or list, or a dict.
        loss_indices: Outputs that are losses, as for ``session.compile``.
        inference: Whether to compare the model in evaluation mode, without gradients.
        backward: Whether to compare gradients too.
        graphamp_preset, bf16_cast: RDU arithmetic, as for a compile. Torch then rounds where the
            device does; what the rounding changes is told as an expected difference.

    Returns:
        The report; ``print`` it, or look at ``first``.

    Raises:
        SambaError: If the model cannot be traced or compiled, or an option does not exist.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
        >>> report = compare(model, torch.randn(2, 4))
        >>> report.ok, report.first
        (True, None)
    """
    arithmetic = wanted_arithmetic(
        {"graphamp_preset": graphamp_preset, "bf16_cast": bf16_cast}
    ).settled()
    given = collect_inputs(model, inputs)
    traced = apply_arithmetic(trace_model(model, given, inference=inference), arithmetic)
    options = CompileOptions(
        name=traced.name, inference=inference, loss_indices=loss_index_tuple(loss_indices)
    )
    program = build_program(traced, [], options)
    return _Walk(model, given, traced, program, backward and not inference).compare()


class _Walk:
    def __init__(
        self,
        model: torch.nn.Module,
        given: TraceInputs,
        traced: Traced,
        program: Program,
        backward: bool,
    ) -> None:
        self.model, self.given, self.traced, self.program = model, given, traced, program
        self.with_backward = backward
        self.graph: Graph = program.graphs[0]
        self.device = DeviceNodes(self.graph)
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.host: Values = {}
        self.own: Values = {}
        self.host_cotangents: Values = {}
        self.own_cotangents: Values = {}

    def compare(self) -> Comparison:
        self._sources()
        sources = dict(self.host)
        for i, node in enumerate(self.graph.nodes):
            self._forward(i, node)
        gradients = None
        if self.with_backward and self._seed_cotangents():
            for i in reversed(range(len(self.graph.nodes))):
                self._backward(i, self.graph.nodes[i])
            gradients = self.host_cotangents
        self.rows += compiled_rows(
            self.program, sources, (self.host, self.own), (gradients, self.own_cotangents)
        )
        rows, notes = model_rows(
            self.model, self.given, self.traced, self.graph, self.host, gradients
        )
        self.rows += rows
        self._add_inputs()
        return Comparison(
            model=self.traced.name, rows=tuple(self.rows), notes=(*self.notes, *notes)
        )

    # -- values from outside ------------------------------------------------

    def _sources(self) -> None:
        self.host, notes = source_values(self.traced)
        self.notes += notes
        self.own = dict(self.host)

    # -- forward ------------------------------------------------------------

    def _forward(self, i: int, node: Node) -> None:
        if node.op == NEXT_SEED:
            self.own.update(self.device.forward(node, self.own))
            self.host.update({v: self.own[v] for v in node.outputs if v >= 0})
            return
        values = [v for v in node.outputs if v >= 0]
        try:
            whole = self.device.forward(node, self.own)
            draws = _draws(node)
            same = draws or self._same(node)
            local = whole if same else self.device.forward(node, self.host)
        except Exception as error:  # whatever a lowering raises is what is looked for
            self.host.update(host_forward(self.graph, node, self.host))
            self.own.update({v: self.host[v] for v in values})
            self._failed(Phase.FORWARD, i, node, values, error)
            return
        if draws:
            self.host.update(whole)
        else:
            self.host.update(host_forward(self.graph, node, self.host))
        self.own.update(whole)
        exact = self._exactly(node, lambda env: host_forward(self.graph, node, env))
        for v in values:
            if node.op in CASTS:
                self.rows.append(self._rounding(i, node, local[v], draws, whole[v]))
                continue
            row = self._row(Phase.FORWARD, i, node, v, local[v], self.host[v], whole[v], exact(v))
            self.rows.append(replace(row, status=Status.DRAWN) if draws else row)

    def _rounding(
        self, i: int, node: Node, got: torch.Tensor, draws: bool, whole: torch.Tensor
    ) -> Row:
        """A rounding that was asked for: right, and shown with what it changes."""
        (value,) = node.outputs
        before = self.host[next(node.refs())]
        want = self.host[value]
        if draws:  # either neighbour is right
            low = reference.round_to_bfloat16(before, "truncation")
            step = torch.finfo(torch.bfloat16).eps * before.abs() * 2
            want = torch.where((got - low).abs() <= step, got, low)
        row = self._row(Phase.FORWARD, i, node, value, got, want, whole, lambda: None)
        if row.status is not Status.OK:
            return row
        change = gap(got, before, EXACT)
        return replace(row, status=Status.EXPECTED, local=replace(change, wrong=0))

    def _same(self, node: Node) -> bool:
        """Whether the device's inputs are torch's to the last bit."""
        return all(
            self.own[v] is self.host[v] or _identical(self.own[v], self.host[v])
            for v in node.refs()
        )

    # -- backward -----------------------------------------------------------

    def _seed_cotangents(self) -> bool:
        for output in self.graph.outputs:
            if output.grad is OutputGrad.ONES:
                one = torch.ones_like(self.host[output.value])
                for cotangents in (self.host_cotangents, self.own_cotangents):
                    _add(cotangents, output.value, one)
        if not self.host_cotangents:
            self.notes.append("no output is a loss, so there are no gradients to compare")
        return bool(self.host_cotangents)

    def _backward(self, i: int, node: Node) -> None:
        targets = gradient_targets(self.graph, node)
        active = active_outputs(self.graph, node)
        if not targets or not any(v in self.host_cotangents for v in active):
            return
        host_in = {v: self.host_cotangents[v] for v in active if v in self.host_cotangents}
        own_in = {v: self.own_cotangents[v] for v in active if v in self.own_cotangents}
        draws = _draws(node)
        try:
            whole = self.device.backward(node, self.own, own_in)
            same = self._same(node) and all(_identical(own_in[v], host_in[v]) for v in host_in)
            local = whole if same else self.device.backward(node, self.host, host_in)
        except Exception as error:  # as in the forward pass
            want = host_backward(self.graph, node, self.host, host_in)
            for v, gradient in want.items():
                _add(self.host_cotangents, v, gradient)
                _add(self.own_cotangents, v, gradient)
            self._failed(Phase.BACKWARD, i, node, targets, error)
            return
        want = local if draws else host_backward(self.graph, node, self.host, host_in)
        exact = self._exactly(node, lambda env: host_backward(self.graph, node, env, host_in))
        for v in targets:
            expected = want.get(v)
            if expected is None:  # torch gives no gradient: the device must not either
                expected = torch.zeros_like(self.host[v])
            _add(self.host_cotangents, v, expected)
            _add(self.own_cotangents, v, whole[v])
            row = self._row(
                Phase.BACKWARD,
                i,
                node,
                v,
                local[v],
                expected,
                self.own_cotangents[v],
                exact(v),
                self.host_cotangents[v],
            )
            self.rows.append(replace(row, status=Status.DRAWN) if draws else row)

    # -- rows ---------------------------------------------------------------

    def _exactly(self, node: Node, compute: Callable[[Values], Values]) -> Callable[[int], Exactly]:
        """What gives a node's tensors in float64 by value; all are computed when one is asked for.

        Args:
            node: The node.
            compute: Computes it with torch.
        """

        @functools.cache
        def values() -> Tensors:
            return exactly(compute, {v: self.host[v] for v in node.refs()})

        return lambda value: lambda: values().get(value)

    def _row(
        self,
        phase: Phase,
        i: int,
        node: Node,
        value: int,
        local: torch.Tensor,
        want: torch.Tensor,
        whole: torch.Tensor,
        exact: Exactly,
        total: torch.Tensor | None = None,
    ) -> Row:
        tol = tolerance(want.dtype)
        status, distance = judge(local, want, tol, exact)
        total = want if total is None else total
        detail = ""
        if status is Status.SHAPE:
            detail = f"the device gives shape {list(local.shape)}"
        elif status is Status.DTYPE:
            detail = f"the device gives dtype {local.dtype}"
        return self._described(
            phase,
            i,
            node,
            value,
            want,
            status=status,
            detail=detail,
            local=distance,
            whole=gap(whole, total, tol) if whole.shape == total.shape else None,
            nonfinite=(nonfinite(total), nonfinite(whole)),
        )

    def _failed(
        self, phase: Phase, i: int, node: Node, values: Sequence[int], error: Exception
    ) -> None:
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        for v in values:
            row = self._described(phase, i, node, v, self.host[v], status=Status.FAILED)
            self.rows.append(replace(row, detail=text))

    def _described(
        self, phase: Phase, i: int, node: Node, value: int, want: torch.Tensor, **more: Any
    ) -> Row:
        return Row(
            phase=phase,
            node=i,
            op=node.op,
            name=self.graph.values[value].name,
            module=node.module,
            source=node.source,
            dtype=dtype_name(want),
            shape=tuple(want.shape),
            **more,
        )

    def _add_inputs(self) -> None:
        """Statistics of what went in, for the rows that will be looked at."""
        odd = next((k for k, row in enumerate(self.rows) if any(row.nonfinite)), -1)
        for k, row in enumerate(self.rows):
            if row.node >= 0 and (row.status.is_wrong or k == odd):
                self.rows[k] = replace(row, inputs=self._statistics(row))

    def _statistics(self, row: Row) -> tuple[Statistics, ...]:
        node, values = self.graph.nodes[row.node], self.graph.values
        roles = {s.value: s.role for s in self.traced.sources}
        shown = [
            statistics(values[v].name, self.host[v])
            for v in dict.fromkeys(node.refs())
            if roles.get(v) not in (Role.SEED, Role.ARGIN) and values[v].dtype.name != "UINT32"
        ]
        if row.phase is Phase.BACKWARD:
            shown += [
                statistics(f"gradient of {values[v].name}", self.host_cotangents[v])
                for v in active_outputs(self.graph, node)
                if v in self.host_cotangents
            ]
        return tuple(shown)


def _draws(node: Node) -> bool:
    """Whether a node draws random numbers even at a dropout rate of 0."""
    return "seed" in dict(node.kwargs) and facts_of(node.op).rate is None


def _identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _add(cotangents: Values, value: int, cotangent: torch.Tensor) -> None:
    have = cotangents.get(value)
    cotangents[value] = cotangent if have is None else have + cotangent

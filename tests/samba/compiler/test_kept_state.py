"""State that the forward pass overwrites, and what the backward pass reads of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from emulator.op_facts.names import ALIAS
from pef_schema import verify
from pef_schema.program import Program, Role, SectionKind
from samba.compiler.build import build_program
from samba.compiler.gradient_flow import with_kept_state
from samba.compiler.sections import CompileOptions
from samba.tracer.errors import StateGradient
from tests.samba.shared_traces import trace


class Stateful(nn.Module):
    """A weight and two buffers."""

    a: Tensor
    b: Tensor

    def __init__(self, compute: Callable[[Stateful, Tensor], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        for name in ("a", "b"):
            self.register_buffer(name, torch.ones(3))
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, self.w * x).sum()


def program_of(compute: Callable[[Stateful, Tensor], Tensor], level: str = "o3") -> Program:
    traced = trace(Stateful(compute), torch.ones(3))
    program = build_program(traced, [], CompileOptions(name="net", optim_level=level))
    verify(program)
    return program


def kept(program: Program) -> list[str]:
    """Names of what the forward pass saves."""
    return [r.name for r in program.regions if r.role is Role.ACTIVATION]


def before(net: Stateful, h: Tensor) -> Tensor:
    old = net.a.clone()
    net.a.mul_(2.0)
    return h * old


def after(net: Stateful, h: Tensor) -> Tensor:
    net.a.mul_(2.0)
    return h * net.a


def averaged(net: Stateful, h: Tensor) -> Tensor:
    net.a.lerp_(h.detach(), 0.1)
    return h - net.a


def test_old_contents_are_kept_where_a_gradient_reads_them():
    program = program_of(before)
    assert len(kept(program)) == 1
    (backward,) = (
        step for s in program.sections for step in s.steps if step.kind is SectionKind.BCKWD
    )
    state = {u.region for u in program.graphs[0].updates}
    assert not state & set(backward.reads), "the backward pass reads no state that has changed"


def test_new_contents_are_saved_and_not_computed_again():
    """They would be computed from what the buffer holds by then."""
    program = program_of(after)
    assert len(kept(program)) == 1
    nodes = program.graphs[0].nodes
    state = {v for v, value in enumerate(program.graphs[0].values) if value.region >= 0}
    for section in program.sections:
        for step in section.steps:
            again = [nodes[i] for i in step.recompute]
            assert not any(state.intersection(node.refs()) for node in again if node.op != ALIAS)


def test_nothing_is_kept_where_no_gradient_reads_state():
    assert not kept(program_of(averaged))
    traced = trace(Stateful(averaged), torch.ones(3))
    assert with_kept_state(traced) is traced
    norm = trace(nn.BatchNorm1d(3), torch.ones(2, 3))
    assert with_kept_state(norm) is norm


def test_keeping_is_done_once():
    traced = with_kept_state(trace(Stateful(_old_squared), torch.ones(3)))
    assert with_kept_state(traced) is traced


def _old_squared(net: Stateful, h: Tensor) -> Tensor:
    old = net.a
    net.a = old + 1.0
    return h * old


def _swapped(net: Stateful, h: Tensor) -> Tensor:
    x = h * net.a.clone()
    net.a.copy_(net.b)
    net.b.copy_(x.detach())
    return x.tanh() * net.a


@pytest.mark.parametrize("compute", [_old_squared, _swapped])
def test_state_is_written_after_its_last_reader(compute):
    program = program_of(compute, "o0")
    graph = program.graphs[0]
    forward = [s.steps[0] for s in program.sections if s.kinds == (SectionKind.FWD,)]
    for update in graph.updates:
        writers = [n for n, step in enumerate(forward) if update.region in step.writes]
        readers = [n for n, step in enumerate(forward) if update.region in step.reads]
        assert len(writers) == 1 and max(readers, default=0) <= writers[0]


def test_a_gradient_that_would_pass_into_the_step_before_is_refused():
    def carried(net: Stateful, h: Tensor) -> Tensor:
        net.a = net.a * 0.5 + h
        return net.a * 2.0

    with pytest.raises(StateGradient) as caught:
        program_of(carried)
    assert caught.value.buffers == ("a",)


def test_what_no_loss_reads_may_keep_its_gradient():
    def remembered(net: Stateful, h: Tensor) -> Tensor:
        net.a = h * 2.0
        return h + net.a

    assert program_of(remembered)

"""Operations at which torch raises whatever the data is: refused with its words and the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samba.compiler.build import build_program
from samba.compiler.gradient_flow import NoDerivative
from samba.compiler.sections import CompileOptions
from samba.tracer.capture import trace_model
from samba.tracer.errors import TraceError
from samba.tracer.inputs import collect_inputs
from samba.tracer.traced import Traced
from tests.samba.tracer.raising_steps import (
    DIVISIONS,
    EMPTY,
    NO_GRADIENT,
    WITH_GRADIENT,
    Steps,
)

I = torch.tensor([4, 5, -6])  # noqa: E741
X = torch.tensor([0.5, 1.5, 2.5])


class Net(nn.Module):
    """A weight, and a step that a test gives."""

    def __init__(self, step: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.step = step

    def forward(self, i: Tensor, x: Tensor) -> Any:
        return self.step(self.w, i, x)


LINE = Net.forward.__code__.co_firstlineno + 1
"""Where ``forward`` calls the step."""


def traced(step: Callable[..., Any]) -> Traced:
    model = Net(step)
    return trace_model(model, collect_inputs(model, (I, X)))


def each(steps: Steps) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("step", steps.values(), ids=steps)


@each(DIVISIONS | EMPTY)
def test_what_torch_raises_for_any_data_is_refused_with_its_words(step: Callable[..., Any]) -> None:
    with pytest.raises((RuntimeError, IndexError)) as torchs:
        Net(step)(I, X)
    with pytest.raises(TraceError) as ours:
        traced(step)
    assert str(torchs.value).splitlines()[0] in str(ours.value)
    # The exporter itself refuses some, and knows the line of the step.
    assert any(line in ours.value.where for line in (f"{__file__}:{LINE}", "raising_steps.py:"))


@each(NO_GRADIENT)
def test_a_gradient_that_torch_does_not_have_is_refused(step: Callable[..., Any]) -> None:
    model = Net(step)
    with pytest.raises(RuntimeError, match="not implemented"):
        model(I, X).sum().backward()
    graph = traced(step)
    with pytest.raises(NoDerivative, match="a gradient flows through aten") as refused:
        build_program(graph, [], CompileOptions(name="net"))
    assert refused.value.deviation == "no-derivative"
    assert refused.value.source == f"{__file__}:{LINE}"
    build_program(graph, [], CompileOptions(name="net", inference=True))


@each(WITH_GRADIENT)
def test_beside_the_gradient_it_compiles(step: Callable[..., Any]) -> None:
    Net(step)(I, X).sum().backward()
    build_program(traced(step), [], CompileOptions(name="net"))

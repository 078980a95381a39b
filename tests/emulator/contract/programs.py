"""Small programs to break: verified, and run by the device as they are."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from pef_schema import Program, verify
from pef_schema.program import Arg
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import inference
from tests.tracing import trace


def with_node(op: str, args: tuple[Arg, ...], **kwargs: Arg) -> Program:
    """A program of one node, ``x`` float32 (2, 3) to ``y`` float32 (2, 3).

    Args:
        op: The node's operation.
        args, kwargs: Its arguments; ``x`` is ``Ref(0)``.
    """
    program = edit(
        inference(),
        "graphs.0.nodes.0",
        op=op,
        args=args,
        kwargs=tuple(sorted(kwargs.items())),
    )
    verify(program)
    return program


@cache
def training() -> Program:
    """Two linear layers with a loss, SGD with momentum, as the compiler makes them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    traced = trace(model, (torch.zeros(2, 3),))
    options = CompileOptions(name="net", accumulate=True)
    return build_program(traced, [optimizer], options)


def changed_step(program: Program, kind: Any, **changes: Any) -> Program:
    """The program with another first step of a kind."""
    index = next(i for i, section in enumerate(program.sections) if kind in section.kinds)
    return edit(program, f"sections.{index}.steps.0", **changes)

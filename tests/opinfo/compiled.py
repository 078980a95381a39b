"""A call on the emulated device: trace, compile, write, run, read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from emulator.device import Device
from emulator.mesh.chips import Chips, open_chips
from emulator.mesh.layout import Split
from emulator.plans.steps import all_steps
from pef_schema import decode, encode, verify
from pef_schema.program import OutputGrad, Program, Role
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy, view_as_torch
from samba.tracer.traced import FROM_DTYPE
from tests.opinfo.call import Call, Eager
from tests.tracing import trace

CHIPS = "OPINFO_CHIPS"
"""Environment variable with the number of chips that divide the first axis of every argument."""


def _chips() -> Chips | None:
    wanted = int(os.environ.get(CHIPS, "1"))
    return open_chips(wanted, Split.BATCH) if wanted > 1 else None


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values; some samples are views that torch conjugates when it reads them."""
    return view_as_numpy(tensor.detach().resolve_conj().resolve_neg())


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """What the device gives for a call; as :class:`Eager`, with None for absent gradients."""

    outputs: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]


class Compiled:
    """A call, compiled once and run on several samples of the same structure.

    Args:
        module: The call.
        tensors: Its arguments; only shapes, dtypes and ``requires_grad`` matter.
        through_file: Whether the program goes through the bytes of a PEF.
    """

    def __init__(
        self, module: Call, tensors: Sequence[torch.Tensor], *, through_file: bool
    ) -> None:
        traced = trace(module, tuple(tensors))
        program = build_program(traced, [], CompileOptions(name="opinfo"))
        verify(program)
        self.program: Program = decode(encode(program)) if through_file else program
        self.device = Device(self.program, chips=_chips())
        graph = self.program.graphs[0]
        values = graph.values
        place = {id(t): i for i, t in enumerate(tensors)}
        self.inputs = [
            (place[id(s.tensor)], values[s.value].region, values[s.value].grad_region)
            for s in traced.sources
            if s.role is Role.INPUT
        ]
        for source in traced.sources:
            if source.tensor is not None and source.role in (Role.WEIGHT, Role.BUFFER):
                self.device.write(values[source.value].region, _array(source.tensor))

    def run(self, tensors: Sequence[torch.Tensor], eager: Eager) -> Got:
        """Run forward and backward on one sample.

        Args:
            tensors: Arguments of the structure that was compiled.
            eager: Holds the cotangents to start from.

        Returns:
            Results and gradients.
        """
        outputs = self.program.graphs[0].outputs
        for index, region, _ in self.inputs:
            self.device.write(region, _array(tensors[index]))
        for output, cotangent in zip(outputs, eager.cotangents, strict=True):
            if output.grad is not OutputGrad.ABSENT:
                shape = self.program.regions[output.grad_region].shape
                dtype = FROM_DTYPE[self.program.regions[output.grad_region].dtype]
                seed = torch.zeros(shape, dtype=dtype) if cotangent is None else cotangent
                self.device.write(output.grad_region, _array(seed))
        self.device.run(self.device.plan(all_steps(self.program)))
        gradients: list[torch.Tensor | None] = [None] * len(tensors)
        for index, _, region in self.inputs:
            if region >= 0:
                gradients[index] = view_as_torch(self.device.read(region))
        return Got(
            outputs=tuple(view_as_torch(self.device.read(o.region)) for o in outputs),
            gradients=tuple(gradients),
        )

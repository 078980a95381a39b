"""Programs of one op each, and every change of a size, a rank or a number in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from emulator.device import Device
from emulator.dtypes import TO_NUMPY
from emulator.errors import CannotRun, DeviceError, LoweringError, PlanError
from emulator.plans.plan import lower_plan
from emulator.plans.steps import all_steps
from pef_schema import PefError, Program, Ref, verify
from pef_schema.program import Arg, Node
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.tracing import trace

Maker = Callable[[], tuple[nn.Module | Callable[..., Any], tuple[torch.Tensor, ...]]]

X = torch.zeros


class _Call(nn.Module):
    """A module or a function, called on a line of this file."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def _long(*values: int) -> torch.Tensor:
    return torch.tensor(values)


OPS: Mapping[str, Maker] = MappingProxyType(
    {
        "conv1d": lambda: (nn.Conv1d(2, 4, 3, padding=1), (X(2, 2, 5),)),
        "conv2d": lambda: (nn.Conv2d(4, 6, 3, stride=2, groups=2), (X(2, 4, 5, 5),)),
        "conv2d depthwise": lambda: (nn.Conv2d(4, 4, 3, padding=1, groups=4), (X(1, 4, 4, 4),)),
        "conv2d same": lambda: (nn.Conv2d(2, 3, 3, padding="same", bias=False), (X(1, 2, 4, 4),)),
        "conv2d unbatched": lambda: (nn.Conv2d(2, 3, 3), (X(2, 4, 4),)),
        "conv3d": lambda: (nn.Conv3d(2, 3, 2, dilation=2), (X(1, 2, 4, 4, 4),)),
        "back 1d": lambda: (nn.ConvTranspose1d(2, 4, 3, 2, 1, 1, groups=2), (X(2, 2, 5),)),
        "back 2d": lambda: (nn.ConvTranspose2d(2, 3, 2, 2), (X(1, 2, 3, 3),)),
        "back 3d": lambda: (nn.ConvTranspose3d(2, 3, 2, 2, 1, 1), (X(1, 2, 3, 3, 3),)),
        "relu after conv": lambda: (
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.BatchNorm2d(3)),
            (X(1, 2, 5, 5),),
        ),
        "linear": lambda: (nn.Linear(3, 4), (X(2, 3),)),
        "bilinear": lambda: (nn.Bilinear(3, 4, 2), (X(2, 3), X(2, 4))),
        "matmul": lambda: (torch.matmul, (X(2, 3, 4), X(4, 5))),
        "bmm": lambda: (torch.bmm, (X(2, 3, 4), X(2, 4, 5))),
        "addmm": lambda: (torch.addmm, (X(5), X(3, 4), X(4, 5))),
        "dot": lambda: (torch.dot, (X(3), X(3))),
        "mv": lambda: (torch.mv, (X(3, 2), X(2))),
        "attention": lambda: (
            F.scaled_dot_product_attention,
            (X(1, 2, 3, 4), X(1, 2, 3, 4), X(1, 2, 3, 4)),
        ),
        "batch norm": lambda: (nn.BatchNorm2d(3), (X(2, 3, 4, 4),)),
        "layer norm": lambda: (nn.LayerNorm((3, 4)), (X(2, 3, 4),)),
        "rms norm": lambda: (nn.RMSNorm(4), (X(2, 3, 4),)),
        "group norm": lambda: (nn.GroupNorm(2, 4), (X(2, 4, 3),)),
        "instance norm": lambda: (nn.InstanceNorm1d(3, affine=True), (X(2, 3, 4),)),
        "local response": lambda: (nn.LocalResponseNorm(2), (X(2, 3, 4),)),
        "max pool": lambda: (nn.MaxPool2d(2, 1, 1), (X(1, 2, 4, 4),)),
        "average pool": lambda: (nn.AvgPool2d(2), (X(1, 2, 4, 4),)),
        "lp pool": lambda: (nn.LPPool1d(2, 2), (X(1, 2, 4),)),
        "adaptive pool": lambda: (nn.AdaptiveAvgPool2d(2), (X(1, 2, 5, 5),)),
        "adaptive max": lambda: (nn.AdaptiveMaxPool1d(2), (X(1, 2, 5),)),
        "upsample": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), (X(1, 2, 3, 3),)),
        "nearest": lambda: (nn.Upsample(size=(5, 5)), (X(1, 2, 3, 3),)),
        "reflect": lambda: (nn.ReflectionPad2d(1), (X(1, 2, 3, 3),)),
        "replicate": lambda: (nn.ReplicationPad1d(1), (X(1, 2, 3),)),
        "constant pad": lambda: (nn.ConstantPad1d(1, 2.0), (X(1, 2, 3),)),
        "unfold": lambda: (nn.Unfold(2), (X(1, 2, 3, 3),)),
        "fold": lambda: (nn.Fold((3, 3), 2), (X(1, 8, 4),)),
        "shuffle": lambda: (nn.PixelShuffle(2), (X(1, 4, 3, 3),)),
        "unshuffle": lambda: (nn.PixelUnshuffle(2), (X(1, 1, 4, 4),)),
        "channels": lambda: (nn.ChannelShuffle(2), (X(1, 4, 2, 2),)),
        "grid": lambda: (
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            (X(1, 2, 3, 3), X(1, 2, 2, 2)),
        ),
        "affine grid": lambda: (
            lambda t: F.affine_grid(t, [1, 2, 3, 3], align_corners=False),
            (X(1, 2, 3),),
        ),
        "embedding": lambda: (nn.Embedding(5, 3), (_long(0, 1, 4),)),
        "bag": lambda: (nn.EmbeddingBag(5, 3), (_long(0, 1, 4), _long(0, 2))),
        "rnn": lambda: (nn.RNN(3, 2), (X(4, 2, 3),)),
        "lstm": lambda: (nn.LSTM(3, 2, bidirectional=True), (X(4, 2, 3),)),
        "gru": lambda: (nn.GRU(3, 2, batch_first=True), (X(2, 4, 3),)),
        "cross entropy": lambda: (nn.CrossEntropyLoss(), (X(3, 5), _long(0, 1, 4))),
        "nll": lambda: (nn.NLLLoss(), (X(3, 5), _long(0, 1, 4))),
        "multi margin": lambda: (nn.MultiMarginLoss(), (X(3, 5), _long(0, 1, 4))),
        "ctc": lambda: (nn.CTCLoss(), (X(4, 2, 3), X(2, 2).long() + 1, _long(4, 4), _long(2, 2))),
        "triplet": lambda: (nn.TripletMarginLoss(), (X(2, 3), X(2, 3), X(2, 3))),
        "cosine": lambda: (nn.CosineSimilarity(), (X(2, 3), X(2, 3))),
        "bce": lambda: (nn.BCELoss(), (X(2, 3), X(2, 3))),
        "mse": lambda: (nn.MSELoss(), (X(2, 3), X(2, 3))),
        "glu": lambda: (nn.GLU(), (X(2, 4),)),
        "prelu": lambda: (nn.PReLU(3), (X(2, 3),)),
        "softmax": lambda: (nn.Softmax(-1), (X(2, 3),)),
        "cat": lambda: (lambda a, b: torch.cat([a, b], 1), (X(2, 3), X(2, 4))),
        "stack": lambda: (lambda a, b: torch.stack([a, b], 1), (X(2, 3), X(2, 3))),
        "gather": lambda: (lambda x, i: x.gather(1, i), (X(2, 3), X(2, 2).long())),
        "scatter": lambda: (lambda x, i, s: x.scatter(1, i, s), (X(2, 3), X(2, 2).long(), X(2, 2))),
        "scatter add": lambda: (
            lambda x, i, s: x.index_add(0, i, s),
            (X(3, 2), _long(0, 2), X(2, 2)),
        ),
        "index select": lambda: (lambda x, i: x.index_select(1, i), (X(2, 3), _long(0, 2))),
        "index": lambda: (lambda x, i: x[:, i], (X(2, 3), _long(0, 2))),
        "index put": lambda: (
            lambda x, i, v: x.index_put((i,), v),
            (X(3, 2), _long(0, 2), X(2, 2)),
        ),
        "masked fill": lambda: (lambda x, m: x.masked_fill(m, 1.0), (X(2, 3), X(2, 3).bool())),
        "topk": lambda: (lambda x: x.topk(2), (X(2, 3),)),
        "sort": lambda: (lambda x: x.sort(1), (X(2, 3),)),
        "kth": lambda: (lambda x: x.kthvalue(2), (X(2, 3),)),
        "median": lambda: (lambda x: x.median(1), (X(2, 3),)),
        "max": lambda: (lambda x: x.max(1), (X(2, 3),)),
        "argmax": lambda: (lambda x: x.argmax(1), (X(2, 3),)),
        "cumsum": lambda: (lambda x: x.cumsum(1), (X(2, 3),)),
        "logsumexp": lambda: (lambda x: x.logsumexp(1), (X(2, 3),)),
        "var": lambda: (lambda x: x.var(1), (X(2, 3),)),
        "permute": lambda: (lambda x: x.permute(1, 0) + 1, (X(2, 3),)),
        "view": lambda: (lambda x: x.view(3, 2) + 1, (X(2, 3),)),
        "expand": lambda: (lambda x: x.expand(4, 3) + 1, (X(1, 3),)),
        "repeat": lambda: (lambda x: x.repeat(2, 2), (X(1, 3),)),
        "slice": lambda: (lambda x: x[:, 1:3] + 1, (X(2, 4),)),
        "select": lambda: (lambda x: x[1] + 1, (X(2, 4),)),
        "split": lambda: (lambda x: x.split(2, 1), (X(2, 4),)),
        "roll": lambda: (lambda x: x.roll(1, 1), (X(2, 4),)),
        "flip": lambda: (lambda x: x.flip(1), (X(2, 4),)),
        "diagonal": lambda: (lambda x: x.diagonal() + 1, (X(3, 3),)),
        "trace": lambda: (torch.trace, (X(3, 3),)),
        "kron": lambda: (torch.kron, (X(2, 3), X(2, 2))),
        "cross": lambda: (torch.linalg.cross, (X(2, 3), X(2, 3))),
        "cdist": lambda: (torch.cdist, (X(2, 3), X(4, 3))),
        "solve": lambda: (torch.linalg.solve, (torch.eye(3), X(3, 2))),
        "inverse": lambda: (torch.linalg.inv, (torch.eye(3),)),
        "cholesky": lambda: (torch.linalg.cholesky, (torch.eye(3),)),
        "svd": lambda: (torch.linalg.svdvals, (torch.eye(3),)),
        "einsum": lambda: (
            lambda a, b: torch.einsum("ij,jk->ik", a, b),
            (X(2, 3), X(3, 4)),
        ),
        "searchsorted": lambda: (torch.searchsorted, (X(3), X(2))),
        "histogram": lambda: (lambda x: torch.histc(x, 4, 0, 1), (X(5),)),
        "as strided": lambda: (lambda x: x.as_strided((2, 2), (3, 1)) + 1, (X(2, 3),)),
    }
)
"""Modules or functions with their inputs, by name."""


def program_of(name: str) -> Program:
    """The program of an op of :data:`OPS`, with the gradients of its inputs."""
    torch.manual_seed(0)
    made, inputs = OPS[name]()
    tensors = tuple(t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs)
    return build_program(trace(_Call(made), tensors), [], CompileOptions(name="mutant"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A changed program.

    Args:
        what: What was changed.
        program: The outcome.
    """

    what: str
    program: Program


def mutants(program: Program) -> Iterator[Mutant]:
    """Every change of one size, one rank or one number of a program's first graph."""
    (graph,) = program.graphs
    for index, value in enumerate(graph.values):
        for shape in _shapes(value.shape):
            yield Mutant(
                what=f"{value.name} of shape {shape}", program=_reshaped(program, index, shape)
            )
    for at, node in enumerate(graph.nodes):
        for place in range(len(node.args) + len(node.kwargs)):
            for changed in _with_other_argument(node, place):
                nodes = (*graph.nodes[:at], changed, *graph.nodes[at + 1 :])
                yield Mutant(
                    what=f"node {at}: {changed.op}{changed.args} {changed.kwargs}",
                    program=replace(program, graphs=(replace(graph, nodes=nodes),)),
                )


def _shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for axis, size in enumerate(shape):
        for other in {0, 1, size + 1} - {size}:
            yield (*shape[:axis], other, *shape[axis + 1 :])
    if shape:
        yield shape[1:]
        yield shape[:-1]
    yield (1, *shape)
    yield (*shape, 1)


def _reshaped(program: Program, index: int, shape: tuple[int, ...]) -> Program:
    """The program with another shape of a value, of its region and of its gradient's."""
    (graph,) = program.graphs
    value = graph.values[index]
    ours = {r for r in (value.region, value.grad_region) if r >= 0}
    ours |= {o.region for o in graph.outputs if o.value == index}
    ours |= {o.grad_region for o in graph.outputs if o.value == index and o.grad_region >= 0}
    regions = tuple(
        replace(r, shape=shape) if i in ours else r for i, r in enumerate(program.regions)
    )
    values = tuple(replace(v, shape=shape) if i == index else v for i, v in enumerate(graph.values))
    return replace(program, regions=regions, graphs=(replace(graph, values=values),))


def _with_other_argument(node: Node, place: int) -> Iterator[Node]:
    positional = place < len(node.args)
    arg = node.args[place] if positional else node.kwargs[place - len(node.args)][1]
    for other in _others(arg):
        if positional:
            yield replace(node, args=(*node.args[:place], other, *node.args[place + 1 :]))
            continue
        at = place - len(node.args)
        named = (node.kwargs[at][0], other)
        yield replace(node, kwargs=(*node.kwargs[:at], named, *node.kwargs[at + 1 :]))


def _others(arg: Arg) -> Iterator[Arg]:
    if isinstance(arg, bool) or arg is None or isinstance(arg, (str, float, Ref)):
        return
    if isinstance(arg, int):
        yield from {0, -1, 3, arg + 1, 2**40} - {arg}
    elif isinstance(arg, tuple):
        yield arg[:-1]
        yield (*arg, *(arg[-1:] or (1,)))
        for i, item in enumerate(arg):
            for other in _others(item):
                yield (*arg[:i], other, *arg[i + 1 :])


def outcome(program: Program, *, run: bool = False) -> tuple[str, Exception | None]:
    """What becomes of a program.

    Args:
        program: The program.
        run: Whether to run it, too.

    Returns:
        ``rejected`` (by the file's own rules), ``cannot run`` (by the contract), ``lowering`` (with
        node and line), ``refused`` (another error of the device), ``plan`` (the one for all that is
        left), ``foreign`` or ``ran``; and the error.
    """
    try:
        verify(program)
    except PefError as error:
        return "rejected", error
    try:
        device = Device(program)
        steps = all_steps(program)
        if not run:
            lower_plan(program, device.buffer_map, steps, device.variant, device.placement)
            return "ran", None
        for index, region in enumerate(program.regions):
            if region.segment < 0:
                device.write(index, np.zeros(region.shape, TO_NUMPY[region.dtype]))
        device.run(device.plan(steps))
        device.synchronize()
    except CannotRun as error:
        return "cannot run", error
    except LoweringError as error:
        return "lowering", error
    except PlanError as error:
        return "plan", error
    except DeviceError as error:
        return "refused", error
    except Exception as error:  # it is there to find any
        return "foreign", error
    return "ran", None

"""The programs that the harness changes, compiled from small models.

``python -m tests.pef_schema.fuzz.make_seeds`` writes all of ``seeds`` again. The harness itself
reads the files, so that it needs no torch and starts at once.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samba
from pef_schema import Program, encode, read_pef
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.structure import with_twins
from samba.compiler.arithmetic import Arithmetic, Bf16Cast, Preset
from samba.compiler.build import build_program
from samba.compiler.optimizers import KINDS
from samba.compiler.rounding import apply_arithmetic
from samba.compiler.sections import CompileOptions
from samba.distributed.bagua import QAdamOptimizer
from tests.pef_schema.fuzz.seeds import FOLDER
from tests.pef_schema.samples import nothing
from tests.samba.graphs import compiled, set_up
from tests.tracing import trace


class Perceptron(nn.Module):
    """Two layers and a loss, with an accuracy that has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.second(self.first(x).relu())
        return F.cross_entropy(out, y), (out.argmax(-1) == y).sum()


class Tower(nn.Module):
    """Three layers of one shape, so that sections are twins."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


class Kinds(Tower):
    """As many layers as optimizers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(count))


class Convolution(nn.Module):
    """A convolution with batch norm: buffers that the forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.norm(self.conv(x)).relu(), 2).mean()


class Recurrent(nn.Module):
    """An LSTM with its head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1]).mean()


class Constants(nn.Module):
    """Tables that are not parameters, of several dtypes, and an embedding with indices."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 3)
        self.tables = [torch.arange(12.0).reshape(4, 3), torch.tensor([2, 0, 1])]

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.words(tokens) + self.tables[0].to(torch.float32)
        order = seen.index_select(1, self.tables[1])
        return order.masked_fill(torch.tensor([True, False, True]), 0.5).sum(), order.sort()[1]


class Dropping(nn.Module):
    """Dropout between two layers, and one parameter that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(self.first(x))).square().mean()


class Attention(nn.Module):
    """Layer norm, attention and shapes that change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(4), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 3, 2, 6).transpose(1, 2).chunk(3, -1)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.cat([seen.flatten(1), x.flatten(1)], 1).softmax(-1).logsumexp(0).sum()


class Sign(torch.autograd.Function):
    """A straight-through sign."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() > 1, torch.zeros_like(grads[0]), grads[0])


class StraightThrough(nn.Module):
    """A model with a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (Sign.apply(self.layer(x)) * x[:, :2]).mean()


class Reductions(nn.Module):
    """Reductions, sorting, scans and indexing over several dtypes, for inference."""

    def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        top, at = x.topk(2, dim=-1)
        return (
            top.cumsum(0),
            x.gather(1, i.clamp(0, 2)),
            x.double().var(0),
            x.bfloat16().amax(1),
            at.bitwise_and(i[:, :2]).int(),
            torch.arange(4, dtype=torch.float32).pow(2.0),
            F.interpolate(x[None], scale_factor=2.0),
            F.pad(x, (1, 1), value=2.0).unfold(1, 2, 1).mean(-1),
        )


class Nothing(nn.Module):
    """Gives back what it gets."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def _program(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    make: Callable[..., torch.optim.Optimizer] | None = None,
    arithmetic: Arithmetic | None = None,
    /,
    **options: Any,
) -> Program:
    """Trace and compile, with an optimizer unless ``make`` is None."""
    settings = CompileOptions(**({"name": "net"} | options))
    traced = trace(model, inputs, inference=settings.inference)
    traced = apply_arithmetic(traced, arithmetic or Arithmetic())
    return build_program(traced, [make(model.parameters())] if make else [], settings)


def _optimizer(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[..., Any]:
    return lambda parameters: kind(parameters, **options)


def _kinds() -> Program:
    """A layer under each optimizer that has come after the first version of the format."""
    rules = {cls: OPTIMIZER_RULES[kind] for cls, kind in KINDS.items()}
    later = {cls: rule for cls, rule in rules.items() if rule.since > 1}
    model, optimizers = Kinds(len(later)), []
    for (cls, rule), layer in zip(later.items(), model.layers, strict=True):
        options: dict[str, Any] = {state.option: True for state in rule.states if state.option}
        options |= {s.first: 0.5 for s in rule.states if isinstance(s.first, str)}
        options |= {"momentum": 0.5} if "momentum" in rule.argins else {}
        optimizers.append(cls(layer.parameters(), **options))
    traced = trace(model, (torch.ones(2, 2),))
    return build_program(traced, optimizers, CompileOptions(name="net"))


def _graphs() -> Program:
    """Two graphs over the same weights, and a cache that one leaves to the other."""
    samba.session.reset()
    with tempfile.TemporaryDirectory() as folder:
        set_up()
        program = read_pef(compiled(Path(folder)))
    samba.session.reset()
    return program


_LABELS = torch.tensor([0, 2])
_X = torch.ones(2, 4)
_SGD = torch.optim.SGD

MAKERS: dict[str, Callable[[], Program]] = {
    "mlp": lambda: _program(
        Perceptron(),
        (_X, _LABELS),
        _optimizer(_SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        optim_level="o1",
    ),
    "conv": lambda: _program(
        Convolution(),
        (torch.ones(2, 1, 4, 4),),
        _optimizer(torch.optim.Adam, lr=0.1, amsgrad=True),
        optim_level="o1",
    ),
    "lstm": lambda: _program(
        Recurrent(), (torch.ones(2, 3, 2),), _optimizer(torch.optim.AdamW, lr=0.1)
    ),
    "graphs": _graphs,
    "data_parallel": lambda: _program(
        Tower(),
        (_X,),
        _optimizer(_SGD, lr=0.1, momentum=0.5, dampening=0.25),
        optim_level="o1",
        data_parallel=True,
        bucket_bytes=100,
    ),
    "constants": lambda: _program(
        Constants(), (torch.zeros(2, 4, dtype=torch.int64),), _optimizer(_SGD, lr=0.1)
    ),
    "rdu": lambda: _program(
        Perceptron(),
        (_X, _LABELS),
        _optimizer(_SGD, lr=0.1),
        Arithmetic(preset=Preset("mp4"), cast=Bf16Cast("stochastic")),
    ),
    "dropout": lambda: _program(
        Dropping(), (_X,), _optimizer(samba.optim.AdamW, lr=0.1, max_grad_norm=1.0)
    ),
    "qadam": lambda: _program(
        Tower(), (_X,), _optimizer(QAdamOptimizer, lr=0.1, warmup_steps=2), accumulate=True
    ),
    "kinds": _kinds,
    "spatial": lambda: _program(
        Attention(), (torch.ones(2, 3, 4),), _optimizer(_SGD, lr=0.1), mapping="spatial"
    ),
    "custom": lambda: _program(
        StraightThrough(), (torch.ones(2, 3),), _optimizer(_SGD, lr=0.1), optim_level="o0"
    ),
    "inference": lambda: _program(
        Reductions(), (torch.ones(3, 3), torch.zeros(3, 3, dtype=torch.int64)), inference=True
    ),
    "nothing": lambda: _program(Nothing(), (torch.ones(2),), inference=True),
    "bare": lambda: dataclasses.replace(nothing(), name="bare"),
}
"""How each file of ``seeds`` is made, by its name."""


def make(name: str) -> bytes:
    """The bytes of a seed; the same wherever it is made."""
    torch.manual_seed(0)
    return encode(with_twins(_without_places(MAKERS[name]())))


def _without_places(program: Program) -> Program:
    """Nodes say where in a file they stand, which changes with every line above."""

    def moved(part: Any) -> Any:
        nodes = tuple(
            dataclasses.replace(node, source=f"model.py:{i}") for i, node in enumerate(part.nodes)
        )
        return dataclasses.replace(part, nodes=nodes)

    graphs = tuple(
        dataclasses.replace(
            moved(graph),
            gradients=tuple(
                dataclasses.replace(moved(gradient), source="model.py:99")
                for gradient in graph.gradients
            ),
        )
        for graph in program.graphs
    )
    return dataclasses.replace(program, graphs=graphs)


def main() -> None:
    """Write every seed."""
    FOLDER.mkdir(exist_ok=True)
    for name in MAKERS:
        (FOLDER / f"{name}.pef").write_bytes(data := make(name))
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

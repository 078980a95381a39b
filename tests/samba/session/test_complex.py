"""Complex numbers through a session: training, gradients, checkpoints, exports."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import samba
from emulator.plans.steps import all_steps
from pef_schema import read_info, read_pef
from pef_schema.program import DType
from samba import utils
from samba.compiler.build import build_program
from samba.compiler.forms.graphs import as_dot, graphs_as_dict
from samba.compiler.gradient_flow import ComplexLoss
from samba.compiler.sections import CompileOptions
from samba.errors import SambaError
from samba.exporting.onnx_graph import NoOnnx, onnx_bytes
from samba.exporting.stablehlo import stablehlo
from samba.utils.checkpoint import save_checkpoint
from tests.samba.session.loading import load
from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome
from tests.tracing import trace

Optimizer = Callable[[Any], torch.optim.Optimizer]


class Waves(nn.Module):
    """Complex and real parameters, a complex buffer, products, a transform, parts."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(1)
        self.turn = nn.Parameter(torch.randn(4, dtype=torch.complex64, generator=drawn))
        self.pairs = nn.Parameter(torch.randn(4, 2, generator=drawn))
        self.mix = nn.Linear(4, 3, dtype=torch.complex64)
        self.register_buffer("seen", torch.zeros(4, dtype=torch.complex64))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x * self.turn.conj() * torch.view_as_complex(self.pairs) + (0.5 - 1j)
        self.seen.add_(z.detach().mean(0))
        spectrum = torch.fft.fft(z, norm="ortho")
        y = self.mix(spectrum * 1j)
        parts = torch.view_as_real(y).square().mean() + z.abs().sum() + z.angle().cos().mean()
        return parts + (z @ z.mH).real.mean(), y


def batch(dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    return torch.randn(5, 4, dtype=dtype, generator=torch.Generator().manual_seed(2))


def loaded(model: nn.Module, x: torch.Tensor, optimizer: Any, folder: Path, **options: Any) -> Any:
    samba.session.reset()
    given = (samba.from_torch_tensor(x, name="x"),)
    outputs = load(samba.from_torch_model_(model), given, folder, optimizer, **options)
    return samba.session.pef_path, given, outputs


SGD: Optimizer = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1)  # noqa: E731
OTHERS: dict[str, Optimizer] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
}


def check_training(make: Optimizer, folder: Path, steps: int = 3) -> None:
    host = Waves()
    model, x = copy.deepcopy(host), batch()
    theirs = make(host.parameters())
    loss = y = torch.zeros(())
    for _ in range(steps):
        theirs.zero_grad()
        loss, y = host(x)
        loss.backward()
        for parameter in host.parameters():
            # Torch's optimizers refuse gradients that are noted as to be conjugated.
            parameter.grad = None if parameter.grad is None else parameter.grad.resolve_conj()
        theirs.step()
    _, given, outputs = loaded(model, x, make(model.parameters()), folder)
    for _ in range(steps):
        outputs = samba.session.run(given, outputs)
    torch.testing.assert_close(samba.to_torch(outputs[0]), loss.detach())
    torch.testing.assert_close(samba.to_torch(outputs[1]).detach(), y.detach())
    samba.session.to_cpu(model)
    for path, want in (*host.named_parameters(), *host.named_buffers()):
        got = {**dict(model.named_parameters()), **dict(model.named_buffers())}[path]
        torch.testing.assert_close(samba.to_torch(got).detach(), want.detach(), msg=path)
        if want.grad is not None:
            torch.testing.assert_close(got.sn_grad, want.grad, msg=path, rtol=1e-5, atol=1e-5)


def test_a_model_of_complex_numbers_trains_as_in_torch(tmp_path: Path) -> None:
    check_training(SGD, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_optimizers_take_the_two_parts_for_two_parameters(name: str, tmp_path: Path) -> None:
    check_training(OTHERS[name], tmp_path)


class Turned(nn.Module):
    """Of its parameter torch's gradient is one that it has yet to conjugate."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(self.turn.conj() * x).square().sum()


def test_a_gradient_that_torch_leaves_to_be_conjugated_is_stepped_by(tmp_path: Path) -> None:
    """Torch's optimizers but SGD raise; with the same gradient conjugated they step as this."""
    host, x = Turned(), torch.tensor([1j, 2.0 - 1j])
    model = copy.deepcopy(host)
    theirs = torch.optim.Adam(host.parameters(), lr=0.1)
    host(x).backward()
    assert host.turn.grad is not None
    assert host.turn.grad.is_conj()
    with pytest.raises(RuntimeError, match="view_as_real doesn't work on unresolved conjugated"):
        theirs.step()
    theirs = torch.optim.Adam(host.parameters(), lr=0.1)
    host.turn.grad = host.turn.grad.resolve_conj()
    theirs.step()
    ours = torch.optim.Adam(model.parameters(), lr=0.1)
    _, given, outputs = loaded(model, x, ours, tmp_path)
    samba.session.run(given, outputs)
    samba.session.to_cpu(model)
    torch.testing.assert_close(samba.to_torch(model.turn).detach(), host.turn.detach())


class _Own(torch.autograd.Function):
    """A gradient that is not the derivative, of complex values and of real ones."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, w: torch.Tensor) -> Any:
        ctx.save_for_backward(z, w)
        return z * w, z.abs()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        z, w = ctx.saved_tensors
        g, h = grads
        return g * w.conj() * (0.5 + 1j) + h * z, (g * z.conj()).real * 0.25


class Defined(nn.Module):
    """Such a function, and a hook that turns a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = _Own.apply(self.c * x, self.w)
        h = a * 2
        h.register_hook(lambda g: g * 1j)
        return (h * (1 + 1j)).real.sum() + b.sum() + h.abs().sum()


@pytest.mark.slow
def test_gradients_that_a_model_defines_itself_are_torchs(tmp_path: Path) -> None:
    assert train_both(Defined, {"x": batch()}, tmp_path) == (Outcome.EQUAL, "")


@pytest.mark.slow
def test_a_file_of_complex_numbers_in_all_its_uses(tmp_path: Path) -> None:
    """Its version, conjugated inputs, gradients of outputs, checkpoints, other tools."""
    model, x = Waves(), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pef, given, outputs = loaded(model, x, optimizer, tmp_path, loss_indices=[0])
    program = read_pef(pef)
    assert read_info(pef).min_reader == 4
    assert {region.dtype for region in program.regions} >= {DType.COMPLEX64}
    assert '{"complex": "1j"}' in str(graphs_as_dict(program, [0])).replace("'", '"')
    assert "complex64" in as_dot(program, [0])

    other = samba.from_torch_tensor(x.conj(), name="x")  # only noted by torch, not computed
    first = samba.session.run((other,), outputs, section_types=["fwd"])[1]
    second = samba.session.run(
        (samba.from_torch_tensor(x.conj().resolve_conj(), name="x"),),
        outputs,
        section_types=["fwd"],
    )[1]
    torch.testing.assert_close(samba.to_torch(first), samba.to_torch(second), rtol=0, atol=0)
    wide = samba.from_torch_tensor(x.conj().resolve_conj().to(torch.complex128), name="x")
    third = samba.session.run((wide,), outputs, section_types=["fwd"])[1]
    torch.testing.assert_close(samba.to_torch(third), samba.to_torch(second), rtol=0, atol=0)
    with pytest.raises(SambaError, match="found float32, the program was compiled for complex64"):
        samba.session.run((samba.from_torch_tensor(x.real, name="x"),), outputs)

    samba.session.run(given, outputs)
    checkpoint = utils.TrainingCheckpoint(tmp_path / "last.pt", model, optimizer)
    checkpoint.save(step=1)
    ends = []
    for _ in range(2):
        checkpoint.load()
        samba.session.run(given, outputs)
        samba.session.to_cpu(model)
        ends.append({k: samba.to_torch(p).detach().clone() for k, p in model.named_parameters()})
    for path, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][path], rtol=0, atol=0)
    save_checkpoint(model, tmp_path / "waves.safetensors")
    read = load_file(tmp_path / "waves.safetensors")["waves__turn"]
    torch.testing.assert_close(read, ends[1]["turn"], rtol=0, atol=0)
    moment = optimizer.state_dict()["state"][0]["exp_avg_sq"]
    assert moment.dtype is torch.complex64
    assert bool((moment.imag > 0).all())


@pytest.mark.slow
def test_other_forms_of_a_program_of_complex_numbers(tmp_path: Path) -> None:
    model = Waves().eval()
    pef, _, _ = loaded(model, batch(), None, tmp_path, inference=True)
    program = read_pef(pef)
    assert "complex<f32>" in stablehlo(program, all_steps(program)).text
    with pytest.raises(NoOnnx, match="it computes with complex numbers"):
        onnx_bytes(program, 0, dict(model.state_dict()))


def test_a_complex_output_is_no_loss() -> None:
    with pytest.raises(ComplexLoss, match=r"output 1 \(.*\) is complex64, expected real numbers"):
        build_program(
            trace(Waves(), (batch(),)), [], CompileOptions(name="waves", loss_indices=(1,))
        )


@pytest.mark.parametrize(
    "forward",
    [
        lambda z: torch.relu(z),
        lambda z: z.real.sum() < z,
        lambda z: torch.sort(z)[0],
        lambda z: z.max(),
        lambda z: torch.nn.functional.softplus(z),
        lambda z: torch.nn.functional.gelu(z),
        lambda z: torch.softmax(z, 0),
        lambda z: z.clamp(min=0),
    ],
)
def test_what_torch_has_not_for_complex_numbers_is_refused(
    forward: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(x * 2).sum() + forward(x).abs().sum()

    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        Net()(batch())
    with pytest.raises(SambaError):
        trace(Net(), (batch(),))

"""Hugging Face models through the whole front end: loss, gradients and buffers against torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samba
from tests.models.hugging_face import CASES, NAMED, Case
from tests.samba.session.loading import load

LOSS = 1e-5
"""How far a loss may stand from torch's, relative."""
GRADIENT = 1e-4
"""How far a gradient may, relative to the largest entry of its tensor."""
SMALL = 1e-3
"""The part of the model's largest gradient that counts as the largest entry at least: some
gradients (of a key's bias) are zero but for rounding."""


def tensors(tree: Any) -> Iterator[Tensor]:
    """What a device returns of the results of ``forward``: all tensors, no caches."""
    if isinstance(tree, Tensor):
        yield tree.detach()
    elif isinstance(tree, (dict, list, tuple)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(item)


def run_on_device(model: nn.Module, inputs: dict[str, Tensor | None], folder: Path) -> list[Tensor]:
    """Compile, load, run forward and backward."""
    samba.from_torch_model_(model)
    given = samba.from_named_dict(inputs)
    outputs = samba.session.run(given, load(model, given, folder, loss_indices=[0]))
    return [samba.to_torch(output).detach() for output in outputs]


def gradient_errors(model: nn.Module, host: nn.Module) -> dict[str, float]:
    """Errors by parameter, relative to its largest entry."""
    ours = dict(model.named_parameters())
    theirs = {k: p.grad for k, p in host.named_parameters() if p.grad is not None}
    floor = SMALL * max(grad.abs().max().item() for grad in theirs.values())
    errors = {}
    for path, grad in theirs.items():
        got = samba.to_torch(ours[path].sn_grad)
        errors[path] = ((got - grad).abs().max() / max(grad.abs().max().item(), floor)).item()
    return errors


def zero_gradients(host: nn.Module, inputs: dict[str, torch.Tensor]) -> set[str]:
    """Parameters whose gradient is zero, as float64 tells: a bias that batch norm takes away."""
    exact = copy.deepcopy(host).double()
    exact.zero_grad()
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    results = exact(**wide)
    next(iter(results.values() if isinstance(results, dict) else results)).backward()
    sizes = {k: p.grad.abs().max() for k, p in exact.named_parameters() if p.grad is not None}
    return {k for k, size in sizes.items() if size < 1e-12 * max(sizes.values())}


def check(case: Case, folder: Path) -> None:
    torch.manual_seed(0)
    model = case.build()
    inputs = case.inputs()
    host = copy.deepcopy(model)
    results = host(**inputs)
    want = list(tensors(results))
    next(iter(results.values() if isinstance(results, dict) else results)).backward()

    got = run_on_device(model, inputs, folder)
    assert [g.shape for g in got] == [w.shape for w in want]
    assert abs(got[0] - want[0]) <= LOSS * abs(want[0])
    for ours, theirs in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    errors = gradient_errors(model, host)
    assert len(errors) > 10
    off = {path for path, error in errors.items() if error > GRADIENT}
    for path in sorted(off and off & zero_gradients(host, inputs)):
        # Nothing but rounding on both sides: ours may not be of another order than torch's.
        noise = samba.to_torch(model.get_parameter(path).sn_grad).abs().max()
        theirs = host.get_parameter(path).grad
        assert theirs is not None and noise <= 4 * theirs.abs().max()
        del errors[path]
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] <= GRADIENT, f"{worst} is off by {errors[worst]:.3g}"
    samba.session.to_cpu(model)
    for path, buffer in host.named_buffers():
        torch.testing.assert_close(model.get_buffer(path), buffer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if c.fast else pytest.mark.slow) for n, c in CASES.items()]
)
def test_loss_and_gradients_match_torch(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


def test_the_named_models_are_all_there() -> None:
    wanted = {"gpt2", "bert", "vit", "resnet", "t5", "llama", "convnext", "whisper"}
    assert {name.split("_")[0] for name in NAMED} == wanted


def test_the_tolerance_bites() -> None:
    host, model = nn.Linear(3, 2), nn.Linear(3, 2)
    for path, p in host.named_parameters():
        p.grad = torch.ones_like(p)
        model.get_parameter(path).sn_grad = torch.ones_like(p)
    assert max(gradient_errors(model, host).values()) == 0
    model.weight.sn_grad[0, 0] += 2 * GRADIENT
    assert max(gradient_errors(model, host).values()) > GRADIENT


def test_only_what_is_zero_counts_as_zero() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    assert zero_gradients(net, {"input": torch.randn(8, 3)}) == {"0.bias"}

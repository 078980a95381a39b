"""samba.optim on the host: torch's numbers, SambaFlow's defaults and settings."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import samba
from samba.errors import ArgumentError
from tests.api.covers import covers
from tests.emulator.lowering.optimizer_cases import CASES

CLASSES = {
    cls: getattr(samba.optim, cls.__name__)
    for cls, _ in CASES.values()
    if hasattr(samba.optim, cls.__name__)
}
"""SambaFlow's class of each that the device knows, but Bagua's, which has none."""
OWN_DEFAULTS = {torch.optim.SGD: {}, torch.optim.AdamW: {"betas": (0.8, 0.9), "weight_decay": 0.1}}
"""Whose defaults are SambaFlow's, or of which torch has fewer: with others."""


def accepted(ours: type, options: dict[str, Any]) -> dict[str, Any]:
    """The options that SambaFlow's class has."""
    known = inspect.signature(ours).parameters
    return {name: value for name, value in options.items() if name in known}


PAIRS = {
    name: (CLASSES[cls], cls, OWN_DEFAULTS.get(cls, {}) | accepted(CLASSES[cls], options))
    for name, (cls, options) in CASES.items()
    if cls in CLASSES
}


def models() -> tuple[nn.Module, nn.Module]:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return plain, samba.from_torch_model_(copy.deepcopy(plain))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def check_equal(plain: nn.Module, model: nn.Module) -> None:
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(expected.data, found.data)


@covers("samba.optim.SGD")
@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS.values(), ids=PAIRS)
def test_steps_are_torchs(ours, theirs, options):
    plain, model = models()
    optimizer = ours(model.parameters(), **options)
    reference = theirs(plain.parameters(), **options)
    train(plain, reference)
    train(model, optimizer)
    check_equal(plain, model)
    assert isinstance(optimizer, theirs)
    for state in optimizer.state.values():
        assert all(type(v) is torch.Tensor for v in state.values() if torch.is_tensor(v))


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS.values(), ids=PAIRS)
def test_state_dicts_are_exchangeable(ours, theirs, options):
    plain, model = models()
    optimizer = ours(model.parameters(), **options)
    train(model, optimizer)
    plain.load_state_dict(model.state_dict())
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    reference = theirs(plain.parameters(), **options)
    reference.load_state_dict(torch.load(file, weights_only=True))
    again = ours(model.parameters(), **options)
    again.load_state_dict(copy.deepcopy(reference.state_dict()))
    train(plain, reference)
    train(model, again)
    check_equal(plain, model)


def test_defaults():
    parameters = [nn.Parameter(torch.ones(1))]
    adamw = samba.optim.AdamW(parameters).param_groups[0]
    assert (adamw["lr"], adamw["betas"], adamw["eps"]) == (0.001, (0.9, 0.997), 1e-8)
    assert (adamw["weight_decay"], adamw["amsgrad"]) == (0, False)
    adam = samba.optim.Adam(parameters)
    assert adam.param_groups[0]["betas"] == (0.9, 0.999)
    assert (adam.argin_region_name, adam.max_grad_norm, adam.fp32_params) == ("", None, False)
    sgd = samba.optim.SGD(parameters, lr=0.0)
    assert (sgd.param_groups[0]["momentum"], sgd.param_groups[0]["weight_decay"]) == (0, 0)
    assert sgd.max_grad_norm is None


@pytest.mark.parametrize("theirs", [cls for cls in CLASSES if cls not in OWN_DEFAULTS])
def test_defaults_are_torchs(theirs):
    ours = CLASSES[theirs]
    parameters = [nn.Parameter(torch.ones(1))]
    optimizer = ours(parameters, max_grad_norm=2.0, argin_region_name="net")
    assert optimizer.defaults == theirs(parameters).defaults
    assert (optimizer.max_grad_norm, optimizer.argin_region_name) == (2.0, "net")


def test_every_form_of_params():
    model = samba.from_torch_model_(nn.Linear(2, 2))
    for params in (
        model.parameters(),
        list(model.parameters()),
        dict.fromkeys(model.parameters()),
        [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias]}],
        list(model.named_parameters()),
    ):
        optimizer = samba.optim.AdamW(params, lr=0.1)
        found = [p for group in optimizer.param_groups for p in group["params"]]
        assert found[0] is model.weight
        assert found[1] is model.bias
    assert "argin_region_name" not in optimizer.param_groups[0]
    optimizer = samba.optim.SGD([model.weight], lr=0.1)
    optimizer.add_param_group({"params": [model.bias], "lr": 0.5})
    assert optimizer.param_groups[1]["lr"] == 0.5
    with pytest.raises(ValueError, match="learning rate"):
        samba.optim.SGD(model.parameters(), lr=-1.0)


@pytest.mark.parametrize("cls", [samba.optim.Adam, samba.optim.AdamW])
def test_gradients_are_clipped_together(cls):
    plain, model = models()
    optimizer = cls(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.1}],
        lr=0.01,
        betas=(0.9, 0.99),
        weight_decay=0.0,
        max_grad_norm=0.05,
    )
    theirs = torch.optim.Adam if cls is samba.optim.Adam else torch.optim.AdamW
    reference = theirs(
        [{"params": plain[0].parameters()}, {"params": plain[2].parameters(), "lr": 0.1}],
        lr=0.01,
        betas=(0.9, 0.99),
        weight_decay=0.0,
    )
    x = torch.randn(8, 3)
    for _ in range(3):
        for net, opt in ((plain, reference), (model, optimizer)):
            opt.zero_grad()
            net(x).square().mean().backward()
            if net is plain:
                norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
                assert norm > 0.05
            opt.step()
    check_equal(plain, model)


def test_closure_and_hooks_run_once():
    plain, model = models()
    nothing = torch.optim.SGD(plain.parameters(), lr=0.1)
    train(plain, nothing, steps=1)  # torch wraps its class when it is first used
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).square().mean()
        loss.backward()
        calls.append("closure")
        return loss

    with torch.no_grad():
        assert optimizer.step(closure).item() > 0
    assert calls == ["before", "closure", "after"]


def test_schedulers_drive_it():
    model = samba.from_torch_model_(nn.Linear(2, 2))
    optimizer = samba.optim.AdamW(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_settings_survive_copies_and_pickles():
    model = samba.from_torch_model_(nn.Linear(2, 2))
    optimizer = samba.optim.AdamW(
        model.parameters(), max_grad_norm=1.5, fp32_params=True, argin_region_name="emb"
    )
    again = pickle.loads(pickle.dumps(optimizer))  # noqa: S301  # our own bytes
    for twin in (copy.deepcopy(optimizer), again):
        assert (twin.max_grad_norm, twin.fp32_params, twin.argin_region_name) == (1.5, True, "emb")
        assert twin.param_groups[0]["params"][0].sn_name == "linear__weight"
        twin.step()
    assert samba.optim.SGD(model.parameters(), argin_region_name="x").argin_region_name == "x"


@pytest.mark.parametrize("norm", [0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_must_be_positive(norm):
    with pytest.raises(ArgumentError, match="expected a positive finite number"):
        samba.optim.AdamW([nn.Parameter(torch.ones(1))], max_grad_norm=norm)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"max_grad_norm": "1.0"}, r"max_grad_norm=\.\.\.\): found str '1.0', expected a positive"),
        ({"max_grad_norm": [1.0]}, r"max_grad_norm=\.\.\.\): found list"),
        ({"argin_region_name": 5}, r"argin_region_name=\.\.\.\): found int 5, expected a string"),
        ({"fp32_params": "no"}, r"fp32_params=\.\.\.\): found str 'no', expected True or False"),
    ],
)
def test_settings_of_another_type_are_refused_by_name(settings, found):
    """Such as texts, which a command line gives where an app forgets their type."""
    with pytest.raises(ArgumentError, match=found):
        samba.optim.AdamW([nn.Parameter(torch.ones(1))], **settings)


def test_bfloat16_parameters_train():
    plain, model = models()
    plain.bfloat16()
    model.bfloat16()
    x = torch.randn(8, 3).bfloat16()
    for net, optimizer in (
        (plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)),
        (model, samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)),
    ):
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    check_equal(plain, model)

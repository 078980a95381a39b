"""Hooks of torch: those that change values run on the device, those that watch are named once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_full_backward_hook,
)

import samba
from pef_schema import read_pef
from samba import utils
from samba.session.check_pef import GraphMismatch
from tests.samba.gradients import (
    LEVELS,
    Base,
    Between,
    batch,
    compiled,
    follow_torch,
    given,
    refused,
    sgd,
)
from tests.samba.worlds import Together, close, deviations, told


def clips_inputs(model: Base) -> None:
    model.middle.register_full_backward_hook(lambda m, gi, go: (gi[0].clamp(-0.01, 0.01) * 3,))


def mixes_in_outputs(model: Base) -> None:
    """The gradient of the input is made of that of the output, which comes before it."""
    model.middle.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.1 + go[0] * 2,))


def signs_outputs(model: Base) -> None:
    model.middle.register_full_backward_pre_hook(lambda m, go: (go[0].sign() * 0.1,))


def several_on_one_module(model: Base) -> None:
    signs_outputs(model)
    mixes_in_outputs(model)
    clips_inputs(model)
    model.middle[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * go[0].abs(),))


def on_the_model(model: Base) -> None:
    model.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))


def nothing_for_the_input(model: Base) -> None:
    model.middle.register_full_backward_hook(lambda m, gi, go: (None,))


def on_parameters(model: Base) -> None:
    model.first.weight.register_hook(lambda g: g.clamp(-0.02, 0.02))
    model.first.weight.register_hook(lambda g: g * 2)
    model.last.bias.register_hook(lambda g: g * 0)


def on_a_shared_parameter(model: Base) -> None:
    model.middle[0].weight = model.first.weight
    on_parameters(model)


def only_in_training(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2 if module.training else output


def called_with_keywords(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    return output + args[0]


def before_the_call(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return (args[0] * 2,), kwargs


def forward_hooks(model: Base) -> None:
    model.middle.register_forward_hook(only_in_training)
    model.middle[1].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    model.first.register_forward_hook(called_with_keywords, with_kwargs=True, always_call=True)
    model.first.register_forward_pre_hook(before_the_call, with_kwargs=True)
    model.register_forward_hook(only_in_training)


def hooks_in_forward(model: Any, h: Tensor) -> Tensor:
    """Hooks on a tensor that was used before, in order, in place, with one that is removed."""
    mask = model.middle(h) > 0
    h.register_hook(lambda g: g * mask * 2)
    h.register_hook(lambda g: g.clamp(-0.01, 0.01))
    h.register_hook(lambda g: g * 100).remove()
    out = model.middle(h) * h

    def doubled(g: Tensor) -> None:
        g.mul_(2)

    out.register_hook(doubled)
    return out


PREPARED = (
    *(clips_inputs, mixes_in_outputs, signs_outputs, several_on_one_module),
    *(nothing_for_the_input, on_parameters, on_a_shared_parameter, forward_hooks),
)


def hooked() -> nn.Module:
    parts = {prepare.__name__: Base() for prepare in PREPARED}
    return Together({**parts, "in_forward": Between(hooks_in_forward)})


def prepared(model: Any) -> None:
    for prepare in PREPARED:
        prepare(model.parts[prepare.__name__])


@pytest.mark.parametrize("levels", LEVELS, ids="-".join)
def test_hooks_that_change_values_run(levels: tuple[str, ...], tmp_path, caplog):
    follow_torch(hooked, tmp_path, levels, prepared, again=len(levels) > 1)
    assert not deviations(caplog)


def test_hooks_of_the_whole_model_and_of_all_modules_run(tmp_path):
    handles = [
        register_module_forward_hook(lambda m, i, o: o * 1.5 if type(m) is nn.Tanh else None),
        register_module_full_backward_hook(
            lambda m, gi, go: (gi[0] * 0.5,) if type(m) is nn.Tanh else None
        ),
    ]
    try:
        with pytest.warns(UserWarning, match="Full backward hook is firing"):  # torch's own
            follow_torch(Base, tmp_path, prepare=on_the_model)
    finally:
        for handle in handles:
            handle.remove()


def test_a_hook_on_a_parameter_sees_each_gradient_before_it_is_accumulated(tmp_path):
    host = Base()
    model = copy.deepcopy(host)
    for each in (host, model):
        each.first.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    pef = compiled(model, tmp_path, grad_accumulation_steps=2)
    utils.trace_graph(model, given(), sgd(model), pef=pef)
    samba.session.run(section_types=["zerograd"])
    for step in range(2):
        samba.session.run(given(step), model.output_tensors, section_types=["fwd", "bckwd"])
        host(*batch(step)).backward()
    close(model.first.weight.sn_grad, host.first.weight.grad)


# -- hooks that watch ---------------------------------------------------------------------


def test_hooks_that_only_watch_are_named_once_and_change_nothing(tmp_path, caplog, capsys):
    def prepare(model: Base) -> None:
        seen: list[Any] = []
        model.middle.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0]))
        model.middle[0].register_forward_hook(lambda m, i, o: print(o.shape))
        model.first.weight.register_hook(lambda g: print(g.norm().item()))

        def alarm(g: Tensor) -> None:
            if g.isnan().any():
                raise ValueError(g)

        model.last.weight.register_hook(alarm)

    model = follow_torch(Base, tmp_path, prepare=prepare)
    assert set(deviations(caplog)) == {"watching-hook"}
    lines = told(caplog)
    assert len(lines) == len(set(lines)) == 4
    for kind in (
        "full backward hook of module middle",
        "forward hook of module middle.0",
        "hook of parameter first.weight",
        "hook of parameter last.weight",
    ):
        assert any(f"the {kind}," in line and f"{__file__}:" in line for line in lines)
    assert not read_pef(tmp_path / "o3" / "net" / "net.pef").graphs[0].gradients
    assert type(next(iter(model.middle[0]._forward_hooks.values()))).__name__ == "function"


# -- hooks that are refused ----------------------------------------------------------------


def branches(model: Base) -> None:
    model.first.weight.register_hook(lambda g: g / g.norm() if g.norm() > 1 else g)


def leaves_torch(model: Base) -> None:
    model.middle.register_full_backward_hook(
        lambda m, gi, go: (torch.from_numpy(gi[0].numpy() * 2),)
    )


def of_another_size(model: Base) -> None:
    model.first.weight.register_hook(lambda g: g[:2])


def after_accumulation(model: Base) -> None:
    model.first.weight.register_post_accumulate_grad_hook(lambda p: None)


def of_the_old_kind(model: Base) -> None:
    model.middle.register_backward_hook(lambda m, gi, go: None)


@pytest.mark.parametrize(
    ("prepare", "deviation", "text"),
    [
        (branches, "untraced-hook", r"hook of parameter first.weight, branches.<locals>.<lambda>"),
        (leaves_torch, "untraced-hook", r"full backward hook of module middle, leaves_torch"),
        (of_another_size, "untraced-backward", r"first.weight cannot be traced.*changed the size"),
        (after_accumulation, "accumulation-hook", r"parameter first.weight: after_accumulation"),
        (of_the_old_kind, "old-backward-hook", r"module middle: of_the_old_kind"),
    ],
)
def test_a_hook_that_cannot_run_is_refused_by_name(prepare, deviation, text, tmp_path):
    model = Base()
    prepare(model)
    assert refused(model, tmp_path, text, deviation).where.startswith(f"{__file__}:")


def on_a_parameter(model: Any, h: Tensor) -> Tensor:
    model.last.weight.register_hook(lambda g: g * 2)
    return h


def of_random_numbers(model: Any, h: Tensor) -> Tensor:
    kept: list[Tensor] = []
    h.register_hook(lambda g: g * kept[0])
    kept.append(torch.rand_like(h))
    return h * kept[0]


@pytest.mark.parametrize(
    ("between", "deviation", "text"),
    [
        (on_a_parameter, "hook-on-leaf", "on a parameter or an input"),
        (of_random_numbers, "late-gradient-input", "which comes later"),
    ],
)
def test_a_hook_that_forward_registers_is_refused(between, deviation, text, tmp_path):
    refused(Between(between), tmp_path, text, deviation)


def test_another_hook_is_another_graph(tmp_path):
    model = Base()
    handle = model.middle.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    pef = compiled(model, tmp_path)
    handle.remove()
    with pytest.raises(GraphMismatch):
        utils.trace_graph(model, given(), sgd(model), pef=pef)
    model.middle.register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))
    with pytest.raises(GraphMismatch, match="its gradient"):
        utils.trace_graph(model, given(), sgd(model), pef=pef)


def test_a_hook_put_on_a_parameter_after_the_compile_is_noticed(tmp_path):
    model = Base()
    pef = compiled(model, tmp_path)
    model.first.weight.register_hook(lambda g: g * 2)
    with pytest.raises(GraphMismatch):
        utils.trace_graph(model, given(), sgd(model), pef=pef)

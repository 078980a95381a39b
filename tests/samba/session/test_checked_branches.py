"""Branches of which the graph has one side: an error of the run that takes the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
import samba.utils as utils
from emulator.device import Device
from emulator.errors import OtherBranch
from emulator.plans.steps import all_steps
from pef_schema import read_pef
from samba.graph import FwdGraph
from tests.samba.session.loading import load
from tests.samba.worlds import named

Forward = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 4, 2])
BAD = torch.tensor([0, 5, 2])


class Model(nn.Module):
    """A function of a batch, labels and a weight (4, 6)."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 6)
        self.register_buffer("steps", torch.zeros(()))
        self.function = function

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.function(self, x, labels)


def detr(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    h = m.first(x)
    if torch.isinf(h).any() or torch.isnan(h).any():
        limit = torch.finfo(h.dtype).max - 1000
        h = torch.clamp(h, min=-limit, max=limit)
    m.steps.add_(1)
    return F.cross_entropy(m.last(h), labels)


def hubert(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if labels is not None and labels.max() >= 5:
        raise ValueError(f"Label values must be < 5, found {labels.max()}")
    m.steps.add_(1)
    return F.cross_entropy(m.last(m.first(x).relu()), labels)


def asked_in_other_ways(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if int(labels.max() * 1.5) >= 7 or not torch.equal(labels, labels.clamp(max=4)):
        raise ValueError
    if float(x.sum()) == float("inf") or any(row.isnan().any() for row in x):
        x = x * 0
    m.steps.add_(1)
    return F.cross_entropy(m.last(m.first(x)), labels)


def line_of(function: Forward, below: int) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + below}"


def loaded(
    folder: Path,
    function: Forward,
    *,
    train: bool = True,
    is_split_batch: bool = False,
    **config: Any,
) -> tuple[nn.Module, str]:
    """A model on the device, and its PEF."""
    torch.manual_seed(0)
    model = samba.from_torch_model_(Model(function))
    inputs = named({"x": X, "labels": LABELS})
    optimizer = samba.optim.AdamW(model.parameters(), lr=0.1) if train else None
    more = {"inference": not train, "is_split_batch": is_split_batch}
    load(model, inputs, folder, optimizer, config=config, **more)
    return model, samba.session.pef_path


def run(model: Any, x: torch.Tensor = X, labels: torch.Tensor = LABELS, **more: Any) -> float:
    inputs = named({"x": x, "labels": labels})
    return samba.to_torch(samba.session.run(inputs, model.output_tensors, **more)[0]).item()


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    samba.session.to_cpu(model)
    return {k: samba.to_torch(v).clone() for k, v in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


INF = X.clone()
INF[1, 2] = float("inf")


@pytest.mark.parametrize(
    ("function", "bad", "below", "level"),
    [
        (detr, {"x": INF}, 2, "o0"),
        (hubert, {"labels": BAD}, 1, "o1"),
        (asked_in_other_ways, {"labels": BAD}, 1, "o1"),
        pytest.param(asked_in_other_ways, {"x": INF}, 3, "o0", marks=pytest.mark.slow),
        pytest.param(detr, {"x": INF}, 2, "o3", marks=pytest.mark.slow),
    ],
)
def test_a_run_of_the_other_side_ends_with_its_line_and_changes_nothing(
    tmp_path: Path, function: Forward, bad: Any, below: int, level: str
) -> None:
    model, _ = loaded(tmp_path, function, optim_level=level)
    run(model)
    before = state(model)
    with pytest.raises(OtherBranch) as caught:
        run(model, **bad)
    assert caught.value.source == line_of(function, below)
    assert caught.value.deviation == "other-branch"
    assert same(state(model), before)
    run(model)  # the failure was told; what follows is as ever
    assert not same(state(model), before)


def test_branches_are_told_once_with_their_lines(tmp_path: Path, caplog: Any) -> None:
    loaded(tmp_path, detr)
    found = [text for text in caplog.messages if "[deviation: checked-branch]" in text]
    assert len(found) == 1
    assert line_of(detr, 2) in found[0]


def test_the_pef_has_the_check(tmp_path: Path) -> None:
    _, pef = loaded(tmp_path, hubert)
    nodes = [n for n in read_pef(pef).graphs[0].nodes if n.op == "samba.checked_branch"]
    assert [n.source for n in nodes] == [line_of(hubert, 1)]


def test_runs_that_fetch_nothing_are_looked_at_when_memory_is_read(tmp_path: Path) -> None:
    model, _ = loaded(tmp_path, hubert)
    before = state(model)
    inputs = named({"x": X, "labels": BAD})
    samba.session.run(inputs, [])
    with pytest.raises(OtherBranch):
        samba.session.to_cpu(model)
    assert same(state(model), before)


def test_sections_of_one_type_are_held_back_too(tmp_path: Path) -> None:
    model, _ = loaded(tmp_path, hubert, optim_level="o1")
    before = state(model)
    inputs = named({"x": X, "labels": BAD})
    samba.session.run(inputs, [], section_types=["fwd"])
    try:
        samba.session.run((), [], section_types=["bckwd", "opt"])
    except OtherBranch:
        pass
    else:
        with pytest.raises(OtherBranch):
            samba.session.to_cpu(model)
    assert same(state(model), before)


def test_an_evaluator_checks(tmp_path: Path) -> None:
    model, _ = loaded(tmp_path, hubert)
    evaluator = samba.session.evaluator(model)
    inputs = named({"x": X, "labels": BAD})
    with pytest.raises(OtherBranch):
        evaluator.run(inputs)
    evaluator.run(named({"x": X, "labels": LABELS}))
    run(model)


def test_another_process_that_runs_the_pef_checks_too(tmp_path: Path) -> None:
    model, pef = loaded(tmp_path, hubert, train=False)
    values = state(model)
    samba.session.reset()
    device = Device(read_pef(pef))
    for name, tensor in values.items():
        device.write(device.region_of(f"model__{name.replace('.', '__')}"), tensor.numpy())
    device.write(device.region_of("x"), X.numpy())
    device.write(device.region_of("labels"), LABELS.numpy())
    plan = device.plan(all_steps(device.program))
    device.run(plan)
    output = device.program.graphs[0].outputs[0].region
    assert device.read(output).shape == ()
    device.write(device.region_of("labels"), BAD.numpy())
    device.run(plan)
    with pytest.raises(OtherBranch) as caught:
        device.read(output)
    assert caught.value.source == line_of(hubert, 1)
    assert device.read(output).shape == ()  # told once; the memory is there


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"mapping": "spatial"}, {"is_split_batch": True}])
def test_spatial_mapping_and_accumulation_hold_back_too(tmp_path: Path, how: Any) -> None:
    model, _ = loaded(tmp_path, hubert, **how)
    run(model)
    before = state(model)
    with pytest.raises(OtherBranch):
        run(model, labels=BAD)
    assert same(state(model), before)
    run(model)


@pytest.mark.slow
def test_each_graph_of_several_has_its_checks(tmp_path: Path) -> None:
    def traced() -> nn.Module:
        torch.manual_seed(0)
        model = samba.from_torch_model_(Model(hubert).eval())
        for rows in (2, 3):
            x = samba.from_torch_tensor(torch.zeros(rows, 4), name=f"x{rows}")
            labels = samba.from_torch_tensor(torch.zeros(rows, dtype=torch.int64), name=f"l{rows}")
            made = utils.trace_multigraph(model, (x, labels), trace_prefix=f"rows{rows}")
            samba.session.add_graph(FwdGraph((x, labels), made, f"rows{rows}"))
        return model

    def once(rows: int, label: int) -> None:
        labels = torch.full((rows,), label)
        given = named({f"x{rows}": torch.ones(rows, 4), f"l{rows}": labels})
        samba.session.run(given, graph_name=f"rows{rows}")
        samba.session.get_tensors_by_name(["model__steps"])

    traced()
    config = {"output_folder": str(tmp_path)}
    pef = samba.session.compile_multigraph("two", config_dict=config, inference=True)
    samba.session.reset()
    traced()
    samba.session.init_multigraph_runtime(pef)
    once(2, 4)
    for rows in (3, 2):
        with pytest.raises(OtherBranch):
            once(rows, 5)
        once(rows, 4)
    steps = samba.session.get_tensors_by_name(["model__steps"])[0]
    assert float(samba.to_torch(steps)) == 3

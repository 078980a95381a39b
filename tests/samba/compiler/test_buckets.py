"""Buckets of gradients: what the compiler puts together, and how the device keeps it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samba
from emulator.device import Device
from emulator.memory.buckets import ALIGNMENT
from emulator.plans.steps import all_steps, steps_of_kinds
from pef_schema import decode, encode, verify
from pef_schema.program import DType, Program, Role, SectionKind
from samba.compiler.build import build_program
from samba.compiler.forms.listing import pef_log
from samba.compiler.sections import CompileOptions
from samba.compiler.steps import Gradient, plan_buckets
from samba.tensor.views import view_as_numpy
from tests.samba.shared_traces import trace


class Net(nn.Module):
    def __init__(self, layers: int = 4, *, classes: int = 3, tied: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.head = nn.Linear(16, classes)
        if tied:
            self.layers[-1].weight = self.layers[0].weight

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        out = self.head(x)
        return F.cross_entropy(out, y), out


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 16), torch.tensor([0, 1, 2, 0, 1])


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def nadam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.NAdam(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def compiled(model: nn.Module, optimizer: object = None, **options: object) -> Program:
    traced = trace(model, inputs(), inference=False)
    optimizers = [] if optimizer is None else [optimizer]
    program = build_program(
        traced, optimizers, CompileOptions(name="net", **({"data_parallel": True} | options))
    )
    verify(program)
    assert decode(encode(program)) == program
    return program


def kinds(program: Program) -> list[str]:
    return [program.sections[c.section].steps[-1].kind.name for c in program.schedules[0].calls]


def reduces(program: Program) -> list[list[str]]:
    return [
        [program.regions[r].name for r in s.steps[0].writes]
        for s in program.sections
        if s.steps[0].kind is SectionKind.REDUCE
    ]


def test_each_bucket_is_reduced_right_after_its_last_backward_section() -> None:
    model = Net(3, classes=16)
    program = compiled(model, adamw(model), bucket_bytes=16 * 17 * 4)
    assert kinds(program) == ["FWD"] * 4 + ["BCKWD", "REDUCE"] * 4 + ["OPT"] * 4
    assert reduces(program) == [
        ["net__head__bias__grad", "net__head__weight__grad"],
        *([f"net__layers__{i}__bias__grad", f"net__layers__{i}__weight__grad"] for i in (2, 1, 0)),
    ]
    missing: set[int] = set()
    for call in program.schedules[0].calls:
        step = program.sections[call.section].steps[0]
        if step.kind is SectionKind.BCKWD:
            missing |= set(step.writes)
        elif step.kind is SectionKind.REDUCE:
            assert set(step.writes) <= missing
            missing -= set(step.writes)
        elif step.kind is SectionKind.OPT:
            assert not {p.grad for p in program.optimizers[0].params} & missing


def test_the_default_is_one_bucket_and_one_update_for_a_small_model() -> None:
    model = Net()
    program = compiled(model, sgd(model))
    assert kinds(program) == ["FWD", "BCKWD", "REDUCE", "OPT"]
    assert len(reduces(program)[0]) == 10
    assert "gradient:10" in pef_log(program)


def test_without_the_flag_nothing_changes() -> None:
    model = Net()
    program = compiled(model, sgd(model), data_parallel=False)
    assert kinds(program) == ["FWD", "BCKWD", "OPT"]


def test_tied_weights_are_reduced_once_after_their_last_use() -> None:
    model = Net(tied=True)
    program = compiled(model, sgd(model), bucket_bytes=16 * 17 * 4)
    found = [name for bucket in reduces(program) for name in bucket]
    assert len(found) == len(set(found)) == 9
    assert "net__layers__0__weight__grad" in reduces(program)[-1]


def test_the_norm_is_taken_of_reduced_gradients() -> None:
    model = Net()
    optimizer = samba.optim.AdamW(model.parameters(), lr=0.1, max_grad_norm=1.0)
    program = compiled(model, optimizer, bucket_bytes=16 * 17 * 4)
    assert kinds(program)[-2:] == ["GRADNORM", "OPT"]
    assert kinds(program).count("REDUCE") > 1 and kinds(program).count("OPT") == 1


def test_spatial_mapping_reduces_after_the_one_section() -> None:
    model = Net()
    program = compiled(model, sgd(model), mapping="spatial", bucket_bytes=16 * 17 * 4)
    assert kinds(program)[0] == "BCKWD" and kinds(program)[1] == "REDUCE"
    assert set(kinds(program)[1:]) == {"REDUCE", "OPT"}


def test_buckets_hold_one_dtype_and_keep_to_their_limit() -> None:
    gradients = [
        Gradient(
            region=i,
            nbytes=100,
            dtype=DType.BFLOAT16 if i % 3 == 2 else DType.FLOAT32,
            section=20 - i,
        )
        for i in range(12)
    ]
    buckets = plan_buckets(gradients, limit=300, first=100)
    assert [b.regions for b in buckets] == [(0,), (1, 3, 4), (2, 5, 8), (6, 7, 9), (10,), (11,)]
    assert [b.section for b in buckets] == [20, 16, 12, 11, 10, 9]
    large = plan_buckets(gradients[:2], limit=10, first=10)
    assert [b.regions for b in large] == [(0,), (1,)]
    assert plan_buckets([]) == ()


def loaded(program: Program, model: nn.Module, data: tuple[Tensor, Tensor]) -> Device:
    device = Device(program)
    device.use_buckets()
    for name, parameter in model.named_parameters():
        device.write(device.region_of("net__" + name.replace(".", "__")), view_as_numpy(parameter))
    for value, tensor in zip(program.graphs[0].inputs, data, strict=True):
        device.write(program.graphs[0].values[value].region, view_as_numpy(tensor))
    return device


@pytest.mark.parametrize(
    ("make", "accumulate"),
    [
        (adamw, True),
        pytest.param(adamw, False, marks=pytest.mark.slow),
        pytest.param(nadam, False, marks=pytest.mark.slow),
        pytest.param(sgd, False, marks=pytest.mark.slow),
        pytest.param(sgd, True, marks=pytest.mark.slow),
    ],
)
def test_buckets_change_no_number(make: object, accumulate: bool) -> None:
    model, data = Net(), inputs()
    plain = compiled(model, make(model), data_parallel=False, accumulate=accumulate)
    split = compiled(model, make(model), accumulate=accumulate, bucket_bytes=1500)
    devices = [loaded(p, model, data) for p in (plain, split)]
    for _ in range(3):
        for device in devices:
            device.run(device.plan(all_steps(device.program)))
    for region in plain.regions:
        if region.role in (Role.WEIGHT, Role.GRADIENT, Role.OPTIMIZER_STATE):
            found = [d.read(d.region_of(region.name)) for d in devices]
            np.testing.assert_array_equal(found[1], found[0])
    by_parts = loaded(split, model, data)
    types = ["ZEROGRAD", "FWD", "BCKWD", "REDUCE", "OPT"]
    for _ in range(3):
        for kind in types:
            steps = steps_of_kinds(split, [kind])
            if steps:
                by_parts.run(by_parts.plan(steps))
    one = next(r for r in split.regions if r.role is Role.WEIGHT)
    # One executable fuses sums with what reads them, which several cannot: their last bits differ.
    np.testing.assert_allclose(
        by_parts.read(by_parts.region_of(one.name)),
        devices[1].read(devices[1].region_of(one.name)),
        rtol=1e-6,
        atol=1e-8,
    )


def test_layout_is_contiguous_aligned_and_filled_with_zeros() -> None:
    model, data = Net(), inputs()
    program = compiled(model, sgd(model), bucket_bytes=1500)
    device = loaded(program, model, data)
    device.run(device.plan(steps_of_kinds(program, ["FWD", "BCKWD"])))
    assert len(device.buffer_map.buckets) > 2
    for bucket in device.buffer_map.buckets:
        flat = np.asarray(device.pool.buffers[bucket.home])
        assert flat.shape == (bucket.size,) and device.pool.buffers[bucket.regions[0]] is None
        rest = np.ones(bucket.size, bool)
        for region, start in zip(bucket.regions, bucket.offsets, strict=True):
            assert start * 4 % ALIGNMENT == 0
            got = device.read(region)
            np.testing.assert_array_equal(flat[start : start + got.size], got.reshape(-1))
            rest[start : start + got.size] = False
        assert not flat[rest].any()


def test_who_is_alone_has_no_buckets_until_they_are_asked_for() -> None:
    model, data = Net(), inputs()
    program = compiled(model, sgd(model), bucket_bytes=1500)
    train = steps_of_kinds(program, ["FWD", "BCKWD", "REDUCE", "OPT"])
    both, switched = loaded(program, model, data), Device(program)
    for region, buffer in enumerate(both.pool.buffers[: len(program.regions)]):
        if buffer is not None:
            switched.write(region, np.asarray(buffer))
    for device in (both, switched):
        device.run(device.plan(train))
    assert not switched.buffer_map.buckets and len(switched.pool.buffers) == len(program.regions)
    plan, variant = switched.plan(train), switched.variant
    grads = [r for r, region in enumerate(program.regions) if region.role is Role.GRADIENT]
    before = [switched.read(r) for r in grads]
    switched.use_buckets()
    assert switched.plan(train) is not plan and switched.variant is not variant
    assert all(switched.pool.buffers[r] is None for r in grads)
    for r, values in zip(grads, before, strict=True):
        np.testing.assert_array_equal(switched.read(r), values)
    for device in (both, switched):
        device.run(device.plan(train))
    for r, region in enumerate(program.regions):
        if region.role in (Role.WEIGHT, Role.GRADIENT):
            np.testing.assert_array_equal(switched.read(r), both.read(r))


def test_single_gradients_of_a_bucket_can_be_written() -> None:
    model, data = Net(), inputs()
    program = compiled(model, sgd(model))
    device = loaded(program, model, data)
    region = device.gradient_of("net__head__weight")
    other = device.gradient_of("net__head__bias")
    assert not device.read(region).any()
    device.run(device.plan(steps_of_kinds(program, ["FWD", "BCKWD"])))
    before = device.read(other)
    device.write(region, np.full((3, 16), 2.0, np.float32))
    assert (device.read(region) == 2).all() and (device.read(other) == before).all()
    weight = device.read(device.region_of("net__head__weight"))
    device.run(device.plan(steps_of_kinds(program, ["OPT"])))
    after = device.read(device.region_of("net__head__weight"))
    np.testing.assert_array_equal(after, weight - np.float32(0.2))  # 0.1 * 2 is rounded as 0.2 is
    device.zero(region)
    assert not device.read(region).any() and (device.read(other) == before).all()


def test_updates_by_bucket_count_a_step_once() -> None:
    model = Net()
    program = compiled(model, adamw(model), bucket_bytes=1500)
    opts = [s.steps[0] for s in program.sections if s.steps[0].kind is SectionKind.OPT]
    step = program.optimizers[0].step
    assert len(opts) > 2
    assert [step in o.writes for o in opts] == [False] * (len(opts) - 1) + [True]
    assert all(step in o.reads for o in opts)
    weights = [w for o in opts for w in o.writes if program.regions[w].role is Role.WEIGHT]
    assert sorted(weights) == sorted(p.weight for p in program.optimizers[0].params)


def test_groups_of_an_optimizer_are_updated_with_their_buckets() -> None:
    model = Net()
    optimizer = torch.optim.SGD(
        [{"params": model.layers.parameters()}, {"params": model.head.parameters(), "lr": 0.5}],
        lr=0.1,
    )
    program = compiled(model, optimizer, bucket_bytes=1500)
    opts = [s.steps[0] for s in program.sections if s.steps[0].kind is SectionKind.OPT]
    assert opts[0].optimizers == (0, 1) and {o.optimizers for o in opts[1:]} == {(0,)}
    written = [w for o in opts for w in o.writes]
    assert len(set(written)) == len(written)


def test_options_are_part_of_the_program() -> None:
    model = Net()
    one = compiled(model, sgd(model))
    assert one == compiled(model, sgd(model))
    assert dataclasses.replace(one, sections=()) != compiled(model, sgd(model), data_parallel=False)

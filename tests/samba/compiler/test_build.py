"""The compiler: sections, saved values, regions, gradients, optimizers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samba
from pef_schema import encode, verify
from pef_schema.program import ArginKind, OutputGrad, Program, Role, SectionKind
from samba.compiler.build import build_program
from samba.compiler.forms.listing import pef_log
from samba.compiler.optimizers import StaleParameter, UnsupportedOptimizer
from samba.compiler.placement import RegionConflict
from samba.compiler.sections import CompileOptions, UnknownOptimLevel
from tests.processes import finished
from tests.samba.shared_traces import trace


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.fc2(F.gelu(self.fc1(x)))
        return F.cross_entropy(out, y), out


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 6), torch.tensor([0, 1, 2, 0])


def compiled(
    model: nn.Module, *, optimizers: object = (), args: object = None, **options: object
) -> Program:
    inference = bool(options.get("inference", False))
    traced = trace(model, inputs() if args is None else args, inference=inference)
    program = build_program(traced, list(optimizers), CompileOptions(name="net", **options))
    verify(program)
    return program


def kinds(program: Program) -> list[tuple[SectionKind, ...]]:
    return [program.sections[c.section].kinds for c in program.schedules[0].calls]


def regions(program: Program, role: Role) -> list[str]:
    return [r.name for r in program.regions if r.role is role]


def test_training_has_forward_backward_and_optimizer() -> None:
    model = Net()
    program = compiled(model, optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)])
    assert kinds(program) == [(SectionKind.FWD,), (SectionKind.BCKWD,), (SectionKind.OPT,)]
    assert regions(program, Role.GRADIENT) == [
        f"net__fc{i}__{p}__grad" for i in (1, 2) for p in ("weight", "bias")
    ]
    assert len(program.optimizers[0].params) == 4, "a parameter without gradient is left alone"


def test_inference_is_forward_only() -> None:
    program = compiled(Net(), inference=True)
    assert kinds(program) == [(SectionKind.FWD,)]
    assert not regions(program, Role.GRADIENT) and not regions(program, Role.ACTIVATION)
    assert all(o.grad is OutputGrad.ABSENT for o in program.graphs[0].outputs)


def test_o0_gives_every_operator_a_section_and_backward_mirrors_it() -> None:
    program = compiled(Net(), optim_level="o0")
    forward = [s for s in program.sections if s.kinds == (SectionKind.FWD,)]
    backward = [s for s in program.sections if s.kinds == (SectionKind.BCKWD,)]
    assert [len(s.steps[0].nodes) for s in forward] == [1, 1, 1, 1]
    assert [s.steps[0].nodes for s in backward] == [s.steps[0].nodes for s in reversed(forward)]


def test_o1_gives_every_module_a_section() -> None:
    program = compiled(Net(), optim_level="o1")
    modules = [
        {program.graphs[0].nodes[i].module for i in s.steps[0].nodes}
        for s in program.sections
        if s.kinds == (SectionKind.FWD,)
    ]
    assert modules == [{"net__fc1"}, {"net"}, {"net__fc2"}, {"net"}]


def test_o1_follows_op_fusion() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
            self.b = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)).sum()

    model = Two()
    args = (torch.randn(2, 4),)
    before = compiled(model, optim_level="o1", args=args)
    samba.directives.op_fusion(model.a, "Encoder")
    after = compiled(model, optim_level="o1", args=args)
    count = [sum(s.kinds == (SectionKind.FWD,) for s in p.sections) for p in (before, after)]
    assert count == [6, 4]


def test_o3_cuts_by_bytes() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    whole = compiled(model, args=(torch.randn(2, 64),))
    cut = compiled(model, args=(torch.randn(2, 64),), section_bytes=40_000)
    assert sum(s.kinds == (SectionKind.FWD,) for s in whole.sections) == 1
    assert sum(s.kinds == (SectionKind.FWD,) for s in cut.sections) == 3
    assert not regions(whole, Role.COTANGENT)
    assert len(regions(cut, Role.COTANGENT)) == 2


def test_spatial_mapping_is_one_section_of_forward_and_backward() -> None:
    program = compiled(Net(), mapping="spatial")
    assert kinds(program) == [(SectionKind.FWD, SectionKind.BCKWD)]


def test_cheap_values_are_recomputed_and_the_rest_is_saved() -> None:
    program = compiled(Net())
    backward = next(s for s in program.sections if s.kinds == (SectionKind.BCKWD,)).steps[0]
    ops = [program.graphs[0].nodes[i].op for i in backward.recompute]
    assert ops == ["aten.gelu.default"], "gelu costs less than keeping its result"
    assert regions(program, Role.ACTIVATION) == [
        "net__fc1__linear__outputs__0",
        "net__fc2__linear__outputs__0__saved",
    ]


def test_a_residual_sum_is_saved_instead_of_both_its_terms() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.a(x) + self.b(x)).sum()

    program = compiled(Residual(), args=(torch.randn(2, 8),))
    assert len(regions(program, Role.ACTIVATION)) == 1


def test_first_writer_replaces_and_later_ones_add() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x)).sum()

    program = compiled(Shared(), args=(torch.randn(2, 8),), optim_level="o0")
    backward = [s.steps[0] for s in program.sections if s.kinds == (SectionKind.BCKWD,)]
    weight = next(i for i, r in enumerate(program.regions) if r.name == "shared__fc__weight__grad")
    writers = [weight in s.accumulates for s in backward if weight in s.writes]
    assert writers == [False, True]


def test_gradient_accumulation_adds_from_the_first_writer_on() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    program = compiled(model, optimizers=[optimizer], accumulate=True)
    assert kinds(program)[0] == (SectionKind.ZEROGRAD,)
    backward = next(s for s in program.sections if s.kinds == (SectionKind.BCKWD,)).steps[0]
    assert backward.accumulates == program.sections[0].steps[0].writes


def test_max_grad_norm_makes_a_gradnorm_section_per_optimizer() -> None:
    model = Net()
    optimizers = [
        samba.optim.AdamW(model.fc1.parameters(), max_grad_norm=1.0),
        samba.optim.AdamW(model.fc2.parameters()),
    ]
    program = compiled(model, optimizers=optimizers)
    assert [k[0] for k in kinds(program)] == [
        SectionKind.FWD,
        SectionKind.BCKWD,
        SectionKind.GRADNORM,
        SectionKind.OPT,
        SectionKind.OPT,
    ]
    names = [a.name for a in program.argins if a.kind is ArginKind.LR]
    assert names == ["adamw0__lr", "adamw1__lr"]


def test_parameter_groups_have_argins_of_their_own() -> None:
    model = Net()
    optimizer = torch.optim.SGD(
        [{"params": model.fc1.parameters(), "lr": 0.5}, {"params": model.fc2.parameters()}], lr=0.1
    )
    program = compiled(model, optimizers=[optimizer])
    lrs = {a.name: a.default for a in program.argins if a.kind is ArginKind.LR}
    assert lrs == {"sgd0__lr": 0.5, "sgd0_group1__lr": 0.1}
    assert len([k for k in kinds(program) if k == (SectionKind.OPT,)]) == 1


def test_region_names_share_memory_or_conflict() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    samba.from_torch_model_(model)
    model[1].weight.sn_region_name = model[0].weight.sn_region_name
    program = compiled(model, args=(torch.randn(2, 4),))
    assert regions(program, Role.WEIGHT) == ["sequential__0__weight"]
    assert regions(program, Role.GRADIENT) == ["sequential__0__weight__grad"]
    assert {s.name for s in program.symbols} >= {"sequential__0__weight", "sequential__1__weight"}
    wide = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 5, bias=False))
    samba.from_torch_model_(wide)
    wide[1].weight.sn_region_name = wide[0].weight.sn_region_name
    with pytest.raises(RegionConflict, match=r"shape \[4, 4\] float32 as weight, another shape"):
        compiled(wide, args=(torch.randn(2, 4),))


def test_errors_name_the_optimizer() -> None:
    model = Net()
    wanted = r"Rprop.*expected one of SGD, Adam, AdamW, QAdamOptimizer, RMSprop"
    with pytest.raises(UnsupportedOptimizer, match=wanted):
        compiled(model, optimizers=[torch.optim.Rprop(model.parameters())])
    other = Net()
    with pytest.raises(StaleParameter, match=r"6 of its parameters are not parameters"):
        compiled(model, optimizers=[torch.optim.SGD(other.parameters(), lr=0.1)])
    with pytest.raises(UnknownOptimLevel, match="found 'o9'; expected one of o0, o1, o2, o3"):
        compiled(model, optim_level="o9")


def test_log_lists_sections_calls_and_memory() -> None:
    model = Net()
    program = compiled(model, optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)])
    text = pef_log(program)
    assert " 0  FWD    fwd_0" in text
    assert "linear:2" in text
    assert "schedule   0:fwd_0, 1:bckwd_0, 2:opt_sgd0\n" in text
    assert "  gradient\n" in text


_SCRIPT = """
import hashlib, torch
from pef_schema import encode
from tests.models.zoo import ZOO
from samba.compiler.sections import CompileOptions
from samba.compiler.build import build_program
from tests.samba.shared_traces import trace
torch.manual_seed(0)
model, inputs = ZOO["resnet"].model(), ZOO["resnet"].inputs()
optimizer = torch.optim.AdamW(model.parameters())
program = build_program(trace(model, inputs), [optimizer], CompileOptions(name="r"))
print(hashlib.sha256(encode(program)).hexdigest())
"""


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes_in_two_processes() -> None:
    digests = {
        finished(
            [sys.executable, "-c", _SCRIPT],
            cwd=Path(__file__).parents[3],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_encoding_a_compiled_program_is_small() -> None:
    assert len(encode(compiled(Net()))) < 10_000


class Scaled(nn.Module):
    """Products of which only one factor wants a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shifted = self.fc(x).cumsum(1)  # not cheap: would be saved if its product read it
        return (shifted * 2.0 / 3.0).sum() + y.sum()


def test_a_product_with_a_constant_saves_nothing() -> None:
    program = compiled(Scaled(), optimizers=())
    assert not [name for name in regions(program, Role.ACTIVATION) if "cumsum" in name]

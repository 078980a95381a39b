"""The pass that rounds: what it inserts, where it does not, and what the log says."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from emulator.op_facts.names import CAST_INPUT, CAST_RESULT, CASTS
from emulator.op_facts.precision import precisions
from pef_schema import decode, encode, verify
from pef_schema.fingerprint import first_difference
from pef_schema.program import Role
from samba.compiler.arithmetic import Arithmetic, Bf16Cast, Preset
from samba.compiler.build import build_program
from samba.compiler.forms.listing import pef_log
from samba.compiler.rounding import apply_arithmetic
from samba.compiler.sections import CompileOptions, cut_sections
from tests.api.covers import covers
from tests.samba.shared_traces import trace


class Net(nn.Module):
    """Three linear layers, the second exempt."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu().view(-1, 6)
        with samba.session.disable_graphamp():
            hidden = torch.exp(self.second(hidden))
        return self.third(hidden).sum()


def with_rounding(model: nn.Module, inputs, preset: str, cast: str = "nearest_even"):
    arithmetic = Arithmetic(preset=Preset(preset), cast=Bf16Cast(cast))
    return apply_arithmetic(trace(model, inputs), arithmetic)


def lines(traced) -> list[str]:
    return [
        f"{traced.nodes[i].op.split('.')[1]}: {text}"
        for i, text in precisions(traced.nodes, traced.values)
    ]


X = torch.ones(5, 4)


def test_mp0_changes_nothing():
    traced = trace(Net(), X)
    assert apply_arithmetic(traced, Arithmetic()) is traced
    only_cast = Arithmetic(cast=Bf16Cast.TRUNCATION)  # nothing here becomes bfloat16
    assert apply_arithmetic(traced, only_cast) is traced


@covers("samba.session.disable_graphamp")
def test_mp1_takes_inputs_of_products_down():
    traced = with_rounding(Net(), X, "mp1")
    assert lines(traced) == [
        "linear: bfloat16 -> float32",
        "relu: float32",
        "view: float32",
        "linear: float32",
        "exp: float32",
        "linear: bfloat16 -> float32",
        "sum: float32",
    ]
    rounded = [traced.values[n.args[0].value].name for n in traced.nodes if n.op in CASTS]
    assert rounded == [
        *("x", "net__first__weight", "net__first__bias"),
        *("net__exp__outputs__0", "net__third__weight", "net__third__bias"),
    ]
    assert {n.op for n in traced.nodes if n.op in CASTS} == {CAST_INPUT}


def test_mp4_takes_everything_down_but_what_is_exempt():
    traced = with_rounding(Net(), X, "mp4")
    assert lines(traced) == [
        "linear: bfloat16",
        "relu: bfloat16",
        "view: bfloat16",
        "linear: bfloat16+float32 -> float32",
        "exp: float32",
        "linear: bfloat16",
        "sum: bfloat16",
    ]
    (output,) = traced.outputs
    assert next(n for n in traced.nodes if output.value in n.outputs).op == CAST_RESULT
    assert output.name == "net__sum__outputs__0"  # the name that users know


def test_what_only_moves_elements_is_not_rounded():
    class Moved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.hstack([x, x.mT.mT]).tile(2, 1).exp()

    *moves, last = lines(with_rounding(Moved(), X, "mp4"))
    assert {line.partition(": ")[2] for line in moves} == {"float32"}, moves
    assert last == "exp: bfloat16"


def test_state_weights_and_other_dtypes_are_left_alone():
    class State(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.low = nn.BatchNorm1d(4), nn.Linear(4, 4).to(torch.bfloat16)

        def forward(self, x: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.bn(x), self.low(x.to(torch.bfloat16)), wide * 2, wide.argmax()

    traced = with_rounding(State(), (X, X.double()), "mp4")
    updated = {new for new, _ in traced.updates} | {old for _, old in traced.updates}
    rounded = {n.args[0].value for n in traced.nodes if n.op in CASTS}
    assert updated and not updated & rounded
    assert {traced.values[v].dtype.name for v in rounded} == {"FLOAT32"}
    assert [v.dtype for v in trace(State(), (X, X.double())).values] == [
        v.dtype for v in traced.values[: -len(rounded)]
    ]


def test_masks_of_attention_keep_their_least_number():
    class Masked(nn.Module):
        def forward(self, q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    traced = with_rounding(Masked(), (torch.ones(2, 3, 4), torch.ones(3, 3)), "mp1")
    assert [traced.values[n.args[0].value].name for n in traced.nodes if n.op in CASTS] == ["q"]


def test_casts_of_the_model_round_as_asked():
    class Casts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.bfloat16)

    assert [n.op for n in with_rounding(Casts(), X, "mp0", "truncation").nodes] == [
        CAST_INPUT,
        "aten._to_copy.default",
    ]
    assert len(with_rounding(Casts(), X, "mp0").nodes) == 1


def test_stochastic_rounding_uses_the_models_seed_or_one_of_its_own():
    for model in (Net(), nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))):
        traced = with_rounding(model, X, "mp1", "stochastic")
        seeds = [s for s in traced.sources if s.role is Role.SEED]
        assert len(seeds) == 1 and len(traced.updates) == 1
        assert [n.op for n in traced.nodes].count("samba.next_seed") == 1
        streams = [dict(n.kwargs).get("stream") for n in traced.nodes if "seed" in dict(n.kwargs)]
        assert len(set(streams)) == len(streams)


@pytest.mark.parametrize("cast", [c.value for c in Bf16Cast])
def test_programs_are_whole_and_differ(cast):
    graphs = [trace(Net(), X).graph()]
    for preset in ("mp1", "mp4"):
        traced = with_rounding(Net(), X, preset, cast)
        program = build_program(traced, [], CompileOptions(name="net"))
        verify(program)
        assert decode(encode(program)) == program
        graphs.append(program.graphs[0])
    assert all(first_difference(*pair) for pair in itertools.combinations(graphs, 2))


def test_rounding_makes_no_sections():
    plain = trace(Net(), X)
    for preset in ("mp1", "mp4"):
        for cast in ("nearest_even", "stochastic"):
            traced = with_rounding(Net(), X, preset, cast)
            for level in ("o0", "o1"):
                cuts = cut_sections(traced, level=level, mapping="section")
                assert len(cuts) == len(cut_sections(plain, level=level, mapping="section"))


def test_the_log_says_in_which_precision_operations_run():
    metadata = tuple(Arithmetic(preset=Preset.MP1).metadata().items())
    options = CompileOptions(name="net", metadata=metadata)
    text = pef_log(build_program(with_rounding(Net(), X, "mp1"), [], options))
    assert "graphamp_preset=mp1 bf16_cast=nearest_even\n" in text
    assert re.search(r"\d +linear +0,1 +bfloat16 -> float32 .*  first ", text)
    assert re.search(r"\d +exp +0,1 +float32 .* net ", text)
    text = pef_log(build_program(trace(Net(), X), [], CompileOptions(name="net")))
    assert "graphamp_preset=mp0" in text and "bfloat16 ->" not in text

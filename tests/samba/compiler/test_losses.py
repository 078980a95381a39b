"""Which outputs are losses, as the page of ``session.compile`` has it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pef_schema.program import OutputGrad, Program
from samba.compiler.build import build_program
from samba.compiler.forms.listing import pef_log
from samba.compiler.gradient_flow import BadLossIndex
from samba.compiler.losses import doubtful_losses, losses_line
from samba.compiler.sections import CompileOptions
from tests.samba.shared_traces import trace

ONES, NONE, ABSENT = OutputGrad.ONES, OutputGrad.NONE, OutputGrad.ABSENT


class Net(nn.Module):
    """Returns what a test asks for, made of logits and labels."""

    def __init__(self, *results: str) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.results = results

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        out = self.fc(x)
        made = {
            "loss": F.cross_entropy(out, y),
            "penalty": self.fc.weight.square().sum(),
            "per_sample": F.cross_entropy(out, y, reduction="none"),
            "logits": out,
            "accuracy": (out.argmax(1) == y).float().mean(),
            "labels": out.argmax(1),
        }
        return tuple(made[name] for name in self.results)


def compiled(*results: str, **options: object) -> Program:
    inputs = (torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))
    inference = bool(options.get("inference", False))
    traced = trace(Net(*results), inputs, inference=inference)
    return build_program(traced, [], CompileOptions(name="net", **options))


def grads(program: Program) -> list[OutputGrad]:
    return [o.grad for o in program.graphs[0].outputs]


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        (("loss", "logits"), [ONES, NONE]),
        (("logits", "loss"), [NONE, ONES]),
        (("loss", "penalty", "logits"), [ONES, ONES, NONE]),
        (("per_sample", "logits"), [ONES, ONES]),
        (("labels", "logits", "per_sample"), [ABSENT, ONES, ONES]),
        (("loss", "accuracy"), [ONES, ABSENT]),
        # An accuracy has no gradient: it keeps nothing else from being a loss.
        (("per_sample", "accuracy"), [ONES, ABSENT]),
        (("labels",), [ABSENT]),
    ],
)
def test_losses_are_the_scalars_or_every_floating_output(
    results: tuple[str, ...], wanted: list[OutputGrad]
) -> None:
    assert grads(compiled(*results)) == wanted


def test_losses_are_the_given_ones() -> None:
    assert grads(compiled("per_sample", "logits", loss_indices=(1,))) == [NONE, ONES]
    assert grads(compiled("loss", "logits", loss_indices=(0, 1))) == [ONES, ONES]
    assert grads(compiled("loss", "logits", loss_indices=())) == [NONE, NONE]
    with pytest.raises(BadLossIndex, match=r"found \[2\]; the model has 2 output"):
        compiled("loss", "logits", loss_indices=(2,))


def test_the_log_names_the_losses() -> None:
    def line(program: Program) -> list[str]:
        found = [text for text in pef_log(program).splitlines() if text.startswith("losses")]
        assert found == [text for text in [losses_line(program)] if text]
        return found

    one = compiled("logits", "loss")
    assert line(one) == ["losses: 1:net__cross_entropy_loss__outputs__0"]
    two = compiled("per_sample", "logits")
    names = [o.name for o in two.graphs[0].outputs]
    assert line(two) == [f"losses: 0:{names[0]}, 1:{names[1]}"]
    assert line(compiled("labels")) == ["losses: none"]
    assert line(compiled("loss", inference=True)) == []


@pytest.mark.parametrize("results", [("loss", "logits"), ("logits",), ("loss", "accuracy")])
def test_one_candidate_leaves_no_doubt(results: tuple[str, ...]) -> None:
    assert doubtful_losses(compiled(*results), trained=True) == ""


def test_inference_leaves_no_doubt() -> None:
    assert doubtful_losses(compiled("per_sample", "logits", inference=True), trained=True) == ""


def test_several_scalars_are_told() -> None:
    program = compiled("loss", "logits", "penalty")
    loss, _, penalty = (o.name for o in program.graphs[0].outputs)
    assert doubtful_losses(program, trained=True) == (
        "net: 2 outputs are scalars, and each is a loss whose gradient starts from ones: "
        f"0:{loss}, 2:{penalty}. "
        "Choose others by their positions with session.compile(loss_indices=[...])"
    )


def test_several_outputs_without_a_scalar_are_told() -> None:
    program = compiled("labels", *["per_sample", "logits"] * 5)
    text = doubtful_losses(program, trained=False)
    names = [o.name for o in program.graphs[0].outputs]
    assert text.startswith(
        "net: no output is a scalar, so each floating point output is a loss whose gradient "
        f"starts from ones: 1:{names[1]}, 2:{names[2]}, "
    )
    assert f", 8:{names[8]} and 2 more. Choose others by their positions" in text


def test_training_without_a_loss_is_told() -> None:
    program = compiled("labels", "accuracy")
    assert doubtful_losses(program, trained=False) == ""
    assert doubtful_losses(program, trained=True) == (
        "net: no floating point output depends on a trained parameter, so there is no loss "
        "and the optimizers get no gradients. Return the loss from forward(); "
        "session.compile(loss_indices=[...]) chooses among several"
    )

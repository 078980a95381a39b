"""What torch refuses of the arguments of ``ctc_loss`` is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import samba
from emulator.errors import IndexOutOfRange
from pef_schema.errors import SambaError
from samba import utils
from tests.tracing import trace

ROWS = torch.ones(3, 2, dtype=torch.int64)
SCORES = torch.zeros(6, 3, 5)


class Ctc(torch.nn.Module):
    def __init__(self, **changed: object) -> None:
        super().__init__()
        usual = {"targets": ROWS, "input_lengths": [6, 5, 4], "target_lengths": [2, 1, 0]}
        self.given = {**usual, **changed}

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        given: dict[str, Any] = self.given
        return F.ctc_loss(scores.log_softmax(-1), **given)


class OfTensors(torch.nn.Module):
    def forward(
        self,
        scores: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
    ) -> torch.Tensor:
        return F.ctc_loss(scores.log_softmax(-1), targets, input_lengths, target_lengths)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "input lengths of fewer": ({"input_lengths": [6]}, "input_lengths must be of size batch_size"),
    "target lengths of fewer": (
        {"input_lengths": torch.tensor([6, 6, 6]), "target_lengths": torch.tensor([2])},
        "target_lengths must be of size batch_size",
    ),
    "more time than there is": ({"input_lengths": [7, 6, 6]}, "at most 6, but got value 7"),
    "less than none": ({"input_lengths": [6, 6, -1]}, "at least 0, but got value -1"),
    "more labels than there are": ({"target_lengths": [3, 2, 2]}, "size at least 3"),
    "labels left over": ({"targets": ROWS.reshape(-1)}, "to have size 3 at dimension 0"),
    "rows of fewer": ({"targets": ROWS[:1]}, "to have size 3 at dimension 0"),
    "no such blank": ({"blank": 5}, "blank must be in label range"),
    "lengths that are no whole numbers": (
        {"input_lengths": torch.full((3,), 6.0), "target_lengths": torch.full((3,), 2.0)},
        "must be integral",
    ),
}


def test_a_list_beside_a_tensor_is_refused() -> None:
    model = Ctc(target_lengths=torch.tensor([2, 1, 0]))
    with pytest.raises(TypeError, match="invalid combination of arguments"):
        model(SCORES)
    with pytest.raises(SambaError, match="TypeError"):
        trace(model, (SCORES,))


@pytest.mark.parametrize("name", REFUSED)
def test_sizes_and_numbers_are_refused_when_the_model_is_traced(name: str) -> None:
    changed, text = REFUSED[name]
    with pytest.raises(RuntimeError, match=text):
        Ctc(**changed)(SCORES)
    with pytest.raises(SambaError, match=text):
        trace(Ctc(**changed), (SCORES,))


def test_lengths_and_labels_that_a_run_is_given_are_looked_at(tmp_path: Path) -> None:
    given = {
        "scores": SCORES,
        "targets": torch.ones(3, dtype=torch.int64),
        "input_lengths": torch.tensor([6, 5, 4]),
        "target_lengths": torch.tensor([2, 1, 0]),
    }

    def inputs(**changed: torch.Tensor) -> tuple[samba.SambaTensor, ...]:
        every = {**given, **changed}
        return tuple(samba.from_torch_tensor(t, name=name) for name, t in every.items())

    model = samba.from_torch_model(OfTensors())
    config = {"output_folder": str(tmp_path), "pef_name": "ctc"}
    pef = samba.session.compile(model, inputs(), inference=True, config_dict=config)
    outputs = utils.trace_graph(model, inputs(), pef=pef)
    (loss,) = samba.session.run(inputs(), outputs)
    torch.testing.assert_close(samba.to_torch(loss), OfTensors()(**given))
    for name, values, allowed in (
        ("targets", [5, 1, 1], "0 to 4"),
        ("input_lengths", [7, 6, 6], "0 to 6"),
        ("target_lengths", [4, 0, 0], "0 to 3"),
    ):
        with pytest.raises(IndexOutOfRange, match=f"input {name} holds .* allowed is {allowed}"):
            samba.session.run(inputs(**{name: torch.tensor(values)}), outputs)

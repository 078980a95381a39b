"""Hugging Face models that look at values in ``forward``: guards, lengths in buffers, targets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samba
from emulator.errors import OtherBranch
from tests.models.hugging_face import SPEECH, LossAndLogits, library
from tests.models.test_hugging_face import check
from tests.samba.session.loading import load


class Squares(nn.Module):
    """A model that gives a loss of some of its results, and these."""

    def __init__(self, model: nn.Module, *names: str, **settings: Any) -> None:
        super().__init__()
        self.model, self.names, self.settings = model, names, settings

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        results = self.model(**inputs, **self.settings)
        found = [results[name] for name in self.names]
        return torch.stack([t.square().mean() for t in found]).sum(), *found


def detr() -> nn.Module:
    transformers = library()
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        out_features=["stage2"],
        layer_type="basic",
    )
    config = transformers.DetrConfig(
        backbone_config=backbone,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        dropout=0.0,
        num_queries=4,
        num_labels=3,
    )
    return Squares(transformers.DetrForObjectDetection(config).train(), "logits", "pred_boxes")


def hubert() -> nn.Module:
    transformers = library()
    config = transformers.HubertConfig(**SPEECH, ctc_loss_reduction="mean")
    return LossAndLogits(transformers.HubertForCTC(config).train())


def encodec() -> nn.Module:
    transformers = library()
    config = transformers.EncodecConfig(
        hidden_size=16,
        num_filters=4,
        num_residual_layers=1,
        upsampling_ratios=[4, 2],
        codebook_size=16,
        codebook_dim=16,
        num_lstm_layers=1,
        target_bandwidths=[1.5],
        sampling_rate=2400,
    )
    return Squares(transformers.EncodecModel(config).train(), "audio_values", bandwidth=1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A model, and what it is called with."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]


def pictures() -> dict[str, Tensor]:
    mask = torch.ones(2, 32, 32, dtype=torch.int64)
    return {"pixel_values": torch.randn(2, 3, 32, 32), "pixel_mask": mask}


def speech() -> dict[str, Tensor]:
    labels = torch.randint(1, 19, (2, 5))
    labels[0, 3:] = -100
    labels[1, 1] = -100
    return {"input_values": torch.randn(2, 400), "labels": labels}


CASES = {
    "detr": Guarded(build=detr, inputs=pictures),
    "hubert": Guarded(build=hubert, inputs=speech),
    "encodec": Guarded(build=encodec, inputs=lambda: {"input_values": torch.randn(2, 1, 96)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_match_torch(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key", "value", "line"),
    [
        ("detr", "pixel_values", float("inf"), "modeling_detr.py"),
        ("hubert", "labels", 20, "modeling_hubert.py"),
    ],
)
def test_the_other_side_of_a_guard_is_an_error_with_its_line(
    name: str, key: str, value: float, line: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, inputs = CASES[name].build(), CASES[name].inputs()
    samba.from_torch_model_(model)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.01)
    given = samba.from_named_dict(inputs)
    load(model, given, tmp_path, optimizer, loss_indices=[0])
    samba.session.run(given, model.output_tensors)
    samba.session.to_cpu(model)
    before = {k: samba.to_torch(p).detach().clone() for k, p in model.named_parameters()}
    other = copy.deepcopy(inputs)
    other[key][0, ..., 0] = value
    with pytest.raises(OtherBranch) as caught:
        samba.session.run(samba.from_named_dict(other), model.output_tensors)
    assert line in caught.value.source
    samba.session.to_cpu(model)
    for path, parameter in model.named_parameters():
        assert torch.equal(samba.to_torch(parameter).detach(), before[path]), path

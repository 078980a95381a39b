"""Small configurations of Hugging Face models with random weights, and inputs for them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor | None]


def library() -> ModuleType:
    """``transformers``, told to stay off the network; it takes seconds to import."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    # By name: pyright takes a quarter of a minute to look into it, for a module of no use to it.
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    return transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model and how it is called.

    Args:
        model: Name of its class.
        settings: The configuration: small, and without dropout, which no two draw alike.
        inputs: Makes the keyword arguments of ``forward``.
        wrap: Call it through a module that returns loss and logits, as scripts do; otherwise it
            is compiled as it is.
        fast: Part of ``make test``.
    """

    model: str
    settings: Mapping[str, Any]
    inputs: Callable[[], Inputs]
    wrap: bool = False
    fast: bool = False

    def build(self) -> nn.Module:
        """The model, in training mode."""
        cls = getattr(library(), self.model)
        model = cls(cls.config_class(**self.settings)).train()
        return LossAndLogits(model) if self.wrap else model


class LossAndLogits(nn.Module):
    """A model that gives its loss and one more result as a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        given = {"return_loss": True} if "pixel_values" in inputs and "input_ids" in inputs else {}
        out = self.model(**inputs, **given)
        return out["loss"], out["logits_per_text" if given else "logits"]


WORDS = 99


def text(*, batch: int = 2, length: int = 8) -> Tensor:
    return torch.randint(4, WORDS, (batch, length))


def tokens() -> Inputs:
    """Text of two lengths, and labels that leave some positions out."""
    ids = text()
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    labels = ids.clone()
    labels[0, :3] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def unmasked() -> Inputs:
    ids = text()
    return {"input_ids": ids, "attention_mask": None, "labels": ids.clone()}


def classified() -> Inputs:
    return {**tokens(), "labels": torch.tensor([2, 0])}


def images(size: int = 32, batch: int = 2) -> Callable[[], Inputs]:
    return lambda: {
        "pixel_values": torch.randn(batch, 3, size, size),
        "labels": torch.randint(3, (batch,)),
    }


HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4}
BODY = {"hidden_size": 32, "intermediate_size": 64, **HEADS}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODER = {**BODY, **NO_DROPOUT, "vocab_size": WORDS, "max_position_embeddings": 40}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**BODY, **IDS, "vocab_size": WORDS, "max_position_embeddings": 40}
GROUPED = {**DECODER, "num_key_value_heads": 2}
VISION = {**BODY, **NO_DROPOUT, "image_size": 32, "patch_size": 8, "num_labels": 3}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.0,
    "num_mel_bins": 8,
    "max_source_positions": 16,
    "max_target_positions": 16,
    "decoder_start_token_id": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16}
NO_GPT2_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [16, 32],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [2, 4],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
    "drop_path_rate": 0.0,
    "classifier_dropout_prob": 0.0,
    "num_labels": 3,
    **NO_DROPOUT,
}
SPEECH = {
    **BODY,
    "vocab_size": 20,
    "conv_dim": (8, 8),
    "conv_kernel": (4, 3),
    "conv_stride": (4, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "layerdrop": 0.0,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "apply_spec_augment": False,
    "classifier_proj_size": 16,
    "num_labels": 3,
}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 4,
    "drop_path_rate": 0.0,
    "num_labels": 3,
}
DEBERTA = {
    **ENCODER,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
}
CLIP = {
    "text_config": {**DECODER, "num_hidden_layers": 1},
    "vision_config": {**BODY, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8},
    "projection_dim": 16,
}


def experts(family: str, **settings: Any) -> Case:
    """A causal language model of which each token takes two experts."""
    return Case(
        model=f"{family}ForCausalLM",
        settings={"num_experts_per_tok": 2, **GROUPED, **settings},
        inputs=tokens,
    )


NAMED: dict[str, Case] = {
    "gpt2": Case(
        model="GPT2LMHeadModel",
        settings={**GPT2, **NO_GPT2_DROPOUT, **IDS, "vocab_size": WORDS},
        inputs=unmasked,
    ),
    "bert_masked_words": Case(model="BertForMaskedLM", settings=ENCODER, inputs=tokens),
    "bert_classes": Case(
        model="BertForSequenceClassification",
        settings={**ENCODER, "num_labels": 3, "num_hidden_layers": 1},
        inputs=classified,
        wrap=True,
        fast=True,
    ),
    "vit": Case(
        model="ViTForImageClassification",
        settings=VISION,
        inputs=images(),
    ),
    "resnet": Case(
        model="ResNetForImageClassification",
        settings={**STAGES, "embedding_size": 8, "depths": [1, 2], "num_labels": 3},
        inputs=images(batch=4),
        wrap=True,
    ),
    "t5": Case(
        model="T5ForConditionalGeneration",
        settings={**T5, "vocab_size": WORDS, "decoder_start_token_id": 0},
        inputs=tokens,
    ),
    "llama": Case(model="LlamaForCausalLM", settings=GROUPED, inputs=tokens, wrap=True),
    "convnext": Case(
        model="ConvNextForImageClassification",
        settings={**STAGES, "num_stages": 2, "num_labels": 3, "drop_path_rate": 0.0},
        inputs=images(),
    ),
    "whisper": Case(
        model="WhisperForConditionalGeneration",
        settings={**WHISPER, **IDS, "vocab_size": WORDS},
        inputs=lambda: {"input_features": torch.randn(2, 8, 32), "labels": text()},
    ),
}
"""The models that must work."""

OTHERS: dict[str, Case] = {
    "mixtral": experts("Mixtral", num_local_experts=4, output_router_logits=True),
    "qwen3_moe_as_batches": experts(
        "Qwen3Moe",
        num_experts=4,
        moe_intermediate_size=16,
        head_dim=8,
        experts_implementation="batched_mm",
    ),
    "qwen3_next": experts(
        "Qwen3Next",
        num_experts=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "mixtral_as_loop": experts(
        "Mixtral", num_hidden_layers=1, num_local_experts=4, experts_implementation="eager"
    ),
    "deepseek_v2": Case(
        model="DeepseekV2ForCausalLM",
        settings={
            **DECODER,
            "num_key_value_heads": 4,
            "num_experts_per_tok": 2,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 16,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
        },
        inputs=tokens,
        wrap=True,
    ),
    "llama4": Case(
        model="Llama4ForCausalLM",
        settings={
            **GROUPED,
            "head_dim": 8,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 16,
        },
        inputs=tokens,
        wrap=True,
    ),
    "fnet": Case(
        model="FNetForMaskedLM",
        settings={**BODY, **IDS, "hidden_dropout_prob": 0.0, "vocab_size": WORDS},
        inputs=lambda: {"input_ids": text(), "labels": text()},
    ),
    "switch_transformers": Case(
        model="SwitchTransformersForConditionalGeneration",
        settings={
            **T5,
            "num_decoder_layers": 2,
            "vocab_size": WORDS,
            "decoder_start_token_id": 0,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "router_jitter_noise": 0.0,
        },
        inputs=tokens,
    ),
    "mamba": Case(
        model="MambaForCausalLM",
        settings={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "vocab_size": WORDS,
            "use_cache": False,
        },
        inputs=unmasked,
    ),
    "rwkv": Case(
        model="RwkvForCausalLM",
        settings={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
            "vocab_size": WORDS,
            "context_length": 16,
            "use_cache": False,
            **IDS,
        },
        inputs=unmasked,
    ),
    "regnet": Case(
        model="RegNetForImageClassification",
        settings={**STAGES, "embedding_size": 8, "groups_width": 8, "num_labels": 3},
        inputs=images(batch=4),
    ),
    "swin": Case(model="SwinForImageClassification", settings=SWIN, inputs=images()),
    "segformer": Case(
        model="SegformerForSemanticSegmentation",
        settings=SEGFORMER,
        inputs=lambda: {
            "pixel_values": torch.randn(2, 3, 32, 32),
            "labels": torch.randint(3, (2, 32, 32)),
        },
    ),
    "deberta": Case(model="DebertaV2ForMaskedLM", settings=DEBERTA, inputs=tokens),
    "wav2vec2": Case(
        model="Wav2Vec2ForSequenceClassification",
        settings=SPEECH,
        inputs=lambda: {"input_values": torch.randn(2, 200), "labels": torch.tensor([0, 2])},
    ),
    "clip": Case(
        model="CLIPModel",
        settings=CLIP,
        inputs=lambda: {"input_ids": text(), "pixel_values": torch.randn(2, 3, 16, 16)},
        wrap=True,
    ),
}
"""Other kinds: experts, state spaces, convolutions, relative positions, sound, two towers."""

CASES = {**NAMED, **OTHERS}

"""Names that the command line offers, for help texts without torch, of which the cases are made.

``tests/bench/test_names.py`` holds them against the cases and the suites.
"""

from __future__ import annotations

__all__ = ["CASES", "SMALL", "SUITES", "TIMED"]

CASES = (
    "logreg-1",
    "logreg-64",
    "res_ffn",
    "lenet-1",
    "lenet-32",
    "lenet-256",
    "resnet18",
    "gpt",
    "gpt2",
    "lstm",
    "mlp_bf16",
    "chain_o0",
)
"""Keys of ``bench.models.CASES``."""

_FURTHER = (
    "mixer",
    "encoder",
    "unet",
    "dlrm",
    "gru",
    "vit",
    "mobilenet",
    "generator",
    "wavenet",
    "moe",
    "post_norm_dropout",
    "post_norm",
    "gpt2_dropout",
    "bert",
    "vit_drop_path",
    "mlp_dropout",
)
"""Those of other families, and ordinary ones with their dropouts."""

TIMED = (
    *CASES,
    *_FURTHER,
    "steps-50",
    "steps-200",
    "steps-1000",
)
"""Keys of ``bench.models.TIMED``."""

SMALL = (
    "logreg-1",
    "res_ffn",
    "lenet",
    "resnet18",
    "gpt",
    "gpt2",
    "lstm",
    "mlp_bf16",
    "chain_o0",
    *_FURTHER,
    "steps",
)
"""Keys of ``bench.models.SMALL``."""

SUITES = (
    "start",
    "limit",
    "steps",
    "unseen",
    "ordinary",
    "sections",
    "thunks",
    "host",
    "memory",
    "overlap",
    "alone",
    "ddp",
)
"""Keys of ``bench.commands.SUITES``."""

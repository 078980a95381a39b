"""Which operations take a dropout rate, and where."""

from __future__ import annotations

RATE_ARGUMENT = {
    "aten.native_dropout.default": 1,
    "aten.dropout.default": 1,
    "aten.scaled_dot_product_attention.default": 4,
    "aten.lstm.input": 5,
    "aten.gru.input": 5,
    "aten.rnn_tanh.input": 5,
    "aten.rnn_relu.input": 5,
}
"""Where an op takes its dropout rate."""


def takes_rate(op: str) -> bool:
    """Whether an operation takes a dropout rate, and so draws nothing at rate 0."""
    return op in RATE_ARGUMENT

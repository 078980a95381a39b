"""Sequences: recurrent nets, transformers, losses over them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recipes.book import recipe
from tests.recipes.data import batches, sequences
from tests.recipes.heads import slow_sgd
from tests.recipes.loops import adamw, sgd
from tests.recipes.sides import Side

WORDS, WIDTH = 11, 12


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.cell = cell(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.cell(self.embedding(x))
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()), logits


@recipe()
def language_model_lstm(side: Side) -> None:
    data = batches(sequences(16), 4)
    side.follow(Recurrent(nn.LSTM), data, adamw)


@recipe()
def language_model_gru(side: Side) -> None:
    data = batches(sequences(16), 4)
    side.follow(Recurrent(nn.GRU), data, sgd, note_losses=False)


class Carried(Recurrent):
    """The state goes in and comes out, cut off from the gradient."""

    def forward(self, x: Tensor, y: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]  # one input more
        hidden, state = self.cell(self.embedding(x), state)
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()), state.detach()


@recipe()
def truncated_backpropagation(side: Side) -> None:
    data = batches(sequences(16), 4)
    state = torch.zeros(2, 4, WIDTH)
    run = side.train(Carried(nn.GRU), {**data[0], "state": state}, sgd)
    for batch in data:
        loss, state = run.step({**batch, "state": state})
        side.note("loss", loss)
        side.note("state", state)
    side.note_all(run)


@recipe()
def bare_lstm_all_outputs_are_losses_by_choice(side: Side) -> None:
    """``nn.LSTM`` alone: every output a loss, as its sum would be in torch."""
    x = torch.randn(5, 3, 4)

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            return self.lstm(x)

    side.follow(Bare(), [{"x": x}] * 3, slow_sgd, losses=[0, 1, 2], note_losses=False)


class Transformer(nn.Module):
    """A decoder with a causal mask and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        positions = torch.arange(x.shape[1]) / math.sqrt(WIDTH)
        hidden = self.layers(self.embedding(x) + positions[:, None].sin(), mask, is_causal=True)
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1), logits


@recipe()
def causal_transformer_with_tied_embeddings(side: Side) -> None:
    data = batches(sequences(16), 4)
    # Not Adam: it makes steps of the bias of keys, whose gradient is nothing but rounding.
    side.follow(Transformer(), data, sgd)


class Padded(nn.Module):
    """Attention over padded sequences; labels of padding are left out of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.attention = nn.MultiheadAttention(WIDTH, 3, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embedding(x)
        hidden, _ = self.attention(hidden, hidden, hidden, key_padding_mask=x == 0)
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100), logits


@recipe()
def attention_over_padding(side: Side) -> None:
    data = sequences(16)
    lengths = torch.arange(16) % 5 + 3
    padding = torch.arange(7) >= lengths[:, None]
    data["x"][padding], data["y"][padding] = 0, -100
    data["x"][~padding] = data["x"][~padding].clamp(min=1)
    side.follow(Padded(), batches(data, 4), sgd)


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(5, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 6, 1))

    def forward(self, x: Tensor, y: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(x).permute(2, 0, 1).log_softmax(-1)
        used = torch.full((x.shape[0],), x.shape[2], dtype=torch.long)
        return F.ctc_loss(logits, y, used, lengths, zero_infinity=True), logits


@recipe()
def ctc(side: Side) -> None:
    inputs = {
        "x": torch.randn(4, 5, 12),
        "y": torch.randint(1, 6, (4, 4)),
        "lengths": torch.tensor([4, 3, 2, 4]),
    }
    side.follow(Speech(), [inputs] * 4, sgd)

"""How the modules of ``torch.nn`` are called: tensors that they learn from, and constant ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.sweeps.module_options import dims_of

__all__ = ["Call", "calls_of"]

_SPATIAL = ((), (7,), (7, 6), (5, 5, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a module is called with.

    Args:
        learned: Tensors that get a gradient, by position or keyword.
        given: Everything else, by position or keyword.
    """

    learned: Mapping[int | str, torch.Tensor] = field(default_factory=dict)
    given: Mapping[int | str, Any] = field(default_factory=dict)


def calls_of(cls: type[nn.Module], options: Mapping[str, Any]) -> dict[str, Call]:
    """The calls of a module; the first is the plain one.

    Args:
        cls: Its class.
        options: What it is made with.
    """
    torch.manual_seed(7)
    name = cls.__name__
    for key, make in _OWN.items():
        if name in key.split():
            return make(options)
    if dims_of(cls):
        channels = 3 if "Pool" in name or "Pad" in name else 4
        return {"": _x(2, channels, *_SPATIAL[dims_of(cls)])}
    return {"": _x(2, 6, 3)}


def _x(*shape: int) -> Call:
    return Call(learned={0: torch.randn(shape) * 1.5})


def _pair(a: torch.Tensor, b: Any, *more: Any) -> Call:
    return Call(learned={0: a}, given=dict(enumerate((b, *more), 1)))


def _two(*shape: int) -> Call:
    return Call(learned={0: torch.randn(shape), 1: torch.randn(shape)})


def _signs(*shape: int) -> torch.Tensor:
    return torch.where(torch.rand(shape) < 0.5, -1.0, 1.0)


def _recurrent(options: Mapping[str, Any], parts: int) -> dict[str, Call]:
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    hidden, width = options["hidden_size"], options.get("proj_size") or options["hidden_size"]
    x, batch = torch.randn(3, 2, 4), 3 if options.get("batch_first") else 2
    states = [torch.randn(layers, batch, width), torch.randn(layers, batch, hidden)][:parts]
    alone = [state[:, 0].clone() for state in states]
    return {
        "": Call(learned={0: x}),
        "states": _with_states(x, states),
        "unbatched": Call(learned={0: x[:, 0].clone()}),
        "unbatched, states": _with_states(x[:, 0].clone(), alone),
    }


def _with_states(x: torch.Tensor, states: list[torch.Tensor]) -> Call:
    if len(states) == 1:
        return Call(learned={0: x, 1: states[0]})
    return Call(learned={0: x, "hx 0": states[0], "hx 1": states[1]})


def _cell(parts: int) -> dict[str, Call]:
    states = [torch.randn(3, 5) for _ in range(parts)]
    alone = [state[0].clone() for state in states]
    return {
        "": _x(3, 4),
        "states": _with_states(torch.randn(3, 4), states),
        "unbatched": _with_states(torch.randn(4), alone),
    }


def _attention(options: Mapping[str, Any]) -> dict[str, Call]:
    sizes = (options["embed_dim"], options.get("kdim") or 8, options.get("vdim") or 8)
    tensors = [torch.randn(2, 2, size) for size in sizes]
    learned = dict(enumerate(tensors))
    causal = torch.triu(torch.ones(2, 2, dtype=torch.bool), 1)
    padding = torch.tensor([[False, True], [False, False]])
    bias = torch.randn(2, 2)
    return {
        "": Call(learned=learned),
        "no weights": Call(learned=learned, given={"need_weights": False}),
        "weights of heads": Call(learned=learned, given={"average_attn_weights": False}),
        "masks": Call(learned=learned, given={"attn_mask": causal, "key_padding_mask": padding}),
        "bias": Call(learned=learned, given={"attn_mask": bias, "need_weights": False}),
        "unbatched": Call(learned={i: t[0].clone() for i, t in learned.items()}),
    }


def _encoder() -> dict[str, Call]:
    x = torch.randn(3, 3, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    padding = torch.tensor([[False, False, True], [False, False, False], [False, True, True]])
    mask = Call(learned={0: x}, given={1: causal, "is_causal": True})
    return {
        "": Call(learned={0: x}),
        "mask": mask,
        "padding": Call(learned={0: x}, given={"src_key_padding_mask": padding}),
    }


def _decoder() -> dict[str, Call]:
    x, memory = torch.randn(3, 3, 8), torch.randn(3, 3, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    return {
        "": Call(learned={0: x, 1: memory}),
        "mask": Call(learned={0: x, 1: memory}, given={"tgt_mask": causal}),
    }


def _classes(log: bool) -> dict[str, Call]:
    def scores(*shape: int) -> torch.Tensor:
        x = torch.randn(shape)
        return F.log_softmax(x, dim=1 if len(shape) > 1 else 0) if log else x

    found = {
        "": _pair(scores(4, 5), torch.tensor([0, 4, 1, 3])),
        "over places": _pair(scores(2, 5, 3), torch.randint(0, 5, (2, 3))),
        "unbatched": _pair(scores(5), torch.tensor(3)),
    }
    if not log:
        found["probabilities"] = _pair(scores(4, 5), torch.rand(4, 5).softmax(1))
    return found


def _bag(options: Mapping[str, Any]) -> dict[str, Call]:
    flat = torch.tensor([1, 2, 2, 3, 9, 0])
    ends = [0, 2, 5] + ([6] if options.get("include_last_offset") else [])
    offsets = Call(given={0: flat, 1: torch.tensor(ends)})
    table = Call(given={0: flat.reshape(2, 3)})
    if options.get("include_last_offset"):
        return {"": offsets}
    found = {"": table, "offsets": offsets}
    if options.get("mode") == "sum":
        weights = torch.rand(2, 3)
        found["weights"] = Call(
            learned={"per_sample_weights": weights}, given={0: flat.reshape(2, 3)}
        )
    return found


def _unpool(dims: int) -> dict[str, Call]:
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    x = torch.randn(2, 3, *_SPATIAL[dims])
    values, places = pool(x, 2, return_indices=True)
    sized = _pair(values, places)
    return {
        "": sized,
        "size": Call(learned=sized.learned, given={**sized.given, "output_size": x.shape[2:]}),
    }


def _upsample(options: Mapping[str, Any]) -> dict[str, Call]:
    found = {"": _x(2, 3, 4, 5)}
    if options.get("mode", "nearest") in ("nearest", "nearest-exact") and isinstance(
        options.get("scale_factor"), (int, float)
    ):
        found |= {"1d": _x(2, 3, 5), "3d": _x(1, 2, 3, 4, 3)}
    return found


_LOGITS = torch.tensor([[0.3, -1.0, 0.7], [1.5, 0.1, -0.4]])
_UNIT = torch.tensor([[0.3, 0.6, 0.7], [0.5, 0.2, 0.4]])

_OWN: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Call]]] = {
    "LSTM": lambda o: _recurrent(o, 2),
    "GRU RNN": lambda o: _recurrent(o, 1),
    "LSTMCell": lambda o: _cell(2),
    "GRUCell RNNCell": lambda o: _cell(1),
    "MultiheadAttention": _attention,
    "TransformerEncoder TransformerEncoderLayer": lambda o: _encoder(),
    "TransformerDecoder TransformerDecoderLayer": lambda o: _decoder(),
    "Transformer": lambda o: {"": _two(3, 2, 8)},
    "Linear": lambda o: {"": _x(3, 4), "one row": _x(4), "more": _x(2, 3, 4)},
    "LazyLinear": lambda o: {"": _x(3, 4)},
    "Bilinear": lambda o: {
        "": Call(learned={0: torch.randn(3, 4), 1: torch.randn(3, 3)}),
    },
    "AdaptiveLogSoftmaxWithLoss": lambda o: {
        "": _pair(torch.randn(5, 4), torch.tensor([0, 19, 5, 4, 12])),
        "one row": _pair(torch.randn(4), torch.tensor(7)),
    },
    "Embedding": lambda o: {"": Call(given={0: torch.tensor([[1, 2, 2], [3, 9, 0]])})},
    "EmbeddingBag": _bag,
    "BatchNorm1d LazyBatchNorm1d": lambda o: {"": _x(3, 4, 5), "rows": _x(5, 4)},
    "SyncBatchNorm": lambda o: {"": _x(3, 4, 5)},
    "InstanceNorm1d": lambda o: {"": _x(2, 4, 5), "unbatched": _x(4, 5)},
    "LayerNorm RMSNorm": lambda o: {"": _x(2, 3, 4)},
    "GroupNorm": lambda o: {"": _x(3, 4, 5)},
    "LocalResponseNorm CrossMapLRN2d": lambda o: {"": _x(2, 5, 3, 4)},
    "Conv1d": lambda o: {"": _x(2, 4, 7), "unbatched": _x(4, 7)},
    "Conv2d": lambda o: {"": _x(2, 4, 7, 6), "unbatched": _x(4, 7, 6)},
    "ConvTranspose2d": lambda o: {"": _x(2, 4, 4, 5), "unbatched": _x(4, 4, 5)},
    "FractionalMaxPool2d": lambda o: {"": _x(2, 3, 7, 6)},
    "MaxUnpool1d": lambda o: _unpool(1),
    "MaxUnpool2d": lambda o: _unpool(2),
    "MaxUnpool3d": lambda o: _unpool(3),
    "Upsample": _upsample,
    "UpsamplingBilinear2d UpsamplingNearest2d": lambda o: {"": _x(2, 3, 4, 5)},
    "Fold": lambda o: {"": _x(2, 12, 12)},
    "Unfold": lambda o: {"": _x(2, 3, 4, 5)},
    "PixelShuffle": lambda o: {"": _x(2, 8, 3, 2)},
    "PixelUnshuffle": lambda o: {"": _x(2, 2, 4, 6)},
    "ChannelShuffle Dropout2d Softmax2d": lambda o: {"": _x(2, 6, 3, 2)},
    "Dropout3d": lambda o: {"": _x(2, 3, 2, 2, 3)},
    "GLU": lambda o: {"": _x(2, 4, 6)},
    "CosineSimilarity PairwiseDistance": lambda o: {"": _two(4, 3)},
    "CosineEmbeddingLoss": lambda o: {
        "": Call(learned=_two(4, 3).learned, given={2: torch.tensor([1.0, -1.0, 1.0, -1.0])})
    },
    "MarginRankingLoss": lambda o: {"": Call(learned=_two(4, 3).learned, given={2: _signs(4, 3)})},
    "TripletMarginLoss TripletMarginWithDistanceLoss": lambda o: {
        "": Call(learned={i: torch.randn(4, 3) for i in range(3)})
    },
    "BCELoss": lambda o: {"": _pair(_UNIT.clone(), torch.rand(2, 3))},
    "BCEWithLogitsLoss": lambda o: {"": _pair(_LOGITS.clone(), torch.rand(2, 3))},
    "CrossEntropyLoss": lambda o: _classes(False),
    "NLLLoss": lambda o: _classes(True),
    "NLLLoss2d": lambda o: {
        "": _pair(torch.randn(2, 5, 3, 2).log_softmax(1), torch.randint(0, 5, (2, 3, 2)))
    },
    "LinearCrossEntropyLoss": lambda o: {
        "": _pair(
            torch.randn(3, 4),
            torch.randint(0, 5, (3, *o["out_features"]))
            if o.get("out_features")
            else torch.tensor([0, 4, 1]),
        )
    },
    "CTCLoss": lambda o: {
        "": _pair(
            torch.randn(8, 2, 5).log_softmax(2),
            torch.tensor([[1, 3, 3], [4, 1, 4]]),
            *(torch.tensor([8, 6]), torch.tensor([3, 2])),
        )
    },
    "GaussianNLLLoss": lambda o: {
        "": Call(
            learned={0: torch.randn(4, 3), 2: torch.rand(4, 3) + 0.5}, given={1: torch.randn(4, 3)}
        )
    },
    "HingeEmbeddingLoss SoftMarginLoss": lambda o: {"": _pair(torch.randn(4, 3), _signs(4, 3))},
    "HuberLoss L1Loss MSELoss SmoothL1Loss": lambda o: {"": _two(4, 3)},
    "KLDivLoss": lambda o: {
        "": _pair(
            torch.randn(4, 3).log_softmax(1),
            torch.randn(4, 3).log_softmax(1) if o.get("log_target") else torch.rand(4, 3),
        )
    },
    "MultiLabelMarginLoss": lambda o: {
        "": _pair(torch.randn(2, 4), torch.tensor([[3, 0, -1, 1], [0, -1, 2, 2]]))
    },
    "MultiLabelSoftMarginLoss": lambda o: {
        "": _pair(torch.randn(3, 5), (torch.rand(3, 5) < 0.5).float())
    },
    "MultiMarginLoss": lambda o: {"": _pair(torch.randn(3, 5), torch.tensor([0, 4, 1]))},
    "PoissonNLLLoss": lambda o: {
        "": _pair(torch.rand(4, 3) + 0.5, torch.randint(0, 4, (4, 3)).float())
    },
}
"""By the names of classes that are called alike."""

"""What the modules of ``torch.nn`` are made with: arguments that they need, and values of options.

An option that torch adds has no value here: :func:`options_of` then raises, and the sweep fails.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["NOT_RUN", "Made", "classes", "needed", "options_of"]

NOT_RUN = frozenset(
    {
        *("Container", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList"),
        *("Sequential", "RNNBase", "RNNCellBase", "LinearCrossEntropyOptions"),
    }
)
"""Containers, bases and settings: they compute nothing by themselves."""

_WITHOUT_NUMBERS = frozenset({"device", "process_group", "custom_encoder", "custom_decoder"})
"""Options that say where something is or who computes it."""


class Made:
    """A value that is made again for each module, such as a layer.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __repr__(self) -> str:
        return f"<{type(self.make()).__name__}>"


def classes() -> list[type[nn.Module]]:
    """The modules of ``torch.nn`` that compute something, by name."""
    return [getattr(nn, name) for name in sorted(nn.modules.__all__) if name not in NOT_RUN]


def dims_of(cls: type) -> int:
    """How many dimensions beside batch and channels a class is for; 0 where its name says none."""
    tail = cls.__name__[-2:]
    return int(tail[0]) if tail in ("1d", "2d", "3d") else 0


def needed(cls: type) -> dict[str, Any]:
    """Arguments that a class needs, and those that keep it small."""
    found: dict[str, Any] = {}
    for parameter in _parameters(cls):
        name = f"{cls.__name__}.{parameter.name}"
        if name in _NEEDED:
            found[parameter.name] = _NEEDED[name]
        elif parameter.default is parameter.empty:
            found[parameter.name] = _NEEDED[parameter.name]
    return {k: v(cls) if callable(v) and not isinstance(v, type) else v for k, v in found.items()}


def options_of(cls: type) -> dict[str, tuple[Any, ...]]:
    """The options of a class, with values other than the default.

    A value that is a dict sets several options at once.

    Raises:
        KeyError: An option has no values here.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for parameter in _parameters(cls):
        if parameter.name in _WITHOUT_NUMBERS:
            continue
        own = f"{cls.__name__}.{parameter.name}"
        if parameter.default is parameter.empty and own not in _VALUES:
            continue
        values: Any = _VALUES[own if own in _VALUES else parameter.name]
        values = values(cls) if callable(values) else values
        values = [v(cls) if inspect.isfunction(v) else v for v in values]
        found[parameter.name] = tuple(v for v in values if not _same(v, parameter.default))
    return found


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and isinstance(value, (bool, str)) and value == default


def _parameters(cls: type) -> list[inspect.Parameter]:
    owner = nn.RNNBase if issubclass(cls, nn.RNNBase) else cls
    listed = list(inspect.signature(owner.__init__).parameters.values())[1:]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    listed = [p for p in listed if p.kind not in kinds and (owner is cls or p.name != "mode")]
    if cls is nn.RNN:  # takes it among its keywords
        kind = inspect.Parameter.KEYWORD_ONLY
        listed.append(inspect.Parameter("nonlinearity", kind, default="tanh"))
    return listed


def _each(value: int, *more: int) -> Callable[[type], Any]:
    """A number, or as many different ones as the class has dimensions."""
    return lambda cls: (value, *more)[: max(dims_of(cls), 1)] if more else value


def _pad(cls: type) -> tuple[int, ...]:
    return (1, 2, 0, 1, 1, 0)[: 2 * dims_of(cls)]


_LAYER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0}

_NEEDED: Mapping[str, Any] = {
    "in_features": 4,
    "in1_features": 4,
    "in2_features": 3,
    "out_features": 3,
    "in_channels": 4,
    "out_channels": 6,
    "num_features": 4,
    "num_channels": 4,
    "num_groups": 2,
    "groups": 2,
    "normalized_shape": lambda cls: [3, 4],
    "kernel_size": lambda cls: 3 if "Conv" in cls.__name__ or dims_of(cls) else (2, 2),
    **{f"MaxUnpool{dims}d.kernel_size": 2 for dims in (1, 2, 3)},
    **{f"FractionalMaxPool{dims}d.kernel_size": 2 for dims in (2, 3)},
    "FractionalMaxPool2d.output_size": lambda cls: (3, 2),
    "FractionalMaxPool3d.output_size": lambda cls: (3, 2, 2),
    "FractionalMaxPool2d._random_samples": Made(lambda: torch.full((2, 3, 2), 0.4)),
    "FractionalMaxPool3d._random_samples": Made(lambda: torch.full((2, 3, 3), 0.4)),
    "output_size": 3,
    "Fold.output_size": lambda cls: (4, 5),
    "n_classes": 20,
    "cutoffs": lambda cls: [5, 11],
    "AdaptiveLogSoftmaxWithLoss.div_value": 2.0,
    "num_classes": 5,
    "num_embeddings": 10,
    "embedding_dim": 4,
    "embed_dim": 8,
    "num_heads": 2,
    "input_size": 4,
    "hidden_size": 5,
    "padding": _pad,
    "value": 0.5,
    "threshold": 0.2,
    "norm_type": 2,
    "size": 3,
    "scale_factor": 2,
    "Upsample.scale_factor": 2,
    **{f"Upsampling{kind}2d.scale_factor": 2 for kind in ("Bilinear", "Nearest")},
    "upscale_factor": 2,
    "downscale_factor": 2,
    "dim": 1,
    "Softmax.dim": 1,
    "LogSoftmax.dim": 1,
    "Softmin.dim": 1,
    "unflattened_size": lambda cls: (2, 3),
    "num_layers": 2,
    "PReLU.num_parameters": 6,
    **{f"Dropout{dims}.p": 0.0 for dims in ("", "1d", "2d", "3d")},
    **{f"{kind}AlphaDropout.p": 0.0 for kind in ("", "Feature")},
    "RReLU.lower": 0.25,
    "RReLU.upper": 0.25,
    **{
        f"{name}.{key}": value
        for name in ("Transformer", "TransformerEncoderLayer", "TransformerDecoderLayer")
        for key, value in _LAYER.items()
    },
    "Transformer.num_encoder_layers": 1,
    "Transformer.num_decoder_layers": 1,
    "encoder_layer": Made(lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0)),
    "decoder_layer": Made(lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0)),
}
"""By argument, or by class and argument; a function is asked for the class."""


def _weight(cls: type) -> tuple[Any, ...]:
    size = {"BCELoss": 3, "BCEWithLogitsLoss": 3}.get(cls.__name__, 5)
    return (Made(lambda: torch.linspace(0.2, 1.4, size)),)


_UPSAMPLES = (
    "nearest-exact",
    "bilinear",
    "bicubic",
    *({"mode": m, "align_corners": True} for m in ("bilinear", "bicubic")),
    *({"mode": "bilinear", "scale_factor": f} for f in (1.5, 0.6)),
    {"mode": "bilinear", "scale_factor": 1.5, "recompute_scale_factor": True},
    {"mode": "bicubic", "size": (7, 3), "scale_factor": None},
    *({"mode": "nearest", "scale_factor": f} for f in (1.3, (1.7, 0.8))),
)

_VALUES: Mapping[str, Any] = {
    "_freeze": (True,),
    "_weight": (Made(lambda: torch.linspace(-1, 1, 40).reshape(10, 4)),),
    "_random_samples": (),
    "activation": ("gelu",),
    "add_bias_kv": (True,),
    "add_zero_attn": (True,),
    "affine": (True, False),
    "align_corners": ({"mode": "bilinear", "align_corners": False},),
    "alpha": (0.3,),
    "approximate": ("tanh",),
    "batch_first": (True,),
    "beta": (0.4,),
    "bias": (True, False),
    "bidirectional": (True,),
    "blank": (2,),
    "ceil_mode": (True,),
    "count_include_pad": ({"count_include_pad": False, "padding": 1},),
    "d_model": (),
    "delta": (0.4,),
    "dilation": (2, _each(1, 2, 1)),
    "Unfold.dilation": (2,),
    "Fold.dilation": (),
    "dim": (0,),
    "CosineSimilarity.dim": (0,),
    "GLU.dim": (1,),
    "Unflatten.dim": (-2,),
    "dim_feedforward": (),
    "distance_function": (Made(lambda: nn.PairwiseDistance(p=1.0)),),
    "div_value": (1.5,),
    "divisor_override": (2,),
    "dropout": (0.5, {"dropout": 1.0, "num_layers": 2}),
    "MultiheadAttention.dropout": (0.5, 1.0),
    "Transformer.dropout": (0.5,),
    "TransformerEncoderLayer.dropout": (0.5, 1.0),
    "TransformerDecoderLayer.dropout": (0.5,),
    "dtype": (torch.float64,),
    "elementwise_affine": (False,),
    "enable_nested_tensor": (False,),
    "end_dim": (-2,),
    "eps": (0.1,),
    "full": (True,),
    "groups": (2,),
    "ChannelShuffle.groups": (3,),
    "head_bias": (True,),
    "ignore_index": (1,),
    "include_last_offset": (True,),
    "init": (0.5,),
    "inplace": (True,),
    "k": (0.5,),
    "kdim": (6,),
    "vdim": (6,),
    "keepdim": (True,),
    "label_smoothing": (0.1,),
    "lambd": (0.2,),
    "layer_norm_eps": (0.1,),
    "log_input": (False,),
    "log_target": (True,),
    "lower": (),
    "upper": (),
    "margin": (0.3,),
    "mask_check": (False,),
    "max_norm": (0.7,),
    "max_val": (0.4,),
    "max_value": (0.4,),
    "min_val": (-0.4,),
    "min_value": (-0.4,),
    "mode": ("sum", "max"),
    "Upsample.mode": _UPSAMPLES,
    "momentum": (None, 1.0),
    "negative_slope": (0.3,),
    "nhead": (),
    "nonlinearity": ("relu",),
    "norm": (Made(lambda: nn.LayerNorm(8)),),
    "norm_first": (True,),
    "norm_type": ({"norm_type": 1.0, "max_norm": 0.7}, {"norm_type": math.inf, "max_norm": 0.4}),
    "LPPool1d.norm_type": (1.0, 4.0),
    "LPPool2d.norm_type": (1.0, 4.0),
    "LPPool3d.norm_type": (1.0,),
    "num_decoder_layers": (),
    "num_encoder_layers": (),
    "num_layers": (2,),
    "TransformerEncoder.num_layers": (1,),
    "TransformerDecoder.num_layers": (1,),
    "num_parameters": (1,),
    "options": (Made(lambda: nn.LinearCrossEntropyOptions(batch_chunk_size=2)),),
    "LinearCrossEntropyLoss.out_features": ((2,),),
    "output_padding": ({"output_padding": 1, "stride": 2},),
    "output_ratio": ({"output_ratio": 0.5, "output_size": None},),
    "output_size": (1, lambda cls: (2, None, 3)[: dims_of(cls)]),
    "AdaptiveAvgPool1d.output_size": (1,),
    "AdaptiveMaxPool1d.output_size": (1,),
    **{
        f"Adaptive{kind}Pool{dims}d.output_size": (1, (2, None, 3)[:dims])
        for kind in ("Avg", "Max")
        for dims in (2, 3)
    },
    "FractionalMaxPool2d.output_size": (2,),
    "FractionalMaxPool3d.output_size": (2,),
    "Fold.output_size": (),
    "p": (0.5, 1.0),
    "MultiMarginLoss.p": (2,),
    "PairwiseDistance.p": (1.0, 3.0, math.inf),
    "TripletMarginLoss.p": (1.0, 3.0),
    "padding": (1, _each(1, 0, 1)),
    **{
        f"{lazy}Conv{dims}d.padding": ("same", (1, 0, 1)[:dims])
        for lazy in ("", "Lazy")
        for dims in (1, 2, 3)
    },
    **{f"MaxUnpool{dims}d.padding": () for dims in (1, 2, 3)},
    **{
        f"{kind}Pad{dims}d.padding": (1, (0, 1, -1, 1, 0, 1)[: 2 * dims])
        for kind in ("Circular", "Constant", "Reflection", "Replication", "Zero")
        for dims in (1, 2, 3)
    },
    "Fold.padding": (),
    "Unfold.padding": (1, (1, 0)),
    "padding_idx": (2,),
    "padding_mode": tuple(
        {"padding_mode": mode, "padding": 1} for mode in ("reflect", "replicate", "circular")
    ),
    "pos_weight": (Made(lambda: torch.linspace(0.2, 1.4, 3)),),
    "proj_size": (3, {"proj_size": 2, "bidirectional": True, "num_layers": 2, "bias": False}),
    "recompute_scale_factor": ({"scale_factor": 1.5, "recompute_scale_factor": True},),
    "reduce": (False, True),
    "reduction": ("sum", "none"),
    "return_indices": (True,),
    "scale_factor": (1.5, 0.6),
    "scale_grad_by_freq": (True,),
    "size": ({"size": (7, 3), "scale_factor": None},),
    "LocalResponseNorm.size": (2,),
    "size_average": (False, True),
    "sparse": (True,),
    "start_dim": (0,),
    "stride": (2, _each(2, 1, 3)),
    "Fold.stride": (),
    "Unfold.stride": (2, (2, 1)),
    **{f"MaxUnpool{dims}d.stride": () for dims in (1, 2, 3)},
    "swap": (True,),
    "threshold": (0.4,),
    "track_running_stats": (True, False),
    "weight": _weight,
    "zero_infinity": (True,),
}
"""By option, or by class and option; a function is asked for the class."""

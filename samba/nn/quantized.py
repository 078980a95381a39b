"""Linear layers with weights of 8 bits, for inference."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import nn

from samba.errors import ArgumentError, SambaError
from samba.sambatensor import to_torch

__all__ = ["QuantizedLinear", "SNQConfig", "UndocumentedQuantization", "quantize_model"]

_PER_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)
_PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)


class UndocumentedQuantization(SambaError, RuntimeError):
    """A way to quantize a model that is documented nowhere.

    Attributes:
        fields: Names of the settings that were given.
    """

    deviation = "undocumented-quantization"

    def __init__(self, *, fields: tuple[str, ...]) -> None:
        self.fields = fields
        super().__init__(
            f"quantize_model(model, SNQConfig({', '.join(fields)})): the effect of these settings "
            "is documented nowhere, so the emulator refuses them rather than guess. For 8-bit "
            "weights use torch.ao.quantization.quantize_dynamic(model, "
            "{nn.Linear: qconfig}, mapping={nn.Linear: QuantizedLinear})."
        )


class QuantizedLinear(nn.Module):
    """A linear layer that holds its weight in 8 bits and multiplies with its dequantized values.

    It takes the place of ``nn.Linear`` where torch's ``quantize_dynamic`` asks for it with
    ``mapping={nn.Linear: QuantizedLinear}``. Inputs are not quantized.

    Args:
        in_features, out_features: As of ``nn.Linear``.
        bias: Whether there is one.
        per_channel: Whether each output has a scale of its own.

    Example:
        >>> linear = nn.Linear(2, 2, bias=False)
        >>> with torch.no_grad():
        ...     _ = linear.weight.copy_(torch.tensor([[1.0, -0.5], [0.25, 1.0]]))
        >>> quantized = QuantizedLinear.from_float(linear)
        >>> quantized.weight_int8.tolist()
        [[127, -64], [32, 127]]
    """

    weight_int8: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        per_channel: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        rows = (out_features, 1) if per_channel else ()
        self.register_buffer(
            "weight_int8", torch.zeros(out_features, in_features, dtype=torch.int8)
        )
        self.register_buffer("scale", torch.ones(rows, dtype=torch.float64))
        self.register_buffer("zero_point", torch.zeros(rows, dtype=torch.int64))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    @classmethod
    def from_float(
        cls, mod: nn.Linear, use_precomputed_fake_quant: bool = False
    ) -> QuantizedLinear:
        """Quantize a linear layer, as torch's ``quantize_dynamic`` asks for it.

        Args:
            mod: The layer. Its ``qconfig`` says how: ``default_dynamic_qconfig`` (one scale, which
                holds where there is none) or ``default_per_channel_qconfig``.
            use_precomputed_fake_quant: Accepted; scales are those of the weight.

        Returns:
            The layer in 8 bits; its bias is that of ``mod``.

        Raises:
            ArgumentError: ``mod`` is not a linear layer, or its ``qconfig`` asks for another dtype
                than ``torch.qint8``.
        """
        del use_precomputed_fake_quant
        if not isinstance(mod, nn.Linear):
            raise ArgumentError(
                where="QuantizedLinear.from_float(mod)",
                found=type(mod).__name__,
                wanted="a torch.nn.Linear",
            )
        weight = to_torch(mod.weight).detach().float()
        scheme, scales, points = _quantizer(mod, weight)
        layer = cls(
            mod.in_features,
            mod.out_features,
            bias=mod.bias is not None,
            per_channel=scheme in _PER_CHANNEL,
        )
        layer.scale.copy_(scales.reshape(layer.scale.shape))
        layer.zero_point.copy_(points.reshape(layer.zero_point.shape))
        # As torch rounds: with the inverse of the scale, to the nearest even.
        steps = torch.round(weight * (1.0 / layer.scale.float())) + layer.zero_point
        layer.weight_int8.copy_(steps.clamp(-128, 127))
        layer.bias = mod.bias
        return layer.train(mod.training)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as torch's own quantized tensor."""
        weight, scale = to_torch(self._dequantized(torch.float32)), to_torch(self.scale)
        points = to_torch(self.zero_point)
        with warnings.catch_warnings():
            # Torch will take its quantized tensors away; scripts ask whether the weight is one.
            warnings.filterwarnings("ignore", message=r".*quantized tensor creation.*")
            if scale.dim() == 0:
                return torch.quantize_per_tensor(weight, float(scale), int(points), torch.qint8)
            scales, zeros = scale.reshape(-1), points.reshape(-1)
            return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight.T + bias`` with the dequantized weight, in the dtype of ``x``."""
        return F.linear(x, self._dequantized(x.dtype), self.bias)

    def extra_repr(self) -> str:
        """Sizes, as ``nn.Linear`` prints them."""
        channels = ", per_channel=True" if self.scale.dim() else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}{channels}"
        )

    def _dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        whole = self.weight_int8.to(torch.float32) - self.zero_point.to(torch.float32)
        return (whole * self.scale.to(torch.float32)).to(dtype)


def _quantizer(mod: nn.Linear, weight: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Scheme, scales and zero points of a weight, by the observer of its layer."""
    qconfig = getattr(mod, "qconfig", None)
    if qconfig is None:
        largest = weight.abs().max().clamp(min=torch.finfo(torch.float32).eps)
        scale = (largest / 127.5).double()
        return torch.per_tensor_symmetric, scale, torch.zeros((), dtype=torch.int64)
    observer = qconfig.weight()
    scheme = getattr(observer, "qscheme", None)
    if observer.dtype is not torch.qint8 or scheme not in (*_PER_TENSOR, *_PER_CHANNEL):
        raise ArgumentError(
            where="QuantizedLinear.from_float(mod), weight of mod.qconfig",
            found=f"{observer.dtype}, {scheme}",
            wanted="torch.qint8 with one scale, or one for each output",
        )
    observer(weight)
    return scheme, *observer.calculate_qparams()


class SNQConfig:
    """How a model is to be quantized; recorded, as its settings are documented nowhere.

    Args:
        **settings: The settings.

    Example:
        >>> SNQConfig(bits=8).settings
        {'bits': 8}
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


def quantize_model(model: nn.Module, quantization_config: SNQConfig) -> NoReturn:
    """Refuses: what a configuration does to a model is documented nowhere.

    Args:
        model: The model.
        quantization_config: The configuration.

    Raises:
        UndocumentedQuantization: Always.
    """
    raise UndocumentedQuantization(fields=tuple(quantization_config.settings))

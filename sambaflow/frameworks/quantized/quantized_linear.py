"""Linear layers with weights of 8 bits; what they do stands in :mod:`samba.nn.quantized`."""

from __future__ import annotations

from samba.nn.quantized import QuantizedLinear, SNQConfig, quantize_model

__all__ = ["QuantizedLinear", "SNQConfig", "quantize_model"]

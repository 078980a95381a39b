"""SNType: the number types of the hardware, as parallel patterns name them."""

from __future__ import annotations

import enum

import torch

__all__ = ["SNType", "torch_type"]


class SNType(enum.Enum):
    """A number type of the hardware."""

    BOOL = "bool"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @staticmethod
    def to_torch_reference_type(sn_type: SNType) -> torch.dtype:
        """The torch dtype that holds every value of a hardware type.

        Args:
            sn_type: The type.

        Returns:
            A dtype that torch computes with; UINT16 becomes int32, as torch has few operations
            on unsigned numbers.

        Example:
            >>> SNType.to_torch_reference_type(SNType.UINT16)
            torch.int32
        """
        return _TORCH[sn_type]


_TORCH = {
    SNType.BOOL: torch.bool,
    SNType.INT8: torch.int8,
    SNType.UINT8: torch.uint8,
    SNType.INT16: torch.int16,
    SNType.UINT16: torch.int32,
    SNType.INT32: torch.int32,
    SNType.INT64: torch.int64,
    SNType.BF16: torch.bfloat16,
    SNType.FP16: torch.float16,
    SNType.FP32: torch.float32,
}


def torch_type(dtype: torch.dtype | SNType | None, default: torch.dtype) -> torch.dtype:
    """A torch dtype for either kind of type; ``default`` for None."""
    if dtype is None:
        return default
    return SNType.to_torch_reference_type(dtype) if isinstance(dtype, SNType) else dtype

"""Parts of a lowering that XLA fuses with nothing around them; kernels know them as well."""

from __future__ import annotations

from emulator.kernels.unfused import compile_apart

__all__ = ["compile_apart"]

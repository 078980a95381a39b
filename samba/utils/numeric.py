"""Constants for comparing numbers of the device with those of the host."""

__all__ = ["MAX_BF16_TRUNCATE_NORMAL_REL"]

MAX_BF16_TRUNCATE_NORMAL_REL = 2.0**-7
"""Largest relative error of cutting a normal float32 down to bfloat16, which keeps 7 bits."""

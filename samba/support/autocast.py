"""Whether ``torch.autocast`` is in force: it acts while a model is traced, and not when it runs."""

from __future__ import annotations

import torch

AUTOCAST = "autocast"
"""Key of a PEF's metadata for the dtype of the autocast that it was compiled with."""


def autocast_in_force() -> str:
    """The dtype to which ``torch.autocast`` casts on the CPU; empty if it is not in force.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     autocast_in_force()
        'bfloat16'
        >>> autocast_in_force()
        ''
    """
    if not torch.is_autocast_enabled("cpu"):
        return ""
    return str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")

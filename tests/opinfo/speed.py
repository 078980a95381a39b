"""Repeated bookkeeping of torch's exporter, done once per process.

``run_decompositions`` lists and wraps all of torch's composite operations anew on every
call, and makes for each a function that refuses gradients, which takes longer than tracing one
operator. Nothing registers operators while the harness runs, so lists and functions are kept. What
is traced does not change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._export.utils
import torch.export.decomp_utils
import torch.export.exported_program
from torch._ops import OperatorBase


def keep_bookkeeping() -> None:
    """Make every later trace in this process cheap; for processes of the harness only."""
    listing = functools.cache(torch._export.utils._collect_all_valid_cia_ops)
    torch.export.exported_program._collect_all_valid_cia_ops = listing  # pyright: ignore[reportPrivateImportUsage]  # replaced for speed
    torch.export.decomp_utils._collect_all_valid_cia_ops = listing  # pyright: ignore[reportPrivateImportUsage]  # as above
    refusing = functools.cache(torch.export.exported_program.autograd_not_implemented)  # pyright: ignore[reportPrivateImportUsage]  # as above
    torch.export.exported_program.autograd_not_implemented = refusing  # pyright: ignore[reportPrivateImportUsage]  # as above
    general = OperatorBase.py_impl

    def register(self: Any, key: Any) -> Callable[[Any], Any]:
        # The general function builds generic types at every call.
        if not isinstance(key, torch._C.DispatchKey) or key is torch._C.DispatchKey.Python:
            return general(self, key)
        if key in self.py_kernels:
            return general(self, key)
        return functools.partial(_register, self, key)

    OperatorBase.py_impl = register


def _register(operator: Any, key: Any, function: Any) -> Any:
    operator.py_kernels[key] = function
    operator._dispatch_cache.clear()
    return function

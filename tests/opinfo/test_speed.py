"""Who traces through patched torch: the fast tests and the harness, and nobody else."""

from __future__ import annotations

import os

import torch._export.utils
import torch.export.exported_program
from torch._ops import OperatorBase


def test_only_the_fast_tests_run_through_patched_torch():
    listing = torch.export.exported_program._collect_all_valid_cia_ops  # pyright: ignore[reportPrivateImportUsage]  # what is replaced
    patched = [
        OperatorBase.py_impl.__module__ != "torch._ops",
        listing is not torch._export.utils._collect_all_valid_cia_ops,
    ]
    assert patched == [bool(os.environ["XLA_FLAGS"])] * 2

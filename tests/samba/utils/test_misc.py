"""``parse_dtype``: what configurations call dtypes."""

from __future__ import annotations

import pytest
import torch

from samba.errors import ArgumentError
from samba.utils import parse_dtype

NAMES = {
    "bfloat16": torch.bfloat16,
    "torch.bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float": torch.float32,
    "fp32": torch.float32,
    "torch.float16": torch.float16,
    "int16": torch.int16,
    "bool": torch.bool,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_torchs_with_or_without_its_own(name):
    assert parse_dtype(name) is NAMES[name]
    assert parse_dtype(NAMES[name]) is NAMES[name]


@pytest.mark.parametrize("name", ["", "float33", "nn", "Tensor", None, "torch.torch.int8", "a b"])
def test_what_is_no_dtype_is_refused(name):
    with pytest.raises(ArgumentError, match="wanted a dtype of torch"):
        parse_dtype(name)

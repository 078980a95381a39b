"""Which cases this project takes for large, and peers with its allocator settings as well."""

from __future__ import annotations

from pathlib import Path

import pytest

import samba
from bench import models
from bench.peers.torch_step import to_torch
from emulator.memory import allocator
from pef_schema import read_pef


@pytest.mark.slow
@pytest.mark.parametrize("name", models.TIMED)
def test_bench_knows_which_cases_are_large(name: str, tmp_path: Path) -> None:
    case = models.TIMED[name]
    model = case.model()
    samba.from_torch_model_(model)
    inputs = [
        samba.from_torch_tensor(t, name=n)
        for t, n in zip(to_torch(case.batches()[0]), case.input_names, strict=True)
    ]
    optimizer = samba.optim.AdamW(model.parameters())
    config = {"output_folder": str(tmp_path), "optim_level": case.optim_level}
    pef = samba.session.compile(model, inputs, optimizer, name=case.family, config_dict=config)
    assert allocator.is_large(read_pef(Path(pef))) is case.large

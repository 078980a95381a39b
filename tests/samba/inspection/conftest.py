"""One PEF for whoever looks into PEFs."""

from __future__ import annotations

import pytest
import torch

from pef_schema import Program, write_pef
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.models.zoo import ZOO
from tests.tracing import trace


@pytest.fixture(scope="package")
def lenet() -> Program:
    """LeNet with a section for each operation, and an optimizer that clips."""
    torch.manual_seed(0)
    model, inputs = ZOO["lenet"].model(), ZOO["lenet"].inputs()
    optimizer = torch.optim.AdamW(model.parameters())
    options = CompileOptions(name="lenet", optim_level="o0", metadata=(("made", "by a test"),))
    return build_program(trace(model, inputs), [optimizer], options)


@pytest.fixture(scope="package")
def lenet_pef(lenet: Program, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its file."""
    path = tmp_path_factory.mktemp("pef") / "lenet.pef"
    write_pef(path, lenet)
    return str(path)

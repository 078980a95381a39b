"""Kept plans that call LAPACK, whose functions jax looks up only when it lowers a call."""

from __future__ import annotations

import sys

import pytest

from emulator.kept_files import CACHE_VARIABLE
from tests.warm import finished

MODEL = """
import numpy as np, sys, torch
import samba
from emulator.counters import Source
from emulator.device import Device
from emulator.plans.steps import all_steps
from pef_schema.program import Role
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy
from tests.tracing import trace

FACTORS = {
    "cholesky": lambda a: torch.linalg.cholesky(a),
    "qr": lambda a: torch.linalg.qr(a)[1],
    "lu": lambda a: torch.linalg.lu(a)[2],
    "solve": lambda a: torch.linalg.solve(a, a[:1].mT),
    "triangular": lambda a: torch.linalg.solve_triangular(a.tril(), a, upper=False),
    "inverse": lambda a: torch.linalg.inv(a),
    "determinant": lambda a: torch.linalg.det(a),
    "cholesky_solve": lambda a: torch.cholesky_solve(a, torch.linalg.cholesky(a)),
    "householder": lambda a: torch.linalg.householder_product(a, a[0]),
    "exponential": lambda a: torch.linalg.matrix_exp(a),
}

class Model(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight, self.factor = torch.nn.Parameter(torch.eye(3) * 2 + 0.1), factor

    def forward(self, x):
        return (self.factor(self.weight + x @ x.mT) ** 2).sum()

def run(dtype, *names):
    for name in names or FACTORS:
        factor = FACTORS[name]
        model = Model(factor).to(dtype)
        optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
        x = torch.arange(9, dtype=dtype).reshape(3, 3) / 9
        traced = trace(model, (x,))
        device = Device(build_program(traced, [optimizer], CompileOptions(name="factors")))
        for source in traced.sources:
            if source.tensor is not None:
                region = device.program.graphs[0].values[source.value].region
                device.write(region, view_as_numpy(source.tensor.detach().clone()))
        for region, form in enumerate(device.program.regions):
            if form.role is Role.INPUT:
                device.write(region, x.numpy())
        plan = device.plan(all_steps(device.program))
        device.run(plan)
        held = [np.asarray(b).astype(float).sum() for b in device.pool.buffers if b is not None]
        print(name, plan.making.source.name, *[float(h).hex() for h in held])
"""


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "arguments",
    [
        'torch.float32, "triangular"',
        pytest.param("torch.float32", marks=SLOW),
        pytest.param("torch.float64", marks=SLOW),
    ],
)
def test_a_second_process_calls_them(arguments: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    command = [sys.executable, "-c", f"{MODEL}\nrun({arguments})"]
    first, second = finished(command), finished(command)
    assert second.returncode == first.returncode == 0, first.stderr + second.stderr
    assert "COMPILED" in first.stdout
    assert second.stdout == first.stdout.replace("COMPILED", "CACHE")

"""The costs of a program are to be had without torch and jax."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.processes import finished

ROOT = Path(__file__).parents[3]


def test_costs_load_neither_torch_nor_jax():
    code = (
        "import sys, emulator.costs.machine_file, emulator.costs.roofline, emulator.costs.steps, "
        "emulator.costs.description, emulator.costs.timing; "
        "sys.exit(bool({'jax', 'torch'} & sys.modules.keys()))"
    )
    done = finished([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == 0, done.stderr

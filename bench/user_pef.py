"""A user's PEF as something that section times can be asked of: no model and no data are needed.

Inputs, weights and states are drawn, the same for the same PEF: times of sections do not depend on
what numbers are in them, as long as none is subnormal and every index is in range.
"""

from __future__ import annotations

import numpy as np

from emulator.device import Device
from pef_schema import Role, read_pef
from pef_schema.program import OutputGrad

_DRAWN = frozenset({Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE})
_SCALE = 0.05
"""Standard deviation of what is drawn; squares of it are far from subnormal numbers."""


class PefContestant:
    """A PEF on a device, filled with drawn numbers when it is first asked for.

    Args:
        path: The PEF.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def loaded_device(self) -> Device:
        """A device with the PEF, on which every section can run.

        Raises:
            PefError: If the file is missing or bad.
            DeviceError: If its program cannot be run.
        """
        program = read_pef(self.path)
        device, rng = Device(program), np.random.default_rng(0)
        for region, (role, segment) in enumerate((r.role, r.segment) for r in program.regions):
            if role not in _DRAWN or segment >= 0:
                continue
            shape, dtype = device.buffer_map.form(region)
            if dtype.kind in "iub":
                values = rng.integers(0, 2, shape)
            else:
                # Above zero: running variances and second moments are.
                values = np.abs(rng.standard_normal(shape)) * _SCALE + _SCALE
            device.write(region, np.asarray(values).astype(dtype))
        for graph in program.graphs:
            for output in graph.outputs:
                if output.grad_region >= 0 and output.grad is not OutputGrad.ONES:
                    shape, dtype = device.buffer_map.form(output.grad_region)
                    device.write(output.grad_region, np.full(shape, _SCALE).astype(dtype))
        return device

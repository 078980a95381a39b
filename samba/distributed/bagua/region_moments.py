"""First moments in regions of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pef_schema.program import OptimizerKind
from samba.distributed.bagua.moments import Moments
from samba.distributed.bagua.regions import region_closures
from samba.errors import ArgumentError
from samba.tensor.bagua_handle import Closures
from samba.tensor.views import view_as_numpy, view_as_torch

if TYPE_CHECKING:
    from emulator.device import Device  # it loads jax, which a torch training loop does not need


class RegionMoments(Moments):
    """Moments in regions of a device; options are those of its program.

    Args:
        device: The device.
        parameters: The trained parameters by name.

    Raises:
        ArgumentError: If the program updates one of them by another rule.
    """

    def __init__(self, device: Device, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._device = device
        program = device.program
        rows = {
            p.weight: (entry, p)
            for entry in program.optimizers
            if entry.kind is OptimizerKind.QADAM
            for p in entry.params
        }
        regions = {name: device.region_of(name) for name in parameters}
        missing = [name for name, region in regions.items() if region not in rows]
        if missing:
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"parameters {missing} that {program.name} updates by another rule",
                wanted="a program compiled with a QAdamOptimizer of all trained parameters",
                hint="Compile with it: samba.session.compile(model, inputs, optimizer).",
            )
        self._names = {id(p): name for name, p in parameters.items()}
        self._rows = {
            name: _Row(
                gradient=param.grad,
                moment=param.states[0],
                rate=1 - dict(entry.options)["beta1"],
            )
            for name, region in regions.items()
            for entry, param in [rows[region]]
        }
        used = {rows[region][0].step: rows[region][0] for region in regions.values()}
        self._warm_up = [(step, dict(e.options)["warmup_steps"]) for step, e in used.items()]

    @property
    def warming(self) -> bool:
        return all(float(self._device.read(step)) < steps for step, steps in self._warm_up)

    def closures(self, name: str) -> Closures:
        moment = self._rows[name].moment
        return region_closures(self._device, self._device.program.regions[moment].name)

    def update(self, parameter: torch.Tensor) -> None:
        device, row = self._device, self._rows[self._names[id(parameter)]]
        moment = self._read(row.moment)
        moment.lerp_(self._read(row.gradient), row.rate)
        device.overwrite(row.moment, view_as_numpy(moment))

    def _read(self, region: int) -> torch.Tensor:
        return view_as_torch(self._device.read(region))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Places and numbers that the update of a first moment needs.

    Args:
        gradient, moment: Regions.
        rate: How far the moment moves towards the gradient.
    """

    gradient: int
    moment: int
    rate: float

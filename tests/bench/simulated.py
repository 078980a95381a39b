"""A machine that is simulated: what the gate says of known times, without taking any."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.gate import GateSettings, Samples, Side
from bench.measurement import FULL
from bench.process import path_of
from pef_schema import read_pef

JITTER, TAIL, BIAS, DRIFT = 0.04, 0.05, 0.04, 0.5
"""Of a sample, the share of interrupted samples, of a process, and of the machine meanwhile."""


def times(
    draw: np.random.Generator,
    typical: float,
    processes: int,
    rounds: int,
    *,
    bias: float = BIAS,
    drift: float = DRIFT,
) -> list[float]:
    """Lognormal jitter, interruptions, a bias of each process, a drift that both sides meet."""
    shape = processes, rounds
    process = np.exp(draw.normal(0, bias, (processes, 1)))
    jitter = np.exp(draw.normal(0, JITTER, shape))
    tail = np.where(draw.random(shape) < TAIL, draw.uniform(1, 4), 1.0)
    trend = np.linspace(1, 1 + drift, rounds)
    return (typical * process * jitter * tail * trend).ravel().tolist()


class Machine:
    """Takes the place of ``measure_sides``.

    Args:
        seed: Of what is drawn.
        slower: Factors by section, by name of the PEF.
    """

    def __init__(self, seed: int, slower: dict[str, dict[str, float]] | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._slower = slower or {}
        self.asked: list[int] = []

    def __call__(
        self, sides: tuple[Side, Side], settings: GateSettings, processes: int | None = None
    ) -> Samples:
        count = processes or settings.processes
        self.asked.append(count)
        found: list[dict[str, list[float]]] = []
        for number, side in enumerate(sides):
            path = path_of(side.case)
            assert path is not None
            names = [section.name for section in read_pef(path).sections]
            slower = self._slower.get(Path(path).name, {}) | dict(settings.plants if number else {})
            drawn = {
                name: times(
                    self._rng, (1 + i) * 1e-4 * slower.get(name, 1.0), count, settings.rounds
                )
                for i, name in enumerate((*names, FULL))
            }
            found.append(drawn)
        base, head = found
        return {name: (base[name], head[name]) for name in head if name in base}

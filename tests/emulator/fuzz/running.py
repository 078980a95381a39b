"""Running one damaged program on the device: it runs, or is refused with a documented error."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from emulator.device import Device
from emulator.dtypes import TO_NUMPY
from emulator.errors import DeviceError, NotWritten
from emulator.plans.steps import all_steps
from pef_schema import PefError, Program, decode
from pef_schema.program import DType, Role
from samba.compiler.forms.listing import pef_log
from tests.fuzz.outcome import Outcome, foreign, refused, terminal
from tests.pef_schema.fuzz.reading import features, listing

SPARE = 4 * 2**30
"""Bytes that a worker may take for a program, beside what it holds already."""

_WRITTEN = frozenset({Role.INPUT, Role.WEIGHT, Role.BUFFER})
_HOST = 2**28
"""Bytes that the harness itself is ready to write."""
_FILE = Path(tempfile.gettempdir()) / f"run-fuzz-{os.getpid()}.pef"


def attempt(name: str, pef: bytes) -> Outcome:
    """Run all schedules of a program twice, and read everything back.

    Args:
        name: Name of the case; what is written to the device depends on it alone.
        pef: The file.

    Returns:
        The outcome.
    """
    try:
        program = decode(pef)
        shown = _texts(program, pef)
        if shown.find:
            return shown
        return _run(program, random.Random(name.partition("+")[0]))
    except (DeviceError, PefError) as error:
        return refused(error)
    except Exception as error:  # the harness is there to find any
        return foreign(error)


def _texts(program: Program, pef: bytes) -> Outcome:
    """What people are shown of a program."""
    try:
        _FILE.write_bytes(pef)
        text = listing(_FILE)
    finally:
        _FILE.unlink(missing_ok=True)
    return terminal("listing", text + pef_log(program))


def _run(program: Program, rng: random.Random) -> Outcome:
    device = Device(program)
    if rng.random() < 0.2:
        device.use_buckets()
    written = [i for i, region in enumerate(program.regions) if region.role in _WRITTEN]
    if rng.random() < 0.3:
        more = {Role.GRADIENT, Role.OUTPUT_GRADIENT, Role.OPTIMIZER_STATE, Role.SEED}
        written += [i for i, region in enumerate(program.regions) if region.role in more]
    if sum(program.regions[i].nbytes for i in written) > _HOST:
        return Outcome(label="more than the host would write")
    for index in written:
        region = program.regions[index]
        if region.segment < 0:
            device.write(index, _data(rng, region.shape, region.dtype))
    if program.argins and rng.random() < 0.3:
        index = rng.randrange(len(program.argins))
        device.set_argin(index, rng.choice((0.0, 0.5, 1.0, 1e9)))
    for schedule in range(len(program.schedules)):
        plan = device.plan(all_steps(program, schedule))
        for _ in range(2):
            device.run(plan)
    device.synchronize()
    for index, region in enumerate(program.regions):
        if region.nbytes <= _HOST:
            try:
                device.read(index)
            except NotWritten:
                continue
    return Outcome(label="ran", text=features(program))


def _data(rng: random.Random, shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    kind, wanted = rng.randrange(4), TO_NUMPY[dtype]
    if kind == 0:
        return np.zeros(shape, wanted)
    if kind == 1:
        return np.ones(shape, wanted)
    generator = np.random.default_rng(rng.getrandbits(32))
    if dtype.is_floating:
        return generator.standard_normal(shape).astype(wanted)
    return generator.integers(0, 2 if kind == 2 else 100, shape).astype(wanted)

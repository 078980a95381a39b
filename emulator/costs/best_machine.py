"""The best rates that were ever measured on this machine, with a look at who else was busy.

A measurement beside other work finds rates that are too low, and what is called a bound is none.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from emulator.costs.machine_file import BadMachineFile, machine_toml, parsed_machine
from emulator.costs.roofline import Machine
from emulator.kept_files import kept_files
from emulator.processor import own_processors
from pef_schema.program import DType

_LIMIT = 1 << 20
"""Most bytes of machines that are kept."""
_BUSY = 0.1
"""Share of the processors that others may take in a quiet measurement."""
_TRIES = 3
_QUIET = "# quiet:"
"""What the kept file begins with, before the types that were measured quietly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured.

    Args:
        machine: The best rates, those of earlier measurements included.
        others: Share of the processors, 0 to 1, that other processes took in the quietest try;
            0 where an earlier measurement of these types was quiet.
    """

    machine: Machine
    others: float

    @property
    def is_quiet(self) -> bool:
        """Whether the rates are those of a machine that had nothing else to do."""
        return self.others <= _BUSY


def best_machine(measure: Callable[[], Machine], dtypes: Collection[DType]) -> Measured:
    """Measure this machine, again while others are busy, and keep the best.

    Args:
        measure: Measures it once.
        dtypes: The types whose products it measures.

    Returns:
        The best rates of these types.
    """
    best, others = _measure_and_watch(measure)
    for _ in range(1, _TRIES):
        if others <= _BUSY:
            break
        machine, share = _measure_and_watch(measure)
        best, others = better_of(best, machine), min(others, share)
    files = kept_files("machines", limit=_LIMIT)
    if files is None:
        return Measured(machine=best, others=others)
    name = hashlib.sha256(best.name.encode()).hexdigest()
    names = {dtype.name for dtype in dtypes}
    quiet = names if others <= _BUSY else set[str]()
    earlier, earlier_quiet = _read(files.get(name))
    if earlier is not None:
        best, quiet = better_of(best, earlier), quiet | earlier_quiet
    files.put(name, f"{_QUIET} {' '.join(sorted(quiet))}\n{machine_toml(best)}".encode())
    rates = tuple(rate for rate in best.rates if rate[0] in dtypes)
    machine = replace(best, rates=rates)
    return Measured(machine=machine, others=0.0 if names <= quiet else others)


def _read(data: bytes | None) -> tuple[Machine | None, set[str]]:
    """The machine that was kept, and the types that were measured quietly."""
    if data is None:
        return None, set()
    first, _, text = data.decode().partition("\n")
    try:
        return parsed_machine(text, "the kept machine"), set(first.removeprefix(_QUIET).split())
    except BadMachineFile:  # another version of this project has written it
        return None, set()


def better_of(one: Machine, other: Machine) -> Machine:
    """The better rate of two measurements of a machine, for each type and for memory.

    Args:
        one: A measurement; the name is its.
        other: Another one.

    Example:
        >>> f32 = DType.FLOAT32
        >>> slow = Machine(name="m", rates=((f32, 1e9),), bandwidth=9e9)
        >>> fast = Machine(name="m", rates=((f32, 3e9),), bandwidth=4e9)
        >>> better_of(slow, fast) == Machine(name="m", rates=((f32, 3e9),), bandwidth=9e9)
        True
    """
    rates = dict(one.rates)
    for dtype, rate in other.rates:
        rates[dtype] = max(rate, rates.get(dtype, 0.0))
    near = one if one.bandwidth >= other.bandwidth else other
    return Machine(
        name=one.name,
        rates=tuple(sorted(rates.items())),
        bandwidth=near.bandwidth,
        caches=near.caches,
    )


def _measure_and_watch(measure: Callable[[], Machine]) -> tuple[Machine, float]:
    """A measurement, and which share of the processors other processes took meanwhile."""
    before, start, own = _busy_seconds(), time.perf_counter(), time.process_time()
    machine = measure()
    seconds, used = time.perf_counter() - start, time.process_time() - own
    return machine, share_of_others(_busy_seconds() - before, used, seconds)


def share_of_others(busy: float, own: float, seconds: float) -> float:
    """The share of this machine's processors that others took.

    Args:
        busy: Seconds that processors were busy in all, added up.
        own: Those of this process.
        seconds: How long that was.

    Example:
        >>> all_of_them = len(own_processors())
        >>> share_of_others(3 * all_of_them, all_of_them, 4.0)
        0.5
    """
    return min(max(busy - own, 0.0) / max(seconds * len(own_processors()), 1e-9), 1.0)


def _busy_seconds() -> float:
    """Seconds that the processors of this process were busy since the start; 0 if unknown."""
    names = {f"cpu{number}" for number in own_processors()}
    try:
        with open("/proc/stat", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return 0.0
    ticks = 0
    for row in rows:
        if row and row[0] in names:
            user, nice, system, _, _, interrupt, soft, steal = map(int, row[1:9])
            ticks += user + nice + system + interrupt + soft + steal
    return ticks / os.sysconf("SC_CLK_TCK")

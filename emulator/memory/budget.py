"""What a program and its plans need of memory, and whether the device may take it.

A program is refused before it allocates: where what it keeps, or one value that it computes, is
larger than the limit; and a plan, when XLA has laid out its memory.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.errors import DeviceError, OutOfMemory
from emulator.mesh.chips import Chips
from emulator.mesh.layout import bytes_per_chip
from emulator.start import HOST_PLATFORMS
from pef_schema.module_paths import plain_path
from pef_schema.program import Graph, Program

LIMIT_VARIABLE = "EMULATOR_MEMORY_LIMIT"
"""Environment variable with the bytes that the device may take."""

_CGROUP_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_STATM = Path("/proc/self/statm")


class BadLimit(DeviceError):
    """The limit in the environment is not a number of bytes."""

    def __init__(self, *, found: str) -> None:
        self.found = found
        super().__init__(
            f"environment variable {LIMIT_VARIABLE}: found {found!r}, expected a whole number of "
            "bytes from 1 up. Set one, or unset it for the memory of the device."
        )


def memory_limit(device: Any) -> int:
    """Bytes that the device may take: those of the environment variable, or all there are.

    Where device memory is the host's these are its physical memory, or less where the process has
    less: by a control group or by a limit of its address space. Elsewhere they are what jax may
    take of the device's own memory; where it does not say, XLA alone refuses.

    Args:
        device: The ``jax.Device``.

    Raises:
        BadLimit: If the environment variable is not a number of bytes.
    """
    setting = os.environ.get(LIMIT_VARIABLE, "").strip()
    if setting:
        if not (setting.isascii() and setting.isdecimal() and int(setting[:20]) > 0):
            raise BadLimit(found=setting[:80])
        return int(setting[:20])
    if device.platform not in HOST_PLATFORMS:
        statistics: dict[str, int] = device.memory_stats() or {}
        return statistics.get("bytes_limit") or sys.maxsize  # an allocator without a limit says 0
    page = os.sysconf("SC_PAGE_SIZE")
    limits = [os.sysconf("SC_PHYS_PAGES") * page]
    for file in _CGROUP_FILES:
        text = _read(file)
        if text.isdecimal():
            limits.append(int(text))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        pages = _read(_STATM).partition(" ")[0]
        limits.append(space - (int(pages) * page if pages.isdecimal() else 0))
    return min(limits)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""  # no control group of that kind, or no /proc


def check_size(program: Program, chips: Chips) -> None:
    """Refuse a program that keeps, or computes in one piece, more than a chip may take.

    Args:
        program: A verified program.
        chips: Where it runs.

    Raises:
        OutOfMemory: If it does.
    """
    limit = memory_limit(chips.first)
    need = bytes_per_chip(program, chips.split, chips.count, chips.whole_roles)
    if need > limit:
        largest = max(program.regions, key=lambda r: 0 if r.role.is_transient else r.nbytes)
        raise OutOfMemory(
            what=f"program {program.name}: what it keeps between runs (mostly "
            f"{largest.name} {list(largest.shape)})",
            need=need,
            have=limit,
        )
    for graph in program.graphs:
        _check_values(graph, limit * chips.count)  # a value may be divided among all of them


def _check_values(graph: Graph, limit: int) -> None:
    sizes = [v.nbytes for v in graph.values]
    if max(sizes, default=0) <= limit:
        return
    for node in graph.nodes:
        for v in node.outputs:
            if v >= 0 and sizes[v] > limit:
                place = f" at {node.source}" if node.source else ""
                raise OutOfMemory(
                    what=f"{node.op} in {plain_path(node.module)}{place}: its result "
                    f"{list(graph.values[v].shape)}",
                    need=sizes[v],
                    have=limit,
                )


def check_plan(memory: MeasuredMemory | None, what: str, chips: Chips) -> None:
    """Refuse a plan that needs more than a chip may take.

    Args:
        memory: What it takes on each chip; None if the backend does not say.
        what: What it runs, for the message.
        chips: Where it runs.

    Raises:
        OutOfMemory: If its arguments, results and intermediate values together need more.
    """
    if memory is None:
        return
    limit = memory_limit(chips.first)
    if memory.peak > limit:
        raise OutOfMemory(what=what, need=memory.peak, have=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """Bytes that an executable takes, as XLA has laid them out.

    Args:
        argument: Of its arguments.
        output: Of its results, with the list of their places.
        alias: Those of the results that take the place of an argument.
        temp: Of its intermediate values.

    Example:
        >>> MeasuredMemory(argument=100, output=80, alias=60, temp=7).peak
        127
    """

    argument: int
    output: int
    alias: int
    temp: int

    @property
    def peak(self) -> int:
        """All of them together."""
        return self.argument + self.output - self.alias + self.temp


def measured_memory(executable: Any) -> MeasuredMemory | None:
    """What an executable says of its memory.

    Args:
        executable: A ``jax.stages.Compiled``.

    Returns:
        Its bytes; None of a backend that does not say.
    """
    analysis = executable.memory_analysis()
    if analysis is None:
        return None
    return MeasuredMemory(
        argument=analysis.argument_size_in_bytes,
        output=analysis.output_size_in_bytes,
        alias=analysis.alias_size_in_bytes,
        temp=analysis.temp_size_in_bytes,
    )

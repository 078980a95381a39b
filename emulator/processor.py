"""The processor that this process runs on: its maker, its generation, and what it can do."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

ISA = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "sme"),
)
"""Extensions that kernels of linear algebra go by, with Linux's names: x86's, then ARM's."""

BEST = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
"""Extensions that a processor's key names the first of that it has."""

_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel", "0x41": "arm", "0xc0": "ampere"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What tells a processor from others.

    Virtual machines hide the name ("AMD EPYC"); family and model tell generations apart.

    Args:
        vendor: ``amd``, ``intel``, ``arm`` or what the system says; ``unknown`` where it says
            nothing.
        family: Family number, 0 where there is none. On ARM, the architecture's.
        model: Model number, 0 where there is none. On ARM, the part's.
        stepping: Stepping (ARM: revision), 0 where there is none.
        name: The name that the system shows.
        isa: Those of ``ISA`` that it has, in that order.
    """

    vendor: str
    family: int
    model: int
    stepping: int
    name: str
    isa: tuple[str, ...]

    @property
    def best_isa(self) -> str:
        """The first of ``BEST`` that it has, else ``none``."""
        return next((name for name in BEST if name in self.isa), "none")

    @property
    def key(self) -> str:
        """Vendor, family and best ISA: what a choice of kernels goes by.

        Example:
            >>> Processor(vendor="amd", family=26, model=2, stepping=1, name="AMD EPYC",
            ...     isa=("avx2", "avx512f", "avx512_bf16")).key
            'amd-26-avx512_bf16'
        """
        return f"{self.vendor}-{self.family}-{self.best_isa}"

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.vendor} family {self.family}, model {self.model}, "
            f"stepping {self.stepping}, {self.best_isa})"
        )


def own_processors() -> Collection[int]:
    """Numbers of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


@functools.cache
def processor() -> Processor:
    """Return the processor of this machine; it is looked up once.

    Example:
        >>> processor() is processor()
        True
    """
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    return described(text, platform.processor() or platform.machine())


def described(cpuinfo: str, otherwise: str = "") -> Processor:
    """Return the first processor of Linux's description.

    Args:
        cpuinfo: Text of ``/proc/cpuinfo``; may be empty or of another form.
        otherwise: The name where the text has none.

    Returns:
        The processor, with 0, ``unknown`` and nothing for what the text does not say.

    Example:
        >>> cpu = described("vendor_id : GenuineIntel\\ncpu family : 6\\nmodel : 143\\n"
        ...     "model name : Xeon\\nstepping : 8\\nflags : fpu avx2 avx512f amx_bf16\\n")
        >>> cpu.key, cpu.model, cpu.isa
        ('intel-6-amx_bf16', 143, ('avx2', 'avx512f', 'amx_bf16'))
    """
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    vendor = fields.get("vendor_id") or fields.get("CPU implementer", "")
    flags = set((fields.get("flags") or fields.get("Features", "")).split())
    return Processor(
        vendor=_VENDORS.get(vendor, vendor) or "unknown",
        family=_number(fields.get("cpu family") or fields.get("CPU architecture")),
        model=_number(fields.get("model") or fields.get("CPU part")),
        stepping=_number(fields.get("stepping") or fields.get("CPU revision")),
        name=fields.get("model name") or otherwise or "unknown",
        isa=tuple(name for name in ISA if name in flags),
    )


def _number(text: str | None) -> int:
    try:
        return int(text or "", 0)
    except ValueError:
        return 0

"""What a machine can do at best: rates of products by type, and of memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from emulator.errors import DeviceError
from pef_schema.program import DType

__all__ = ["Cache", "Machine", "NoRate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Memory near the processor.

    Args:
        nbytes: What fits into it.
        bandwidth: Bytes a second, in both directions together.
    """

    nbytes: float
    bandwidth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Best rates of a machine.

    Args:
        name: What people call it.
        rates: Operations of products a second, by the type that is multiplied.
        bandwidth: Bytes a second from and to memory, in both directions together.
        caches: For what fits into them; in any order.
    """

    name: str
    rates: tuple[tuple[DType, float], ...]
    bandwidth: float
    caches: tuple[Cache, ...] = ()

    def rate(self, dtype: DType) -> float:
        """Operations of products a second.

        Args:
            dtype: Of what is multiplied.

        Raises:
            NoRate: If none is known.
        """
        for known, rate in self.rates:
            if known is dtype:
                return rate
        raise NoRate(machine=self.name, dtypes=[dtype], known=[d for d, _ in self.rates])

    def check(self, dtypes: Iterable[DType]) -> None:
        """Check that rates are known.

        Args:
            dtypes: Of what is multiplied.

        Raises:
            NoRate: With all types that have none.
        """
        known = {d for d, _ in self.rates}
        missing = [d for d in dict.fromkeys(dtypes) if d not in known]
        if missing:
            raise NoRate(machine=self.name, dtypes=missing, known=[d for d, _ in self.rates])

    def bandwidth_of(self, nbytes: float) -> float:
        """The best rate at which so many bytes move: of memory, or of a cache that holds them.

        Args:
            nbytes: How many.

        Example:
            >>> machine = Machine(
            ...     name="m", rates=(), bandwidth=1e9, caches=(Cache(nbytes=1e6, bandwidth=8e9),)
            ... )
            >>> machine.bandwidth_of(1e6), machine.bandwidth_of(2e6)
            (8000000000.0, 1000000000.0)
        """
        near = [c.bandwidth for c in self.caches if nbytes <= c.nbytes]
        return max([self.bandwidth, *near])


class NoRate(DeviceError):
    """A program multiplies types of which a machine's rate is not known.

    Attributes:
        machine: Name of the machine.
        dtypes: The types.
        known: Types whose rates are known.
    """

    def __init__(self, *, machine: str, dtypes: Iterable[DType], known: Iterable[DType]) -> None:
        self.machine, self.dtypes, self.known = machine, tuple(dtypes), tuple(known)
        wanted = " and ".join(f"{d.name.lower()}_gflops" for d in self.dtypes)
        have = ", ".join(f"{d.name.lower()}_gflops" for d in self.known) or "none"
        super().__init__(
            f"machine {machine}: the program multiplies "
            f"{' and '.join(d.name.lower() for d in self.dtypes)}, whose rate is not known: found "
            f"{have}. Add {wanted} to the machine's file, or measure with --machine this."
        )


def is_rate(value: float) -> bool:
    """Whether a number can be a rate: positive and finite."""
    return math.isfinite(value) and value > 0

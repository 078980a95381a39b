"""The cost of something that a device runs: operations, and bytes to and from memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from emulator.op_facts.flops import Flops
from pef_schema.program import DType

__all__ = ["Cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Operations and bytes.

    Args:
        work: Floating point operations, of products by type and all others, and the ops of which
            nobody has said what they take.
        bytes_read: Bytes that have to come from memory.
        bytes_written: Bytes that have to go there.

    Example:
        >>> cost = Cost(
        ...     work=Flops(products=((DType.FLOAT32, 900),), other=100), bytes_read=150,
        ...     bytes_written=50,
        ... )
        >>> cost.product_flops, cost.flops, cost.nbytes, cost.intensity
        (900, 1000, 200, 5.0)
        >>> (cost + cost).intensity
        5.0
    """

    work: Flops = field(default_factory=Flops)
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def product_flops(self) -> int:
        """Operations of matrix products and convolutions."""
        return self.work.product_flops

    @property
    def other_flops(self) -> int:
        """All other operations."""
        return self.work.other

    @property
    def products(self) -> tuple[tuple[DType, int], ...]:
        """Operations of products, by the type that is multiplied."""
        return self.work.products

    @property
    def unknown(self) -> tuple[str, ...]:
        """Ops that are in no figure."""
        return self.work.unknown

    @property
    def flops(self) -> int:
        """All operations."""
        return self.product_flops + self.other_flops

    @property
    def nbytes(self) -> int:
        """Bytes in both directions."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Operations for each byte; 0 where neither is known, infinite where nothing is moved."""
        if self.nbytes:
            return self.flops / self.nbytes
        return float("inf") if self.flops else 0.0

    def __add__(self, more: Cost) -> Cost:
        """One after the other."""
        return Cost(
            work=self.work + more.work,
            bytes_read=self.bytes_read + more.bytes_read,
            bytes_written=self.bytes_written + more.bytes_written,
        )

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON; an infinite intensity is None."""
        return {
            "product_flops": self.product_flops,
            "other_flops": self.other_flops,
            "product_flops_by_dtype": {d.name.lower(): f for d, f in self.products},
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "intensity": self.intensity if self.nbytes or not self.flops else None,
            "unknown": list(self.unknown),
        }

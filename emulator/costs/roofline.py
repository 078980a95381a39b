"""What something costs, what a machine can do at best, and the time that it cannot go below.

A machine cannot compute faster than its best rate of products, nor move bytes faster than its
memory: the larger of the two times is a bound for whoever computes these products and moves these
bytes. Products of several types follow each other. Other operations are not counted as computing:
they take less time than the bytes that they move. Latency is not modelled: the start of a kernel, a
loop's turns, dependencies between operations. So a small section takes much longer than its bound.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from emulator.errors import DeviceError
from emulator.op_facts.flops import Flops
from pef_schema.program import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Operations and bytes.

    Args:
        work: Floating point operations, of products by type and all others, and the ops
            whose operations are not known.
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
    """The machine's rate is not known for a type that the program multiplies.

    Attributes:
        machine: Name of the machine.
        dtypes: The types.
        known: Types whose rates are known.
    """

    def __init__(self, *, machine: str, dtypes: Iterable[DType], known: Iterable[DType]) -> None:
        self.machine, self.dtypes, self.known = machine, tuple(dtypes), tuple(known)
        keys = " and ".join(f"{d.name.lower()}_gflops" for d in self.dtypes)
        have = ", ".join(f"{d.name.lower()}_gflops" for d in self.known) or "none"
        super().__init__(
            f"machine {machine}: the program multiplies "
            f"{' and '.join(d.name.lower() for d in self.dtypes)}, whose rate is not known: found "
            f"{have}. Add {keys} to the machine's file, or measure with --machine this."
        )


def is_rate(value: float) -> bool:
    """Whether a number can be a rate: positive and finite."""
    return math.isfinite(value) and value > 0


class Binding(enum.Enum):
    """What a bound comes from."""

    PRODUCTS = "products"
    MEMORY = "memory"
    CACHE = "cache"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A time that a machine cannot go below.

    Args:
        compute: Seconds that the products take at the best rate.
        memory: Seconds that the bytes take at the best rate of where they fit.
        binding: Which of both is larger.
    """

    compute: float
    memory: float
    binding: Binding

    @property
    def seconds(self) -> float:
        """The larger of both."""
        return max(self.compute, self.memory)


def bound(cost: Cost, machine: Machine) -> Bound:
    """The time that a machine cannot go below.

    Args:
        cost: What is to be done.
        machine: Who does it.

    Returns:
        The bound.

    Raises:
        NoRate: If the machine's rate of a type is not known.

    Example:
        >>> from emulator.op_facts.flops import Flops
        >>> from pef_schema.program import DType
        >>> machine = Machine(name="m", rates=((DType.FLOAT32, 1e9),), bandwidth=1e8)
        >>> cost = Cost(work=Flops(products=((DType.FLOAT32, 2_000_000),)), bytes_read=100_000)
        >>> result = bound(cost, machine)
        >>> result.seconds, result.memory, result.binding.value
        (0.002, 0.001, 'products')
    """
    machine.check(dtype for dtype, _ in cost.products)
    compute = sum(flops / machine.rate(dtype) for dtype, flops in cost.products)
    rate = machine.bandwidth_of(cost.nbytes)
    memory = cost.nbytes / rate
    if max(compute, memory) == 0:
        binding = Binding.NOTHING
    elif compute >= memory:
        binding = Binding.PRODUCTS
    else:
        binding = Binding.MEMORY if rate == machine.bandwidth else Binding.CACHE
    return Bound(compute=compute, memory=memory, binding=binding)

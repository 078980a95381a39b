"""The roofline: the time that a machine cannot go below, and what keeps it from that.

A machine cannot compute faster than its best rate of products, nor move bytes faster than its
memory: the larger of the two times is a bound for whoever computes these products and moves these
bytes. Products of several types follow each other. What is no product is not counted as computing:
it hides behind the bytes. Latency is not modelled: the start of a kernel, a loop's turns,
dependencies between operations. So a small section takes much longer than its bound.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from emulator.costs.cost import Cost
from emulator.costs.machine import Machine

__all__ = ["Binding", "Bound", "bound"]


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
        >>> found = bound(cost, machine)
        >>> found.seconds, found.memory, found.binding.value
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

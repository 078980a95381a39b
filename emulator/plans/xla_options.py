"""XLA's options for plans, by platform."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_OTHER: Mapping[str, bool] = MappingProxyType(
    {
        # By default XLA:GPU leaves out a rounding to 16 bits that a fusion widens again, so that a
        # script's own `x.bfloat16().float()` gives x. XLA:CPU does not.
        "xla_allow_excess_precision": False,
    }
)
_CPU: Mapping[str, str] = MappingProxyType(
    {
        # By default reductions and chains of elementwise work go to the same library as matrix
        # products, where a log-sum-exp over (1024, 8192) takes 100 ms instead of 30. It is given
        # matrix products alone, each for itself: see docs/performance.md.
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
        # It makes windows of reductions over more than 32 elements, which XLA:CPU runs one by one:
        # emulator/ops/_reduction.py writes them in a form that needs no such pass.
        "xla_disable_hlo_passes": "tree_reduction_rewriter",
        # The order that keeps the fewest bytes alive. By default XLA walks the graph breadth first,
        # for a concurrency that makes no step faster.
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    }
)


def xla_options(device: Any) -> dict[str, Any]:
    """Compiler options for a device, as ``jax.stages.Lowered.compile`` takes them.

    They hold for one executable; nothing global changes.

    Args:
        device: The ``jax.Device`` where the executable runs.

    Returns:
        Options by name. For platforms other than the CPU there is one, which keeps roundings.

    Example:
        >>> import jax
        >>> sorted(xla_options(jax.devices("cpu")[0]))
        ['xla_cpu_experimental_ynn_fusion_type', 'xla_cpu_scheduler_type', 'xla_disable_hlo_passes']
    """
    return dict(_CPU if device.platform == "cpu" else _OTHER)

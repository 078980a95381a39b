"""Helpers of SambaFlow scripts: tracing, measuring, comparing, seeds and ranks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from samba.functional.sn_type import SNType
from samba.random import set_seed
from samba.utils.closeness import assert_close
from samba.utils.misc import (
    create_mac_resource_report,
    fix_rdu_affinity,
    get_file_dir,
    get_rank,
    get_world_size,
    is_main_process,
)
from samba.utils.weight_norm import weight_norm_

if TYPE_CHECKING:
    from samba.comparison.walk import compare
    from samba.utils.measure import measure_performance, measure_sections
    from samba.utils.utils import init_output_grads, trace_graph, trace_multigraph

__all__ = [
    "SNType",
    "assert_close",
    "compare",
    "create_mac_resource_report",
    "fix_rdu_affinity",
    "get_file_dir",
    "get_rank",
    "get_world_size",
    "init_output_grads",
    "is_main_process",
    "measure_performance",
    "measure_sections",
    "set_seed",
    "trace_graph",
    "trace_multigraph",
    "weight_norm_",
]

# Tracing loads torch.export and the compiler: only when a script asks for it.
_LATER = {
    "compare": "samba.comparison.walk",
    "init_output_grads": "samba.utils.utils",
    "trace_graph": "samba.utils.utils",
    "trace_multigraph": "samba.utils.utils",
    "measure_performance": "samba.utils.measure",
    "measure_sections": "samba.utils.measure",
}
_MODULES = (
    *("argparser", "benchmark_acc", "checkpoint", "common", "dataset", "measure", "numeric"),
    *("pef_utils", "read_perf_counters", "tensorboard_debug", "trainer", "utils"),
)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

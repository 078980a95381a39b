"""Helpers of SambaFlow scripts: tracing, measuring, comparing, seeds and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samba.functional.stir import SNType
from samba.random import set_seed
from samba.utils import (
    argparser as argparser,
    benchmark_acc as benchmark_acc,
    checkpoint as checkpoint,
    common as common,
    dataset as dataset,
    measure as measure,
    numeric as numeric,
    pef_utils as pef_utils,
    read_perf_counters as read_perf_counters,
    tensorboard_debug as tensorboard_debug,
    trainer as trainer,
    utils as utils,
)
from samba.utils.elastic_sampler import ElasticSampler
from samba.utils.measure import measure_performance, measure_sections
from samba.utils.misc import (
    create_mac_resource_report,
    fix_rdu_affinity,
    get_file_dir,
    get_rank,
    get_world_size,
    is_main_process,
    parse_dtype,
)
from samba.utils.numeric import assert_close
from samba.utils.training_checkpoint import TrainingCheckpoint
from samba.utils.utils import init_output_grads, trace_graph, trace_multigraph
from samba.utils.weight_norm import weight_norm_

if TYPE_CHECKING:
    from samba.comparison.walk import compare

__all__ = [
    "ElasticSampler",
    "SNType",
    "TrainingCheckpoint",
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
    "parse_dtype",
    "set_seed",
    "trace_graph",
    "trace_multigraph",
    "weight_norm_",
]


def __getattr__(name: str) -> Any:
    if name == "compare":
        from samba.comparison.walk import compare  # noqa: PLC0415  # loads jax and torch.export

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

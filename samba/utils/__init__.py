"""Helpers of SambaFlow scripts: tracing, measuring, comparing, seeds and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samba.functional.sn_type import SNType
from samba.random import set_seed
from samba.utils import (
    argparser as argparser,
)
from samba.utils import (
    benchmark_acc as benchmark_acc,
)
from samba.utils import (
    checkpoint as checkpoint,
)
from samba.utils import (
    common as common,
)
from samba.utils import (
    dataset as dataset,
)
from samba.utils import (
    measure as measure,
)
from samba.utils import (
    numeric as numeric,
)
from samba.utils import (
    pef_utils as pef_utils,
)
from samba.utils import (
    read_perf_counters as read_perf_counters,
)
from samba.utils import (
    tensorboard_debug as tensorboard_debug,
)
from samba.utils import (
    trainer as trainer,
)
from samba.utils import (
    utils as utils,
)
from samba.utils.closeness import assert_close
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

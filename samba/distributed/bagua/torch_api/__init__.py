"""The names of ``bagua.torch_api``; importing this changes nothing.

``samba.distributed.bagua.install`` makes them importable as ``bagua.torch_api``. The module
``tensor`` patches ``torch.Tensor`` when it is imported, as upstream's does.
"""

from __future__ import annotations

from samba.distributed.bagua import algorithms, bucket
from samba.distributed.bagua.torch_api import communication, contrib, distributed, env
from samba.distributed.bagua.torch_api.communication import (
    ReduceOp,
    allgather,
    allgather_inplace,
    allreduce,
    allreduce_inplace,
    alltoall,
    alltoall_inplace,
    alltoall_v,
    alltoall_v_inplace,
    barrier,
    broadcast,
    gather,
    gather_inplace,
    init_process_group,
    recv,
    reduce,
    reduce_inplace,
    reduce_scatter,
    reduce_scatter_inplace,
    scatter,
    scatter_inplace,
    send,
)
from samba.distributed.bagua.torch_api.distributed import BaguaModule
from samba.distributed.bagua.torch_api.env import (
    get_local_rank,
    get_local_size,
    get_rank,
    get_world_size,
)
from samba.distributed.bagua.torch_api.refused import refusing
from samba.distributed.bagua.world import get_backend
from samba.tensor.bagua import BaguaTensor

__all__ = [
    "BaguaModule",
    "BaguaTensor",
    "ReduceOp",
    "algorithms",
    "allgather",
    "allgather_inplace",
    "allreduce",
    "allreduce_inplace",
    "alltoall",
    "alltoall_inplace",
    "alltoall_v",
    "alltoall_v_inplace",
    "barrier",
    "broadcast",
    "bucket",
    "communication",
    "contrib",
    "distributed",
    "env",
    "gather",
    "gather_inplace",
    "get_backend",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "recv",
    "reduce",
    "reduce_inplace",
    "reduce_scatter",
    "reduce_scatter_inplace",
    "scatter",
    "scatter_inplace",
    "send",
]

__getattr__ = refusing(__name__, "bagua.torch_api")

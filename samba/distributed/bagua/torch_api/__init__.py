"""The names of ``bagua.torch_api``; importing this changes nothing.

``samba.distributed.bagua.install`` makes them importable as ``bagua.torch_api``. The module
``tensor`` patches ``torch.Tensor`` when it is imported, as upstream's does.
"""

from samba.distributed.bagua import (
    algorithms as algorithms,
    bucket as bucket,
)
from samba.distributed.bagua.torch_api import (
    communication as communication,
    contrib as contrib,
    distributed as distributed,
    env as env,
)
from samba.distributed.bagua.torch_api.communication import (
    ReduceOp as ReduceOp,
    allgather as allgather,
    allgather_inplace as allgather_inplace,
    allreduce as allreduce,
    allreduce_inplace as allreduce_inplace,
    alltoall as alltoall,
    alltoall_inplace as alltoall_inplace,
    alltoall_v as alltoall_v,
    alltoall_v_inplace as alltoall_v_inplace,
    barrier as barrier,
    broadcast as broadcast,
    gather as gather,
    gather_inplace as gather_inplace,
    init_process_group as init_process_group,
    recv as recv,
    reduce as reduce,
    reduce_inplace as reduce_inplace,
    reduce_scatter as reduce_scatter,
    reduce_scatter_inplace as reduce_scatter_inplace,
    scatter as scatter,
    scatter_inplace as scatter_inplace,
    send as send,
)
from samba.distributed.bagua.torch_api.distributed import BaguaModule as BaguaModule
from samba.distributed.bagua.torch_api.env import (
    get_local_rank as get_local_rank,
    get_local_size as get_local_size,
    get_rank as get_rank,
    get_world_size as get_world_size,
)
from samba.distributed.bagua.torch_api.refused import refusing as _refusing
from samba.distributed.bagua.world import get_backend as get_backend
from samba.tensor.bagua import BaguaTensor as BaguaTensor

__getattr__ = _refusing(__name__, "bagua.torch_api")

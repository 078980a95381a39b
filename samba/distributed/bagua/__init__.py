"""Bagua's tensors, buckets and algorithms: training with replicas that communicate.

Example::

    from samba.distributed import bagua

    model = bagua.with_bagua(model, [optimizer], bagua.GradientAllReduceAlgorithm())

The names are those of ``bagua.torch_api``, which ``samba.distributed.bagua.install`` makes
importable under that name for Bagua's own scripts. Importing this package changes nothing:
``torch.Tensor`` gets Bagua's methods by ``bagua.enable_bagua_tensors()``; without it, the functions
here take any tensor.
"""

from samba.distributed.bagua.algorithms import (
    Algorithm,
    AsyncModelAverageAlgorithm,
    ByteGradAlgorithm,
    DecentralizedAlgorithm,
    GradientAllReduceAlgorithm,
    LowPrecisionDecentralizedAlgorithm,
    QAdamAlgorithm,
    QAdamOptimizer,
)
from samba.distributed.bagua.bucket import BaguaBucket, BucketError
from samba.distributed.bagua.regions import region_closures
from samba.distributed.bagua.session import with_session
from samba.distributed.bagua.training import with_bagua
from samba.distributed.bagua.world import (
    BaguaBackend,
    get_backend,
    get_rank,
    get_world_size,
    use_communicator,
)
from samba.tensor.bagua import (
    BaguaTensor,
    bagua_backend_tensor,
    bagua_ensure_grad,
    bagua_getter_closure,
    bagua_mark_communication_ready,
    bagua_mark_communication_ready_without_synchronization,
    bagua_set_storage,
    bagua_setter_closure,
    disable_bagua_tensors,
    enable_bagua_tensors,
    ensure_bagua_tensor,
    find_bagua_tensor,
    is_bagua_tensor,
    to_bagua_tensor,
)

__all__ = [
    "Algorithm",
    "AsyncModelAverageAlgorithm",
    "BaguaBackend",
    "BaguaBucket",
    "BaguaTensor",
    "BucketError",
    "ByteGradAlgorithm",
    "DecentralizedAlgorithm",
    "GradientAllReduceAlgorithm",
    "LowPrecisionDecentralizedAlgorithm",
    "QAdamAlgorithm",
    "QAdamOptimizer",
    "bagua_backend_tensor",
    "bagua_ensure_grad",
    "bagua_getter_closure",
    "bagua_mark_communication_ready",
    "bagua_mark_communication_ready_without_synchronization",
    "bagua_set_storage",
    "bagua_setter_closure",
    "disable_bagua_tensors",
    "enable_bagua_tensors",
    "ensure_bagua_tensor",
    "find_bagua_tensor",
    "get_backend",
    "get_rank",
    "get_world_size",
    "is_bagua_tensor",
    "region_closures",
    "to_bagua_tensor",
    "use_communicator",
    "with_bagua",
    "with_session",
]

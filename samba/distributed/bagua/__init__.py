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
    Algorithm as Algorithm,
    AsyncModelAverageAlgorithm as AsyncModelAverageAlgorithm,
    ByteGradAlgorithm as ByteGradAlgorithm,
    DecentralizedAlgorithm as DecentralizedAlgorithm,
    GradientAllReduceAlgorithm as GradientAllReduceAlgorithm,
    LowPrecisionDecentralizedAlgorithm as LowPrecisionDecentralizedAlgorithm,
    QAdamAlgorithm as QAdamAlgorithm,
    QAdamOptimizer as QAdamOptimizer,
)
from samba.distributed.bagua.bucket import (
    BaguaBucket as BaguaBucket,
    BucketError as BucketError,
)
from samba.distributed.bagua.session import (
    region_closures as region_closures,
    with_session as with_session,
)
from samba.distributed.bagua.training import with_bagua as with_bagua
from samba.distributed.bagua.world import (
    BaguaBackend as BaguaBackend,
    get_backend as get_backend,
    get_rank as get_rank,
    get_world_size as get_world_size,
    use_communicator as use_communicator,
)
from samba.tensor.bagua import (
    BaguaTensor as BaguaTensor,
    bagua_backend_tensor as bagua_backend_tensor,
    bagua_ensure_grad as bagua_ensure_grad,
    bagua_getter_closure as bagua_getter_closure,
    bagua_mark_communication_ready as bagua_mark_communication_ready,
    bagua_mark_communication_ready_without_synchronization as bagua_mark_communication_ready_without_synchronization,  # noqa: E501  # so long a name
    bagua_set_storage as bagua_set_storage,
    bagua_setter_closure as bagua_setter_closure,
    disable_bagua_tensors as disable_bagua_tensors,
    enable_bagua_tensors as enable_bagua_tensors,
    ensure_bagua_tensor as ensure_bagua_tensor,
    find_bagua_tensor as find_bagua_tensor,
    is_bagua_tensor as is_bagua_tensor,
    to_bagua_tensor as to_bagua_tensor,
)

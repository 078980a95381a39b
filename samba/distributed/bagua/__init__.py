"""Bagua's tensors, buckets and algorithms: training with replicas that communicate.

Example::

    from samba.distributed import bagua

    model = bagua.with_bagua(model, [optimizer], bagua.GradientAllReduceAlgorithm())

The names are those of ``bagua.torch_api``. Importing this changes nothing: ``torch.Tensor`` gets
Bagua's methods by ``bagua.enable_bagua_tensors()``; without it, the functions here take any tensor.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samba.distributed.bagua.algorithms import Algorithm as Algorithm
    from samba.distributed.bagua.algorithms import (
        AsyncModelAverageAlgorithm as AsyncModelAverageAlgorithm,
    )
    from samba.distributed.bagua.algorithms import ByteGradAlgorithm as ByteGradAlgorithm
    from samba.distributed.bagua.algorithms import DecentralizedAlgorithm as DecentralizedAlgorithm
    from samba.distributed.bagua.algorithms import (
        GradientAllReduceAlgorithm as GradientAllReduceAlgorithm,
    )
    from samba.distributed.bagua.algorithms import (
        LowPrecisionDecentralizedAlgorithm as LowPrecisionDecentralizedAlgorithm,
    )
    from samba.distributed.bagua.algorithms import QAdamAlgorithm as QAdamAlgorithm
    from samba.distributed.bagua.algorithms import QAdamOptimizer as QAdamOptimizer
    from samba.distributed.bagua.backend import BaguaBackend as BaguaBackend
    from samba.distributed.bagua.bucket import BaguaBucket as BaguaBucket
    from samba.distributed.bagua.bucket import BucketError as BucketError
    from samba.distributed.bagua.regions import region_closures as region_closures
    from samba.distributed.bagua.session import with_session as with_session
    from samba.distributed.bagua.training import with_bagua as with_bagua
    from samba.distributed.bagua.world import get_backend as get_backend
    from samba.distributed.bagua.world import get_rank as get_rank
    from samba.distributed.bagua.world import get_world_size as get_world_size
    from samba.distributed.bagua.world import use_communicator as use_communicator
    from samba.tensor.bagua import BaguaTensor as BaguaTensor
    from samba.tensor.bagua import bagua_backend_tensor as bagua_backend_tensor
    from samba.tensor.bagua import bagua_ensure_grad as bagua_ensure_grad
    from samba.tensor.bagua import bagua_getter_closure as bagua_getter_closure
    from samba.tensor.bagua import (
        bagua_mark_communication_ready as bagua_mark_communication_ready,
    )
    from samba.tensor.bagua import (
        bagua_mark_communication_ready_without_synchronization as bagua_mark_communication_ready_without_synchronization,  # noqa: E501  # upstream's name
    )
    from samba.tensor.bagua import bagua_set_storage as bagua_set_storage
    from samba.tensor.bagua import bagua_setter_closure as bagua_setter_closure
    from samba.tensor.bagua import disable_bagua_tensors as disable_bagua_tensors
    from samba.tensor.bagua import enable_bagua_tensors as enable_bagua_tensors
    from samba.tensor.bagua import ensure_bagua_tensor as ensure_bagua_tensor
    from samba.tensor.bagua import find_bagua_tensor as find_bagua_tensor
    from samba.tensor.bagua import is_bagua_tensor as is_bagua_tensor
    from samba.tensor.bagua import to_bagua_tensor as to_bagua_tensor

_TENSOR = (
    "BaguaTensor bagua_backend_tensor bagua_ensure_grad bagua_getter_closure bagua_set_storage "
    "bagua_mark_communication_ready bagua_mark_communication_ready_without_synchronization "
    "bagua_setter_closure disable_bagua_tensors enable_bagua_tensors ensure_bagua_tensor "
    "find_bagua_tensor is_bagua_tensor to_bagua_tensor"
)
_HOME = {
    "tensor": _TENSOR,
    "backend": "BaguaBackend",
    "bucket": "BaguaBucket BucketError",
    "regions": "region_closures",
    "session": "with_session",
    "training": "with_bagua",
    "world": "get_backend get_rank get_world_size use_communicator",
    "algorithms": "Algorithm AsyncModelAverageAlgorithm ByteGradAlgorithm DecentralizedAlgorithm "
    "GradientAllReduceAlgorithm LowPrecisionDecentralizedAlgorithm QAdamAlgorithm QAdamOptimizer",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    # SambaTensor needs the mixin; nobody who has no use for Bagua waits for the rest.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

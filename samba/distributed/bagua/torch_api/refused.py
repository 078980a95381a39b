"""What upstream's package has and this one has not, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_LAUNCH = "start the replicas with `python -m samba launch -n N SCRIPT`, or torchrun."
_SAMPLER = "use torch.utils.data.DistributedSampler, or sambaflow.samba.utils.ElasticSampler."

REFUSED: Mapping[str, str] = {
    "bagua.distributed": _LAUNCH,
    "bagua.script": _LAUNCH,
    "bagua.service": "no service tunes buckets; BAGUA_DEFAULT_BUCKET_SIZE sets their size.",
    "bagua.bagua_define": "no service tunes buckets; BAGUA_DEFAULT_BUCKET_SIZE sets their size.",
    "bagua.pytorch_lightning": "call model.with_bagua in a training loop of torch.",
    "bagua.torch_api.checkpoint": "it is for mixtures of experts; use torch.save and torch.load.",
    "bagua.torch_api.data_parallel": "call model.with_bagua([optimizer], algorithm).",
    "bagua.torch_api.model_parallel": "a mixture of experts is not divided among ranks.",
    "bagua.torch_api.moe": "a mixture of experts is not divided among ranks.",
    "bagua.torch_api.utils": "it holds internal functions of the original package.",
    "bagua.torch_api.contrib.sync_batchnorm": "each rank has batch statistics of its own.",
    "bagua.torch_api.contrib.load_balancing_data_loader": _SAMPLER,
    "bagua.torch_api.contrib.LoadBalancingDistributedSampler": _SAMPLER,
    "bagua.torch_api.contrib.LoadBalancingDistributedBatchSampler": _SAMPLER,
    "bagua.torch_api.contrib.utils": "CacheLoader keeps values in memory, without a store.",
}
"""Why, and what to do, by upstream's name; what lies below a name is refused with it."""


def refusing(module: str, place: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module, which says why it has not what upstream's has.

    Args:
        module: Its name.
        place: Upstream's name of it.
    """

    def __getattr__(name: str) -> Any:
        reason = REFUSED.get(f"{place}.{name}")
        if reason is not None:
            raise AttributeError(f"{place}.{name} is not in this package: {reason}", name=name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)

    return __getattr__

"""Upstream's additions: a cache of samples, and optimizers that update all parameters at once."""

from samba.distributed.bagua.torch_api.contrib.cache_loader import CacheLoader
from samba.distributed.bagua.torch_api.contrib.cached_dataset import CachedDataset
from samba.distributed.bagua.torch_api.contrib.fuse.optimizer import fuse_optimizer
from samba.distributed.bagua.torch_api.refused import refusing

__all__ = ["CacheLoader", "CachedDataset", "fuse_optimizer"]

__getattr__ = refusing(__name__, "bagua.torch_api.contrib")

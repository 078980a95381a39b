"""A dataset whose samples are computed once."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from samba.distributed.bagua.torch_api.contrib.cache_loader import CacheLoader


class CachedDataset(Dataset[Any]):
    """Samples of a dataset, kept by a :class:`CacheLoader`.

    Args:
        dataset: The dataset.
        backend: As for the loader.
        dataset_name: As for the loader.
        writer_buffer_size: As for the loader.
        kwargs: The loader's other arguments.

    Attributes:
        dataset: The dataset.
        cache_loader: The loader.

    Example:
        >>> CachedDataset([1, 2, 3])[1]
        2
    """

    def __init__(
        self,
        dataset: Any,
        backend: str = "redis",
        dataset_name: str = "",
        writer_buffer_size: int = 20,
        **kwargs: Any,
    ) -> None:
        self.dataset = dataset
        self.cache_loader = CacheLoader(backend, dataset_name, writer_buffer_size, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.cache_loader.get(index, self.dataset.__getitem__)

    def __len__(self) -> int:
        return len(self.dataset)

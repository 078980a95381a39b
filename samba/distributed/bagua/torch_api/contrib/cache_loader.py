"""A cache of values that take long to compute."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from samba.errors import ArgumentError

_CAPACITY = 107_374_182_400
"""Upstream's default, 100 GiB."""


class CacheLoader:
    """Keeps values by their keys, as pickled bytes in the memory of this process.

    Upstream keeps them in Redis servers, which it starts itself unless it is told of some. Here no
    server is started: processes, also those of a ``DataLoader``, compute a value once each.

    Args:
        backend: ``"redis"``, as upstream's scripts say.
        dataset_name: Part of the keys upstream, where servers are shared; not needed here.
        writer_buffer_size: Not needed here: each value is kept at once.
        hosts: None: servers are not supported.
        cluster_mode: Not needed here.
        capacity_per_node: Bytes; a value that would exceed them is not kept.

    Raises:
        ArgumentError: If another backend is asked for, or servers are named.

    Example:
        >>> loader = CacheLoader()
        >>> loader.get("a", lambda key: key * 2), loader.get("a", lambda key: "not called")
        ('aa', 'aa')
        >>> loader.num_keys()
        1
    """

    def __init__(
        self,
        backend: str = "redis",
        dataset_name: str = "",
        writer_buffer_size: int = 1,
        *,
        hosts: Any = None,
        cluster_mode: bool = True,
        capacity_per_node: int = _CAPACITY,
    ) -> None:
        if backend != "redis" or hosts is not None:
            raise ArgumentError(
                where="CacheLoader",
                found=f"backend {backend!r}, hosts {hosts!r}",
                wanted="backend 'redis' without hosts: values are kept in this process",
            )
        self.backend, self.dataset_name = backend, dataset_name
        self._capacity, self._used = capacity_per_node, 0
        self._values: dict[Any, bytes] = {}

    def get(self, key: Any, load_fn: Callable[[Any], Any]) -> Any:
        """The value of a key.

        Args:
            key: The key.
            load_fn: Computes the value from the key where it is not kept.

        Returns:
            The value; a copy of its own where it is kept.
        """
        cached = self._values.get(key)
        if cached is not None:
            return pickle.loads(cached)  # noqa: S301  # what this object has pickled itself
        value = load_fn(key)
        data = pickle.dumps(value)
        if self._used + len(data) <= self._capacity:
            self._values[key] = data
            self._used += len(data)
        return value

    def num_keys(self) -> int:
        """How many values are kept."""
        return len(self._values)

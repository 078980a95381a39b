"""A model as algorithms see it, wherever the model lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.moments import Moments
from samba.distributed.bagua.world import World
from samba.optim.qadam import QAdamOptimizer
from samba.tensor.bagua_handle import Closures


class TrainedModel(ABC):
    """A model that trains together with its replicas.

    Parameters are the proxies of all its Bagua tensors. Where the effective ones live, in torch or
    on a device, is what subclasses know.

    Args:
        parameters: The trained parameters by name, shared ones once.
        optimizers: Its optimizers.
        module_name: Name of the model, the same on all ranks.
        world: The ranks.

    Attributes:
        buckets: Buckets in the order of communication.
        backend: Who communicates them.
        step: How many training steps have begun.
    """

    def __init__(
        self,
        *,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        module_name: str,
        world: World,
    ) -> None:
        self.parameters, self.optimizers = dict(parameters), list(optimizers)
        self.module_name = module_name
        self.rank, self.size = world.rank, world.size
        self.backend = world.backend(module_name)
        self.buckets: list[BaguaBucket] = []
        self.step = 0

    @abstractmethod
    def gradient(self, name: str) -> Closures:
        """Closures of a parameter's gradient, which exists when this returns.

        Args:
            name: Name of the parameter.
        """

    @abstractmethod
    def weight(self, name: str) -> Closures:
        """Closures of a parameter's values.

        Args:
            name: Name of the parameter.
        """

    @abstractmethod
    def moments(self, optimizer: QAdamOptimizer) -> Moments:
        """First moments of the parameters.

        Args:
            optimizer: Who changes them.

        Raises:
            ArgumentError: If it does not change all of them.
        """

"""The base of algorithms: what they see of a model, and the points of a step at which they act."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.world import World
from samba.distributed.settings import bucket_bytes
from samba.errors import ArgumentError
from samba.optim.qadam import QAdamOptimizer
from samba.tensor.bagua import handle_of, register
from samba.tensor.bagua_handle import Closures, Getter, Setter


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """First moments of Adam, as qadam asks for them.

    Args:
        warming: Tells whether the next step is one of the warm-up.
        closures: Closures of the first moment of each parameter, by the parameter's name.
        rate: Tells how far the moment of a parameter moves towards its gradient.
    """

    warming: Callable[[], bool]
    closures: Mapping[str, tuple[Getter, Setter]]
    rate: Callable[[str], float]


class TrainedModel(ABC):
    """A model that trains together with its replicas.

    Parameters are the proxies of all its Bagua tensors. Where the effective ones live, in torch or
    on a device, is what subclasses know.

    Args:
        parameters: The trained parameters by name, shared ones once.
        optimizers: Its optimizers.
        module_name: Name of the model, the same on all ranks.
        world: The ranks.
        flatten: Whether buckets move their tensors into one piece of memory.

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
        flatten: bool = True,
    ) -> None:
        self.flatten = flatten
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


_registry: dict[str, type[Algorithm]] = {}


class Algorithm:
    """A rule of what replicas communicate, and when. The base communicates nothing.

    A training loop calls the methods; ``trained`` is what it knows of the model.

    Attributes:
        name: What :meth:`init` knows it by.
        aligned: Whether every rank has an equal part of each bucket, so that padding fills it up.
    """

    name: ClassVar[str] = ""
    aligned: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("name"):  # its own name: a subclass must not replace its base
            _registry[cls.name] = cls

    @classmethod
    def init(cls, name: str, **kwargs: Any) -> Algorithm:
        """Make an algorithm by its name.

        Args:
            name: For example ``"gradient_allreduce"``.
            kwargs: Arguments of its class.

        Raises:
            ArgumentError: If there is no such algorithm.

        Example:
            >>> Algorithm.init("gradient_allreduce", average=False).average
            False
        """
        if name not in _registry:
            raise ArgumentError(
                where="Algorithm.init", found=repr(name), wanted=", ".join(sorted(_registry))
            )
        return _registry[name](**kwargs)

    def need_reset(self) -> bool:
        """Whether tensors, buckets and operations must be made again before the next forward."""
        return False

    def init_tensors(self, trained: TrainedModel) -> list[torch.Tensor]:
        """Register what is communicated, in the order in which it becomes ready.

        Args:
            trained: The model.

        Returns:
            The Bagua tensors.
        """
        return gradients_of(trained)

    def tensors_to_buckets(
        self, tensors: Sequence[torch.Tensor], trained: TrainedModel
    ) -> list[BaguaBucket]:
        """Put tensors into buckets.

        Args:
            tensors: What :meth:`init_tensors` returned.
            trained: The model.
        """
        return fill_buckets(
            tensors,
            self.bucket_limit(),
            trained.size if self.aligned else 1,
            flatten=trained.flatten,
        )

    def bucket_limit(self) -> float:
        """Bytes up to which tensors share a bucket; a larger tensor has one for itself."""
        return bucket_bytes()

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        """Append a bucket's operations.

        Args:
            bucket: The bucket, without any.
            trained: The model.
        """

    def before_forward(self, trained: TrainedModel) -> None:
        """Called before the forward pass of a training step."""

    def gradient_ready(self, parameter: torch.nn.Parameter, trained: TrainedModel) -> None:
        """Called when the backward pass has a parameter's gradient."""

    def after_backward(self, trained: TrainedModel) -> None:
        """Called when the backward pass is over."""

    def before_optimizer_step(
        self, trained: TrainedModel, optimizer: torch.optim.Optimizer
    ) -> None:
        """Called when an optimizer is about to change its parameters."""

    def after_optimizer_step(self, trained: TrainedModel, optimizer: torch.optim.Optimizer) -> None:
        """Called when an optimizer has changed its parameters."""

    def weights_were_set(self) -> None:
        """Called when the host has given all ranks other weights than training gave them."""

    def stop(self, trained: TrainedModel) -> None:
        """Called when another algorithm takes over."""


def register_buckets(algorithm: Algorithm, trained: TrainedModel) -> None:
    """Register tensors and buckets of a model as an algorithm wants them now.

    Args:
        algorithm: The algorithm.
        trained: The model; it has the new buckets afterwards.
    """
    trained.backend.wait_pending_comm_ops()
    tensors = algorithm.init_tensors(trained)
    trained.buckets = algorithm.tensors_to_buckets(tensors, trained)
    for bucket in trained.buckets:
        bucket.clear_ops()
        algorithm.init_operations(bucket, trained)
    trained.backend.register_ordered_buckets(trained.buckets)


def gradients_of(trained: TrainedModel) -> list[torch.Tensor]:
    """Register gradients, the last parameter first: so backward passes finish them."""
    return [
        register(p, name, trained.module_name, *trained.gradient(name))
        for name, p in reversed(trained.parameters.items())
    ]


def weights_of(trained: TrainedModel) -> list[torch.Tensor]:
    """Register the weights themselves."""
    return [
        register(p, name, trained.module_name, *trained.weight(name))
        for name, p in trained.parameters.items()
    ]


def fill_buckets(
    tensors: Sequence[torch.Tensor],
    limit: float,
    alignment: int = 1,
    *,
    flatten: bool = True,
) -> list[BaguaBucket]:
    """Put tensors into buckets in their order, those of a type together.

    Args:
        tensors: Bagua tensors.
        limit: Size of a bucket in bytes; a larger tensor has one for itself.
        alignment: What each bucket's number of elements is a multiple of.
        flatten: Whether each moves its tensors into one piece of memory.
    """
    groups: list[list[torch.Tensor]] = []
    filling: dict[torch.dtype, tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        effective = handle_of(tensor).effective()
        size = effective.numel() * effective.element_size()
        group, used = filling.get(effective.dtype, ([], 0))
        if not group or used + size > limit:
            group, used = [], 0
            groups.append(group)
        group.append(tensor)
        filling[effective.dtype] = group, used + size
    return [BaguaBucket(g, f"{i}", flatten, alignment) for i, g in enumerate(groups)]

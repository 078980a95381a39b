"""The base of algorithms: the points of a training step at which they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.trained_model import TrainedModel
from samba.distributed.settings import bucket_bytes
from samba.errors import ArgumentError
from samba.tensor.bagua import (
    bagua_mark_communication_ready,
    handle_of,
    register,
)

_registry: dict[str, type[Algorithm]] = {}


class Algorithm:
    """A rule of what replicas communicate, and when. The base communicates nothing.

    A training loop calls the methods; ``trained`` is what it knows of the model.
    """

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("name"):  # of its own: a subclass takes nobody's place
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
        """Whether tensors, buckets and operations must be made anew before the next forward."""
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
        return fill_buckets(tensors, bucket_bytes())

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


class GradientAlgorithm(Algorithm):
    """Communicates each parameter's effective tensor when its gradient is there."""

    def gradient_ready(self, parameter: torch.nn.Parameter, trained: TrainedModel) -> None:
        bagua_mark_communication_ready(parameter)

    def after_backward(self, trained: TrainedModel) -> None:
        trained.backend.wait_pending_comm_ops()


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
) -> list[BaguaBucket]:
    """Put tensors into buckets in their order, those of a type together.

    Args:
        tensors: Bagua tensors.
        limit: Size of a bucket in bytes; a larger tensor has one for itself.
        alignment: What each bucket's number of elements is a multiple of.
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
    return [BaguaBucket(g, f"{i}", alignment=alignment) for i, g in enumerate(groups)]

"""``model.with_bagua(…)`` as a method, and what a model knows of it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from samba.distributed.bagua.algorithms import Algorithm
from samba.distributed.bagua.torch_api.groups import BaguaProcessGroup
from samba.distributed.bagua.training import is_trained_model, trained_model_of, with_bagua
from samba.errors import ArgumentError


class _OfTrained:
    """An attribute of models that :func:`with_bagua` was called with, and of no others.

    It is not a property: TorchScript would compile one with each model.

    Args:
        source: Name of the attribute of :class:`TorchTrainedModel` that it reads.
    """

    def __init__(self, source: str) -> None:
        self._source, self._name = source, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, model: nn.Module | None, owner: type) -> Any:
        if model is None:
            return self
        if not is_trained_model(model):
            raise AttributeError(
                f"{type(model).__name__}.{self._name}: call with_bagua first.", name=self._name
            )
        return getattr(trained_model_of(model), self._source)


class BaguaModule:
    """What ``samba.distributed.bagua.install`` gives to ``torch.nn.Module``."""

    def with_bagua(
        self: Any,
        optimizers: Sequence[torch.optim.Optimizer],
        algorithm: Algorithm,
        process_group: BaguaProcessGroup | None = None,
        do_flatten: bool = True,
    ) -> Any:
        """:func:`samba.distributed.bagua.with_bagua` as a method.

        Args:
            optimizers: The model's optimizers.
            algorithm: What replicas communicate, and when.
            process_group: None, or a group of all ranks.
            do_flatten: Whether buckets move gradients, or weights, into one piece of memory.

        Returns:
            The model.

        Raises:
            ArgumentError: If the group has not all ranks, if parameters are to be left out, or as
                the function does.
        """
        if process_group is not None and not process_group.is_whole():
            raise ArgumentError(
                where="with_bagua(process_group=…)",
                found=f"a group of ranks {list(process_group.ranks)}",
                wanted="all ranks",
            )
        ignored = self.__dict__.get("_bagua_params_and_buffers_to_ignore")
        if ignored:
            raise ArgumentError(
                where="with_bagua",
                found=f"_bagua_params_and_buffers_to_ignore = {list(ignored)}",
                wanted="none",
                hint="A parameter with requires_grad=False is not communicated.",
            )
        name = self.__dict__.get("bagua_module_name")
        return with_bagua(self, optimizers, algorithm, name, do_flatten=do_flatten)

    bagua_algorithm = _OfTrained("algorithm")
    """The algorithm."""
    bagua_optimizers = _OfTrained("optimizers")
    """The optimizers."""
    bagua_buckets = _OfTrained("buckets")
    """The buckets, in the order in which they are communicated."""
    bagua_train_step_counter = _OfTrained("step")
    """How many training steps have begun."""

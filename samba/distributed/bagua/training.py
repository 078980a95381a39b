"""A torch training loop whose replicas communicate: autograd hooks call the algorithm."""

from __future__ import annotations

import io
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable

from emulator.replicas.comm.protocol import Communicator
from samba.distributed.bagua.algorithms.base import (
    Algorithm,
    Moments,
    TrainedModel,
    register_buckets,
)
from samba.distributed.bagua.world import World, current_world
from samba.errors import ArgumentError
from samba.optim.qadam import QAdamOptimizer
from samba.tensor.bagua import bagua_ensure_grad
from samba.tensor.bagua_handle import Closures
from samba.tensor.views import view_detached, view_flat_as_numpy

M = TypeVar("M", bound=nn.Module)

_trained: weakref.WeakKeyDictionary[nn.Module, TorchTrainedModel] = weakref.WeakKeyDictionary()


def gradient_of(parameter: Any) -> torch.Tensor:
    """Getter closure: the parameter's gradient."""
    return parameter.grad


def set_gradient(parameter: Any, value: torch.Tensor) -> None:
    """Setter closure: replaces the parameter's gradient."""
    parameter.grad = value


class TorchTrainedModel(TrainedModel):
    """A model that torch trains: its tensors are the parameters and their gradients.

    Args:
        model: The model.
        optimizers: Its optimizers.
        algorithm: What replicas communicate, and when.
        module_name: Name of the model, the same on all ranks.
        world: The ranks.
        flatten: Whether buckets move their tensors into one piece of memory.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        algorithm: Algorithm,
        module_name: str,
        world: World,
        *,
        flatten: bool,
    ) -> None:
        super().__init__(
            parameters={n: p for n, p in model.named_parameters() if p.requires_grad},
            optimizers=optimizers,
            module_name=module_name,
            world=world,
            flatten=flatten,
        )
        self.algorithm = algorithm
        self._seen: set[int] = set()
        self._pass = -1
        self._hooks: list[Any] = []

    def gradient(self, name: str) -> Closures:
        bagua_ensure_grad(self.parameters[name])
        return gradient_of, set_gradient

    def weight(self, name: str) -> Closures:
        return None, None

    def moments(self, optimizer: QAdamOptimizer) -> Moments:
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        missing = [name for name, p in self.parameters.items() if id(p) not in groups]
        if missing:
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"parameters {missing} that the optimizer does not have",
                wanted="all trained parameters in the QAdamOptimizer",
            )

        def moment(parameter: Any) -> torch.Tensor:
            return optimizer.state_of(parameter)["exp_avg"]

        def set_moment(parameter: Any, value: torch.Tensor) -> None:
            optimizer.state_of(parameter)["exp_avg"] = value

        return Moments(
            warming=lambda: optimizer.steps_done < optimizer.warmup_steps,
            closures=dict.fromkeys(self.parameters, (moment, set_moment)),
            rate=lambda name: 1 - groups[id(self.parameters[name])]["betas"][0],
        )

    def hook(self, model: nn.Module) -> None:
        """Have the algorithm called at the points of a training step.

        Args:
            model: The model.
        """
        self._hooks.append(model.register_forward_pre_hook(self._before_forward))
        for parameter in self.parameters.values():
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._gradient_ready))
        for optimizer in self.optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
            self._hooks.append(optimizer.register_step_post_hook(self._after_step))

    def release(self) -> None:
        """Leave the model as it was: nothing is communicated any more."""
        self.algorithm.stop(self)
        self.backend.wait_pending_comm_ops()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before_forward(self, model: nn.Module, _: Any) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        if self.algorithm.need_reset():
            register_buckets(self.algorithm, self)
        self.algorithm.before_forward(self)
        self.step += 1

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        running = torch._C._current_graph_task_id()
        if running != self._pass:  # no flag, which a pass that fails would leave behind
            self._pass, self._seen = running, set()
            Variable._execution_engine.queue_callback(self._after_backward)
        self._seen.add(id(parameter))
        self.algorithm.gradient_ready(parameter, self)

    def _after_backward(self) -> None:
        for parameter in self.parameters.values():
            if id(parameter) not in self._seen:
                # Unused in this step, here; other ranks may have used it and wait for it.
                self.algorithm.gradient_ready(bagua_ensure_grad(parameter), self)
        self.algorithm.after_backward(self)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.algorithm.before_optimizer_step(self, optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.algorithm.after_optimizer_step(self, optimizer)


_counters: weakref.WeakKeyDictionary[World, itertools.count[int]] = weakref.WeakKeyDictionary()


def with_bagua(
    model: M,
    optimizers: Sequence[torch.optim.Optimizer],
    algorithm: Algorithm,
    module_name: str | None = None,
    *,
    do_flatten: bool = True,
) -> M:
    """Train a model together with its replicas; all ranks call this together.

    Rank 0's parameters, buffers and optimizer states are broadcast. From then on forward passes in
    training mode, backward passes and optimizer steps communicate as the algorithm says. A second
    call exchanges the algorithm.

    Args:
        model: The model.
        optimizers: Its optimizers.
        algorithm: What replicas communicate, and when.
        module_name: Name of the model, the same on all ranks; numbered in the order of calls if
            None.
        do_flatten: Whether buckets move gradients, or weights, into one piece of memory, so that
            nothing is copied when they are communicated.

    Returns:
        The model.

    Raises:
        ArgumentError: If no parameter of the model is trained.
        DataParallelError: If a rank does not take part.
    """
    world = current_world()
    old = _trained.pop(model, None)
    if old is not None:
        old.release()
        module_name = old.module_name
    if module_name is None:
        number = next(_counters.setdefault(world, itertools.count()))
        module_name = f"{type(model).__name__}_{number}"
    trained = TorchTrainedModel(
        model, optimizers, algorithm, module_name, world, flatten=do_flatten
    )
    if not trained.parameters:
        raise ArgumentError(
            where="with_bagua",
            found=f"{type(model).__name__}, which has no trained parameters",
            wanted="at least one parameter with requires_grad",
        )
    broadcast_state(model, optimizers, trained.backend.hierarchy.whole)
    register_buckets(algorithm, trained)
    trained.hook(model)
    _trained[model] = trained
    model.bagua_module_name = module_name  # pyright: ignore[reportArgumentType]  # torch knows tensors and modules only
    return model


def is_trained_model(model: nn.Module) -> bool:
    """Whether :func:`with_bagua` was called with a model."""
    return model in _trained


def trained_model_of(model: nn.Module) -> TorchTrainedModel:
    """The model as :func:`with_bagua` has its algorithm see it.

    Raises:
        ArgumentError: If it was not called.
    """
    if model not in _trained:
        raise ArgumentError(
            where="trained_model_of",
            found=type(model).__name__,
            wanted="a model of with_bagua",
        )
    return _trained[model]


def broadcast_state(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], comm: Communicator
) -> None:
    """Give all ranks rank 0's parameters, buffers and optimizer states.

    Args:
        model: The model.
        optimizers: Its optimizers.
        comm: The ranks.
    """
    if comm.size == 1:
        return
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        values = view_detached(tensor).contiguous()
        comm.broadcast(view_flat_as_numpy(values))
        view_detached(tensor).copy_(values)
    for optimizer in optimizers:
        state = _broadcast_bytes(comm, lambda o=optimizer: _packed(o.state_dict()))
        if comm.rank != 0:
            optimizer.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))


def _packed(state: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def _broadcast_bytes(comm: Communicator, make: Callable[[], bytes]) -> bytes:
    data = make() if comm.rank == 0 else b""
    length = np.array([len(data)], np.int64)
    comm.broadcast(length)
    buffer = np.zeros(int(length[0]), np.uint8)
    if comm.rank == 0:
        buffer[:] = np.frombuffer(data, np.uint8)
    comm.broadcast(buffer)
    return buffer.tobytes()

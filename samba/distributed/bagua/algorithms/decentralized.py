"""Algorithms without a centre: ranks average their weights with those of their peers."""

from __future__ import annotations

import math

import torch

from samba.distributed.bagua.algorithms.base import Algorithm, TrainedModel, weights_of
from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.operations import PEER_MODES, DecentralizedSynchronousOp
from samba.errors import ArgumentError
from samba.support.given import flag_of, whole_of
from samba.tensor.bagua import bagua_mark_communication_ready


class WeightAlgorithm(Algorithm):
    """Communicates all weights at once."""

    aligned = True

    def bucket_limit(self) -> float:
        return math.inf

    def init_tensors(self, trained: TrainedModel) -> list[torch.Tensor]:
        return weights_of(trained)

    def mark_all(self, trained: TrainedModel) -> None:
        """Say that all tensors may be communicated.

        Args:
            trained: The model.
        """
        for bucket in trained.buckets:
            for tensor in bucket.tensors:
                bagua_mark_communication_ready(tensor)


def check_interval(steps: int) -> int:
    """Check an interval of steps.

    Returns:
        The interval.

    Raises:
        ArgumentError: If it is below 1, or no whole number.
    """
    return whole_of(steps, "communication_interval", 1, "1 step or more")


class DecentralizedAlgorithm(WeightAlgorithm):
    """Steps from the mean of the peers' weights: ``x <- mean(x) - lr * gradient(x)``.

    Ranks communicate while they compute gradients. Their weights differ.

    Args:
        hierarchical: Average on each host first; then hosts are the peers.
        peer_selection_mode: ``"all"`` averages over all ranks, ``"shift_one"`` over pairs that
            change from step to step, and needs an even number of ranks.
        communication_interval: Communicate in every so many-th step.
    """

    name = "decentralized"

    def __init__(
        self,
        hierarchical: bool = True,
        peer_selection_mode: str = "all",
        communication_interval: int = 1,
    ) -> None:
        if peer_selection_mode not in PEER_MODES:
            raise ArgumentError(
                where="DecentralizedAlgorithm(peer_selection_mode=…)",
                found=repr(peer_selection_mode),
                wanted=" or ".join(map(repr, PEER_MODES)),
            )
        self.hierarchical = flag_of(hierarchical, "DecentralizedAlgorithm(hierarchical=…)")
        self.mode = peer_selection_mode
        self.interval = check_interval(communication_interval)
        self._ops: list[tuple[BaguaBucket, DecentralizedSynchronousOp]] = []
        self._under_way = False

    def init_tensors(self, trained: TrainedModel) -> list[torch.Tensor]:
        self._ops, self._under_way = [], False
        return super().init_tensors(trained)

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        op = bucket.append_decentralized_synchronous_op(
            bucket.flattened_tensor(), self.hierarchical, self.mode
        )
        self._ops.append((bucket, op))

    def before_forward(self, trained: TrainedModel) -> None:
        if self._under_way:  # a forward pass without a backward pass came before
            trained.backend.wait_pending_comm_ops()
        self._under_way = trained.step % self.interval == 0
        if self._under_way:
            self.mark_all(trained)

    def after_backward(self, trained: TrainedModel) -> None:
        if self._under_way:
            self._under_way = False
            trained.backend.wait_pending_comm_ops()
            for bucket, op in self._ops:
                with torch.no_grad():
                    op.copy_back_peer_weight(bucket)


class LowPrecisionDecentralizedAlgorithm(WeightAlgorithm):
    """After each step every rank moves towards its two neighbours, by 8-bit messages.

    Args:
        hierarchical: Average on each host first; then hosts make the ring.
        communication_interval: Communicate after every so many-th step.
    """

    name = "low_precision_decentralized"

    def __init__(self, hierarchical: bool = True, communication_interval: int = 1) -> None:
        where = "LowPrecisionDecentralizedAlgorithm(hierarchical=…)"
        self.hierarchical = flag_of(hierarchical, where)
        self.interval = check_interval(communication_interval)
        self._stepped: set[int] = set()
        self._steps = 0
        self._stale = False
        self.replicas: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def weights_were_set(self) -> None:
        self._stale = True  # what the neighbours know is of no use any more

    def need_reset(self) -> bool:
        return self._stale

    def init_tensors(self, trained: TrainedModel) -> list[torch.Tensor]:
        owned = {id(p) for o in trained.optimizers for g in o.param_groups for p in g["params"]}
        missing = [name for name, p in trained.parameters.items() if id(p) not in owned]
        if missing:
            raise ArgumentError(
                where="LowPrecisionDecentralizedAlgorithm",
                found=f"parameters {missing} in no optimizer",
                wanted="all trained parameters in the optimizers given to with_bagua",
            )
        self.replicas, self._stale = [], False
        return super().init_tensors(trained)

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        # All ranks have rank 0's weights now, so the neighbours' are known.
        own, left, right = (bucket.flattened_tensor() for _ in range(3))
        self.replicas.append((own, left, right))
        bucket.append_low_precision_decentralized_synchronous_op(
            own, left, right, self.hierarchical
        )

    def after_optimizer_step(self, trained: TrainedModel, optimizer: torch.optim.Optimizer) -> None:
        self._stepped.add(id(optimizer))
        if len(self._stepped) < len(trained.optimizers):
            return
        self._stepped.clear()
        if self._steps % self.interval == 0:
            self.mark_all(trained)
            trained.backend.wait_pending_comm_ops()
        self._steps += 1

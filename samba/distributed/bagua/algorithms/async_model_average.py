"""async: weights are averaged now and then by a thread of their own, while ranks train."""

from __future__ import annotations

import atexit
import contextlib
import threading

import numpy as np
import torch

from emulator.replicas.comm.errors import DataParallelError
from emulator.replicas.comm.protocol import ReduceOp
from samba.distributed.bagua.algorithms.base import gradients_of
from samba.distributed.bagua.algorithms.decentralized import WeightAlgorithm
from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.operations import AsynchronousModelAverageOp
from samba.distributed.bagua.replica import Replica
from samba.errors import ArgumentError
from samba.tensor.bagua import (
    bagua_mark_communication_ready,
    bagua_mark_communication_ready_without_synchronization,
)


class AsyncModelAverageAlgorithm(WeightAlgorithm):
    """Averages weights every some milliseconds; nobody waits for a slower rank's step.

    The weights hold still from a forward pass to the end of its backward pass, and while an
    optimizer changes them. What comes out depends on timing. A round needs all ranks, so every
    rank calls :meth:`abort` when it has trained enough; the end of the program counts as a call.

    Args:
        peer_selection_mode: ``"all"``.
        sync_interval_ms: Milliseconds from the end of a round to the next.
        warmup_steps: In so many steps gradients are averaged instead; all ranks make them together.

    Attributes:
        rounds: How often this rank's weights have been averaged.

    Raises:
        ArgumentError: If an argument is none of these.
    """

    name = "async"

    def __init__(
        self,
        peer_selection_mode: str = "all",
        sync_interval_ms: int = 500,
        warmup_steps: int = 0,
    ) -> None:
        if peer_selection_mode != "all" or sync_interval_ms < 0 or warmup_steps < 0:
            raise ArgumentError(
                where="AsyncModelAverageAlgorithm",
                found=f"{peer_selection_mode!r}, {sync_interval_ms} ms, {warmup_steps} steps",
                wanted="peer_selection_mode 'all', sync_interval_ms and warmup_steps 0 or more",
            )
        self.sync_interval_ms, self.warmup_steps = sync_interval_ms, warmup_steps
        self.rounds = 0
        self._replica: Replica | None = None
        self._steps = 0
        self._warming = False
        self._ops: list[AsynchronousModelAverageOp] = []
        self._held = False
        self._aborted = False
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._error: BaseException | None = None

    def need_reset(self) -> bool:
        return self._warming and self._steps >= self.warmup_steps

    def init_tensors(self, replica: Replica) -> list[torch.Tensor]:
        if replica is not self._replica:
            self._replica, self._steps, self._aborted = replica, 0, False
            self._error = None
        self._warming = self._steps < self.warmup_steps
        self._ops = []
        return gradients_of(replica) if self._warming else super().init_tensors(replica)

    def init_operations(self, bucket: BaguaBucket, replica: Replica) -> None:
        if self._warming:
            bucket.append_centralized_synchronous_op()
        else:
            self._ops.append(bucket.append_asynchronous_model_average_op())

    # -- the training thread --------------------------------------------------

    def before_forward(self, replica: Replica) -> None:
        self._check()
        self._steps += 1
        if self._warming:
            return
        if self._thread is None and not self._aborted:
            self._start(replica)
        self._hold()

    def gradient_ready(self, parameter: torch.nn.Parameter, replica: Replica) -> None:
        if self._warming:
            bagua_mark_communication_ready(parameter)

    def after_backward(self, replica: Replica) -> None:
        if self._warming:
            replica.backend.wait_pending_comm_ops()
        self._let_go()

    def before_optimizer_step(self, replica: Replica, optimizer: torch.optim.Optimizer) -> None:
        self._hold()

    def after_optimizer_step(self, replica: Replica, optimizer: torch.optim.Optimizer) -> None:
        self._let_go()

    def stop(self, replica: Replica) -> None:
        self.abort()

    def _hold(self) -> None:
        if not self._held:
            self._held = bool(self._ops)
            for op in self._ops:
                op.lock_weight()

    def _let_go(self) -> None:
        if self._held:
            self._held = False
            for op in self._ops:
                op.unlock_weight()

    def _check(self) -> None:
        if self._error is not None:  # kept: without the thread nothing would be averaged
            raise self._error

    def abort(self, model: torch.nn.Module | None = None) -> None:
        """End the averaging; every rank calls this, and it returns when all have.

        A rank may come later than others and go on training meanwhile, without averaging. Where
        the averaging has been ended already, nothing happens.

        Args:
            model: The model, as upstream's scripts pass it; not needed.

        Raises:
            DataParallelError: If a round failed, or a rank does not come before the deadline.
        """
        replica = self._replica
        if replica is None or self._aborted:
            return
        self._aborted = True
        atexit.unregister(self._at_exit)
        self._let_go()  # a round that has begun may wait for the weights
        comm = replica.backend.hierarchy.whole
        thread, self._thread = self._thread, None
        if thread is not None:
            for op in self._ops:
                op.abort()
            self._wake.set()
            thread.join()
            self._check()
        else:
            # Others may have begun; their round asks this rank, once for each bucket.
            for _ in {p.dtype for p in replica.parameters.values()}:
                comm.all_reduce(np.zeros(1, np.int32), ReduceOp.MIN)
        # Only the training threads are left, so they may use the communicator.
        comm.barrier()

    def resume(self, model: torch.nn.Module | None = None) -> None:
        """Average again after an :meth:`abort`; every rank calls this, and it waits for all.

        Args:
            model: The model, as upstream's scripts pass it; not needed.

        Raises:
            DataParallelError: If a rank does not come before the deadline.
        """
        replica = self._replica
        if replica is None or not self._aborted:
            return
        replica.backend.hierarchy.whole.barrier()
        self._aborted = False
        for op in self._ops:
            op.reset()
        if not self._warming:
            self._start(replica)

    def _at_exit(self) -> None:
        # A thread inside a collective when the interpreter ends would abort the process.
        if self._error is None:
            with contextlib.suppress(DataParallelError):
                self.abort()

    # -- the averaging thread -------------------------------------------------

    def mark_all(self, replica: Replica) -> None:
        for bucket in replica.buckets:
            for tensor in bucket.tensors:
                # Nobody but who holds the weights may look at them, not even to wait for them.
                bagua_mark_communication_ready_without_synchronization(tensor)

    def _start(self, replica: Replica) -> None:
        self._wake.clear()
        atexit.register(self._at_exit)
        self._thread = threading.Thread(
            target=self._run,
            args=(replica,),
            name=f"bagua-async-{replica.module_name}",
            daemon=True,
        )
        self._thread.start()

    def _run(self, replica: Replica) -> None:
        try:
            while True:
                self._wake.wait(self.sync_interval_ms / 1000)
                self.mark_all(replica)
                replica.backend.wait_pending_comm_ops()
                if not all(op.get_status() for op in self._ops):
                    return
                self.rounds += 1
        except BaseException as error:
            self._error = error

"""async: weights are averaged now and then by a thread of their own, while ranks train."""

from __future__ import annotations

import atexit
import contextlib
import threading

import torch

from emulator.replicas.comm.errors import DataParallelError
from samba.distributed import job
from samba.distributed.bagua.algorithms.base import TrainedModel, gradients_of
from samba.distributed.bagua.algorithms.decentralized import WeightAlgorithm
from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.operations import AsynchronousModelAverageOp, all_go_on
from samba.errors import ArgumentError
from samba.support.given import as_number
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
        counts = as_number(sync_interval_ms), as_number(warmup_steps)
        if peer_selection_mode != "all" or not all(count >= 0 for count in counts):
            raise ArgumentError(
                where="AsyncModelAverageAlgorithm",
                found=f"{peer_selection_mode!r}, {sync_interval_ms!r} ms, {warmup_steps!r} steps",
                wanted="peer_selection_mode 'all', sync_interval_ms and warmup_steps 0 or more",
            )
        self.sync_interval_ms, self.warmup_steps = sync_interval_ms, warmup_steps
        self.rounds = 0
        self._trained: TrainedModel | None = None
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

    def init_tensors(self, trained: TrainedModel) -> list[torch.Tensor]:
        if trained is not self._trained:
            self._trained, self._steps, self._aborted = trained, 0, False
            self._error = None
        self._warming = self._steps < self.warmup_steps
        self._ops = []
        return gradients_of(trained) if self._warming else super().init_tensors(trained)

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        if self._warming:
            bucket.append_centralized_synchronous_op()
        else:
            self._ops.append(bucket.append_asynchronous_model_average_op())

    # -- the training thread --------------------------------------------------

    def before_forward(self, trained: TrainedModel) -> None:
        self._check()
        self._steps += 1
        if self._warming:
            return
        if self._thread is None and not self._aborted:
            self._start(trained)
        self._hold()

    def gradient_ready(self, parameter: torch.nn.Parameter, trained: TrainedModel) -> None:
        if self._warming:
            bagua_mark_communication_ready(parameter)

    def after_backward(self, trained: TrainedModel) -> None:
        if self._warming:
            trained.backend.wait_pending_comm_ops()
        self._let_go()

    def before_optimizer_step(
        self, trained: TrainedModel, optimizer: torch.optim.Optimizer
    ) -> None:
        self._hold()

    def after_optimizer_step(self, trained: TrainedModel, optimizer: torch.optim.Optimizer) -> None:
        self._let_go()

    def stop(self, trained: TrainedModel) -> None:
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
        trained = self._trained
        if trained is None or self._aborted:
            return
        self._end(trained, failed=False)
        # Only the training threads are left, so they may use the communicator.
        trained.backend.hierarchy.whole.barrier()

    def _end(self, trained: TrainedModel, *, failed: bool) -> None:
        """Have all ranks' threads end with the round that begins next."""
        self._aborted = True
        atexit.unregister(self._at_exit)
        self._let_go()  # a round that has begun may wait for the weights
        thread, self._thread = self._thread, None
        if thread is not None:
            for op in self._ops:
                op.abort(failed=failed)
            self._wake.set()
            thread.join()
            self._check()
            return
        # Others may have begun; their round asks this rank, once for each bucket.
        for _ in {p.dtype for p in trained.parameters.values()}:
            all_go_on(trained.backend.hierarchy.whole, going=False, failed=failed)

    def resume(self, model: torch.nn.Module | None = None) -> None:
        """Average again after an :meth:`abort`; every rank calls this, and it waits for all.

        Args:
            model: The model, as upstream's scripts pass it; not needed.

        Raises:
            DataParallelError: If a rank does not come before the deadline.
        """
        trained = self._trained
        if trained is None or not self._aborted:
            return
        trained.backend.hierarchy.whole.barrier()
        self._aborted = False
        for op in self._ops:
            op.reset()
        if not self._warming:
            self._start(trained)

    def _at_exit(self) -> None:
        # A thread inside a collective when the interpreter ends would abort the process.
        if self._error is not None or self._trained is None or self._aborted:
            return
        with contextlib.suppress(DataParallelError):
            if job.is_failing():
                self._end(self._trained, failed=True)
            else:
                self.abort()

    # -- the averaging thread -------------------------------------------------

    def mark_all(self, trained: TrainedModel) -> None:
        for bucket in trained.buckets:
            for tensor in bucket.tensors:
                # Only the holder of the weights may look at them, or even wait for them.
                bagua_mark_communication_ready_without_synchronization(tensor)

    def _start(self, trained: TrainedModel) -> None:
        self._wake.clear()
        atexit.register(self._at_exit)
        self._thread = threading.Thread(
            target=self._run,
            args=(trained,),
            name=f"bagua-async-{trained.module_name}",
            daemon=True,
        )
        self._thread.start()

    def _run(self, trained: TrainedModel) -> None:
        try:
            while True:
                self._wake.wait(self.sync_interval_ms / 1000)
                self.mark_all(trained)
                trained.backend.wait_pending_comm_ops()
                if not all(op.get_status() for op in self._ops):
                    return
                self.rounds += 1
        except BaseException as error:
            self._error = error

"""Algorithms under ``session.run``: sections of the device call the algorithm.

The REDUCE sections of a program say when gradients are there. With an algorithm, its buckets are
communicated at these points instead of the program's own. The tensors of the model in device memory
are regions, found by name each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import torch

from emulator.held_signals import HELD
from pef_schema.program import OptimizerKind, Program, Role, SectionKind
from samba.distributed.bagua.algorithms.base import (
    Algorithm,
    Moments,
    TrainedModel,
    register_buckets,
)
from samba.distributed.bagua.algorithms.q_adam import QAdamAlgorithm
from samba.distributed.bagua.world import World, current_world
from samba.distributed.errors import NotDataParallel
from samba.errors import ArgumentError
from samba.optim.qadam import QAdamOptimizer
from samba.session.process import session as process_session
from samba.tensor.bagua_handle import Closures
from samba.tensor.views import view_as_numpy, view_as_torch

if TYPE_CHECKING:
    # They load jax, which a torch training loop does not need.
    from emulator.device import Device
    from emulator.replicas.parallel import ParallelPlan, PlanOrReduction
    from samba.distributed.replicas import Replicas


class LoadedProgram(Protocol):
    """A program on a device. That of one graph has its ``model``, ``traced`` and ``optimizers``."""

    program: Program
    device: Device
    replicas: Replicas


@dataclass(frozen=True, slots=True)
class RegionGetter:
    """Getter closure: a copy of a region, as it is when the run that writes it is done.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.
    """

    copies: ClassVar[bool] = True
    device: Device
    name: str

    def __call__(self, proxy: Any) -> torch.Tensor:
        return view_as_torch(self.device.read(self.device.region_of(self.name)))


@dataclass(frozen=True, slots=True)
class RegionSetter:
    """Setter closure: copies values to a region.

    A gradient in a bucket is written in place: between the backward pass and the optimizer nobody
    else uses it. Any other region gets new memory, so a run that still reads the old one may.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.
    """

    device: Device
    name: str

    def __call__(self, proxy: Any, values: torch.Tensor) -> None:
        device = self.device
        region = device.region_of(self.name)
        array = view_as_numpy(values.reshape(device.program.regions[region].shape))
        device.overwrite(region, array, name=self.name)


def region_closures(device: Device, name: str) -> tuple[RegionGetter, RegionSetter]:
    """Getter and setter closures of a region.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.

    Returns:
        What ``ensure_bagua_tensor`` takes.

    Raises:
        UnknownName: If the device knows no such name.
    """
    device.region_of(name)
    return RegionGetter(device, name), RegionSetter(device, name)


class DeviceTrainedModel(TrainedModel):
    """A model on the device: its tensors are regions, found by the parameters' names.

    Args:
        loaded: The model with its program.
        algorithm: What replicas communicate, and when.
        world: The ranks.

    Raises:
        NotDataParallel: If the program has no gradient buckets.
    """

    def __init__(self, loaded: LoadedProgram, algorithm: Algorithm, world: World) -> None:
        self._device: Device = loaded.device
        parameters, self.name_of = _parameters(loaded)
        if not parameters:
            raise NotDataParallel(program=loaded.program.name)
        super().__init__(
            parameters=parameters,
            optimizers=getattr(loaded, "optimizers", ()),
            module_name=loaded.program.name,
            world=world,
        )
        self.algorithm = algorithm

    def gradient(self, name: str) -> Closures:
        return region_closures(self._device, f"{name}__grad")

    def weight(self, name: str) -> Closures:
        return region_closures(self._device, name)

    def moments(self, optimizer: QAdamOptimizer) -> Moments:
        program, device = self._device.program, self._device
        rows = {
            param.weight: (entry, param.states[0])
            for entry in program.optimizers
            if entry.kind is OptimizerKind.QADAM
            for param in entry.params
        }
        regions = {name: device.region_of(name) for name in self.parameters}
        missing = [name for name, region in regions.items() if region not in rows]
        if missing:
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"parameters {missing} that {program.name} updates by another rule",
                wanted="a program compiled with a QAdamOptimizer of all trained parameters",
                hint="Compile with it: samba.session.compile(model, inputs, optimizer).",
            )
        used = {name: rows[region] for name, region in regions.items()}
        rates = {name: 1 - dict(entry.options)["beta1"] for name, (entry, _) in used.items()}
        warm_up = {entry.step: dict(entry.options)["warmup_steps"] for entry, _ in used.values()}
        return Moments(
            warming=lambda: all(float(device.read(at)) < steps for at, steps in warm_up.items()),
            closures={
                name: region_closures(device, program.regions[moment].name)
                for name, (_, moment) in used.items()
            },
            rate=rates.__getitem__,
        )


def _parameters(loaded: LoadedProgram) -> tuple[dict[str, torch.nn.Parameter], dict[int, str]]:
    """Parameters by name, those whose gradients come first last, and names by gradient region."""
    program, place = loaded.program, loaded.device.buffer_map.place
    symbols = {s.name: s for s in program.symbols}
    model = getattr(loaded, "model", None)
    traced = getattr(loaded, "traced", None)
    if model is None or traced is None:  # several graphs: they do not train
        return {}, {}
    of_path = dict(model.named_parameters(remove_duplicate=False))
    parameters: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for source in traced.sources:
        symbol = symbols.get(source.name)
        if source.role is Role.WEIGHT and symbol is not None and symbol.grad_region in place:
            parameters.setdefault(symbol.grad_region, (source.name, of_path[source.path]))
    order = sorted(parameters, key=lambda r: (place[r][0].index, place[r][1]), reverse=True)
    return {parameters[r][0]: parameters[r][1] for r in order}, {r: parameters[r][0] for r in order}


class LoadedSession(Protocol):
    """A session that holds a loaded program."""

    def need_loaded(self, operation: str) -> LoadedProgram:
        """The loaded program; raises NotLoaded if there is none."""
        ...


class AlgorithmTrainer:
    """Runs a loaded program with an algorithm.

    Args:
        replicas: What the program knows of its replicas.
        trained: The model, as the algorithm sees it.
        device: The device.
    """

    def __init__(self, replicas: Replicas, trained: DeviceTrainedModel, device: Device) -> None:
        self.replicas, self.trained, self._device = replicas, trained, device
        self.algorithm = trained.algorithm
        self._registered = False

    @property
    def name(self) -> str:
        """As ``Trainer`` has it."""
        return self.algorithm.name or type(self.algorithm).__name__

    def prepare(self, plan: ParallelPlan) -> Callable[[], None]:
        """As :class:`~samba.distributed.replica_runs.Trainer` has it."""
        last = max((i for i, part in enumerate(plan.parts) if part.bucket is not None), default=-1)
        moves = []
        ready: set[int] = set()
        updating = False
        for index, part in enumerate(plan.parts):
            if part.bucket is not None:
                names = [self.trained.name_of[region] for region in part.bucket.regions]
                parameters = tuple(self.trained.parameters[name] for name in names)
                moves.append(_Move(part=part, parameters=parameters, last=index == last))
                ready.add(part.bucket.home)
                if index == last:
                    ready.clear()
                continue
            assert part.plan is not None  # a part is a plan or a bucket
            waits = not ready.isdisjoint((*part.plan.reads, *part.plan.writes))
            if waits:
                ready.clear()
            updates = SectionKind.OPT in part.plan.kinds and not updating
            updating |= updates
            moves.append(_Move(part=part, waits=waits, updates=updates))
        return partial(self._run, tuple(moves), last >= 0, updating, plan)

    def weights_were_set(self) -> None:
        """As ``Trainer`` has it."""
        self.algorithm.weights_were_set()

    def release(self) -> None:
        """As ``Trainer`` has it."""
        self.algorithm.stop(self.trained)
        self.trained.backend.wait_pending_comm_ops()

    def _run(
        self, moves: tuple[_Move, ...], reduces: bool, updates: bool, plan: ParallelPlan
    ) -> None:
        ran: set[int] = set()
        try:
            self._step(moves, reduces, updates, ran)
        except Exception as error:
            explained = self.replicas.explain(self.name, error)
            explained.add_note(plan.state_after(ran))
            if explained is error:
                raise
            raise explained from error
        for region in plan.last_drops:
            self._device.pool.drop(region)

    def _step(self, moves: tuple[_Move, ...], reduces: bool, updates: bool, ran: set[int]) -> None:
        trained, algorithm, device = self.trained, self.algorithm, self._device
        if not self._registered or algorithm.need_reset():
            register_buckets(algorithm, trained)
            self._registered = True
        if reduces:
            algorithm.before_forward(trained)
            trained.step += 1
        for index, move in enumerate(moves):
            part = move.part
            if part.plan is None:
                self._ready(move)
                continue
            if move.waits:
                trained.backend.wait_pending_comm_ops()
            if move.updates:
                for optimizer in trained.optimizers:
                    algorithm.before_optimizer_step(trained, optimizer)
            device.run(part.plan, 0)
            ran.add(index)
            for region in part.drops:
                device.pool.drop(region)
        if updates:
            for optimizer in trained.optimizers:
                algorithm.after_optimizer_step(trained, optimizer)

    def _ready(self, move: _Move) -> None:
        """Tell the algorithm that the gradients of a bucket are there."""
        trained, device, bucket = self.trained, self._device, move.part.bucket
        assert bucket is not None  # a part is a plan or a bucket
        if device.pool.buffers[bucket.home] is None:
            device.zero_buffer(bucket.home)
        if move.part.settle:
            device.synchronize()
        for parameter in move.parameters:
            self.algorithm.gradient_ready(parameter, trained)
        if move.last:
            self.algorithm.after_backward(trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """A part of a run, with what the algorithm has to do there.

    Args:
        part: The part.
        parameters: Those whose gradients are in its bucket.
        last: Whether no bucket comes after this one: what follows finds weights and gradients as
            they shall be.
        waits: Whether the plan uses gradients that are under way.
        updates: Whether the plan is the first that changes weights.
    """

    part: PlanOrReduction
    parameters: tuple[torch.nn.Parameter, ...] = ()
    last: bool = False
    waits: bool = False
    updates: bool = False


def with_session(
    algorithm: Algorithm | None, session: LoadedSession | None = None
) -> LoadedSession:
    """Let ``session.run(data_parallel=True)`` communicate by an algorithm; all ranks call this.

    The program must be loaded and have been compiled with ``--data-parallel``. Rank 0's weights,
    buffers and optimizer state hold for all from then on. Another call exchanges the algorithm.

    Args:
        algorithm: What replicas communicate, and when; None for the program's own REDUCE sections.
        session: The session; ``samba.session`` if None.

    Returns:
        The session.

    Raises:
        NotLoaded: If no program is loaded.
        ArgumentError: If it is not an algorithm, or qadam and the PEF was compiled with another
            optimizer than QAdamOptimizer.
        NotDataParallel: If it has no gradient buckets.
        DataParallelError: If a rank does not take part, or has another algorithm.
    """
    chosen = process_session if session is None else session
    attach(chosen.need_loaded("distributed.bagua.with_session()"), algorithm)
    return chosen


def attach(loaded: LoadedProgram, algorithm: Algorithm | None) -> None:
    """Train a loaded program with an algorithm; all ranks get rank 0's values.

    Args:
        loaded: The program.
        algorithm: The algorithm; None for the program's own REDUCE sections.
    """
    replicas = loaded.replicas
    trainer = None
    if algorithm is not None:
        if not isinstance(cast(Any, algorithm), Algorithm):
            raise ArgumentError(
                where="samba.distributed.bagua.with_session(algorithm)",
                found=type(algorithm).__name__,
                wanted="an Algorithm, or None",
            )
        loaded.device.use_buckets()  # a single replica has no buckets of its own accord
        trained = DeviceTrainedModel(loaded, algorithm, current_world())
        if isinstance(algorithm, QAdamAlgorithm):
            trained.moments(algorithm.optimizer)  # raises what ranks should not find in a step
        trainer = AlgorithmTrainer(replicas, trained, loaded.device)
    with HELD:  # a rank that stopped in here would be out of step
        replicas.agree_on_algorithm("none" if trainer is None else trainer.name)
        if replicas.trainer is not None:
            replicas.trainer.release()
        replicas.use(trainer)
        with replicas.same_values(range(len(loaded.program.regions))):
            pass

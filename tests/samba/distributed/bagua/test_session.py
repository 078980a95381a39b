"""Bagua's algorithms in the session: the device trains as torch's loop does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import samba
from emulator.errors import UnknownName
from emulator.replicas.comm.errors import DataParallelError, Disagreement
from samba.distributed import bagua
from samba.distributed.bagua.session import attach
from samba.distributed.errors import NotDataParallel
from samba.errors import ArgumentError, NotLoaded
from samba.session.loaded import Loaded
from tests.samba.distributed.bagua.ranks import NEVER, on_ranks
from tests.samba.distributed.bagua.sessions import (
    CLOSE,
    Make,
    in_torch,
    on_device,
    run,
    together,
    trainer_of,
    weights,
)
from tests.samba.distributed.processes import all_well, run_replicas, worker
from tests.samba.distributed.worlds import BATCH, Deep, batch, compile_to, compiled, loaded, world
from tests.samba.worlds import Scene, named, told


def scene(folder: Path, optimizer: str = "sgd", **keywords: Any) -> Scene:
    made = compiled(folder, optimizer, **keywords)
    made.trace()
    return made


ALGORITHMS: dict[str, Make] = {
    "gradient_allreduce": lambda _: bagua.GradientAllReduceAlgorithm(),
    "gradient_sum": lambda _: bagua.GradientAllReduceAlgorithm(average=False),
    "bytegrad": lambda _: bagua.ByteGradAlgorithm(),
    "decentralized": lambda _: bagua.DecentralizedAlgorithm(),
    "shift_one": lambda _: bagua.DecentralizedAlgorithm(False, "shift_one", 2),
    "low_precision_decentralized": lambda _: bagua.LowPrecisionDecentralizedAlgorithm(
        hierarchical=False
    ),
    "async": lambda _: bagua.AsyncModelAverageAlgorithm(sync_interval_ms=NEVER),
    "async_warm_up": lambda _: bagua.AsyncModelAverageAlgorithm(
        sync_interval_ms=NEVER, warmup_steps=3
    ),
}
"""Where they send bytes, no number lies so near to the border of two codes (1e-4 of their distance)
that its last bit decides which of them it gets."""


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[torch.Tensor]:
    """Ranks that communicate nothing."""
    return on_device(folder, lambda _: bagua.Algorithm(), 2)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_as_the_torch_loop(folder, alone, name):
    found, wanted = on_device(folder, ALGORITHMS[name], 2), in_torch(ALGORITHMS[name], 2)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE)
    assert not torch.allclose(alone[0], found[0], rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", ["gradient_allreduce", "decentralized"])
def test_an_optimizer_with_a_number_among_its_states(folder, name):
    """NAdam's product goes on with the weights of each rank."""
    compile_to(folder, world("nadam"))
    found = on_device(folder, ALGORITHMS[name], 2, "nadam")
    for ours, theirs in zip(found, in_torch(ALGORITHMS[name], 2, "nadam"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bytegrad", "decentralized", "low_precision_decentralized"])
def test_section_by_section(folder, name):
    make = ALGORITHMS[name]
    whole, parts = on_device(folder, make, 2), on_device(folder, make, 2, by_section=True)
    for ours, theirs in zip(parts, whole, strict=True):
        # What XLA fuses may differ, and so the last bit.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE)


def test_gradient_allreduce_is_what_reduce_sections_do(folder):
    def work(program: Loaded, rank: int) -> torch.Tensor:
        for step in range(4):
            run(program, rank, 2, step)
        return weights(program)

    plain = together([loaded(folder), loaded(folder)], work)
    found = on_device(folder, ALGORITHMS["gradient_allreduce"], 2)
    assert found[0][-1].equal(plain[0])


def test_algorithms_can_be_exchanged(folder):
    """Rank 0's weights hold after each exchange; None gives the REDUCE sections back."""

    def work(program: Loaded, rank: int) -> torch.Tensor:
        start = weights(program)
        for algorithm in (
            bagua.DecentralizedAlgorithm(),
            bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1),
            bagua.LowPrecisionDecentralizedAlgorithm(),
            None,
        ):
            attach(program, algorithm)
            for step in range(2):
                run(program, rank, 2, step)
        assert program.replicas.trainer is None
        assert not weights(program).allclose(start)
        return weights(program)

    first, second = together([loaded(folder), loaded(folder)], work)
    assert first.equal(second)
    assert first.isfinite().all()


def test_weights_that_the_host_sets_hold_for_all(folder):
    """Neighbours know each other's weights; new ones make what they know void."""

    def work(program: Loaded, rank: int) -> torch.Tensor:
        algorithm = bagua.LowPrecisionDecentralizedAlgorithm(hierarchical=False)
        attach(program, algorithm)
        run(program, rank, 2, 0)
        program.to_device()
        run(program, rank, 2, 0)
        own = algorithm.replicas[0][0]
        names = trainer_of(program).trained.parameters  # in the order of their buckets
        now = torch.cat([program.read(name).flatten() for name in names])
        assert own[: now.numel()].equal(now)
        return weights(program)

    def once(program: Loaded, rank: int) -> torch.Tensor:
        attach(program, bagua.LowPrecisionDecentralizedAlgorithm(hierarchical=False))
        run(program, rank, 2, 0)
        return weights(program)

    twice = together([loaded(folder), loaded(folder)], work)
    wanted = together([loaded(folder), loaded(folder)], once)
    assert all(now.equal(then) for now, then in zip(twice, wanted, strict=True))


def test_averages_by_the_clock(folder):
    def work(program: Loaded, rank: int) -> int:
        algorithm = bagua.AsyncModelAverageAlgorithm(sync_interval_ms=1)
        attach(program, algorithm)
        until = time.monotonic() + 60
        step = 0
        while algorithm.rounds < 5 and time.monotonic() < until:
            run(program, rank, 2, step)
            step += 1
        algorithm.abort()
        assert weights(program).isfinite().all()
        return algorithm.rounds

    first, second = together([loaded(folder), loaded(folder)], work)
    assert first == second >= 5


def test_ranks_with_different_algorithms_are_named(folder):
    def work(program: Loaded, rank: int) -> None:
        algorithm = bagua.ByteGradAlgorithm() if rank else bagua.DecentralizedAlgorithm()
        with pytest.raises(Disagreement) as caught:
            attach(program, algorithm)
        assert caught.value.facts == {"algorithm": ("decentralized", "bytegrad")}

    together([loaded(folder), loaded(folder)], work)


def test_a_rank_that_fails_is_named_with_step_and_bucket(folder):
    def work(program: Loaded, rank: int) -> None:
        attach(program, bagua.ByteGradAlgorithm())
        for step in range(2):  # ranks compare notes before these
            run(program, rank, 2, step)
        if rank == 1:
            raise KeyError("lost")
        with pytest.raises(DataParallelError, match=r"bytegrad in step 3.*rank 1") as caught:
            run(program, rank, 2, 1)
        assert caught.value.ranks == (1,)
        with pytest.raises(DataParallelError, match="failed before"):
            run(program, rank, 2, 2)

    with pytest.raises(KeyError, match="lost"):
        together([loaded(folder), loaded(folder)], work)


def test_one_replica_trains_as_without(folder, caplog):
    made = scene(folder)
    assert bagua.with_session(bagua.ByteGradAlgorithm()) is samba.session
    made.run(data_parallel=True)
    made.host_step()
    off = {p: (made.weights()[p] - w.detach()).abs() for p, w in made.host.named_parameters()}
    gradients = torch.cat([p.grad.flatten() for p in made.host.parameters()])
    # Learning rate 0.1 times half a code of a bucket's range, which is not above that of them all.
    bound = 0.1 * (gradients.max() - gradients.min()).item() / 510
    assert CLOSE < max(o.max().item() for o in off.values()) <= bound + CLOSE
    before = [w.clone() for w in made.weights().values()]
    made.run(data_parallel=True, section_types=["fwd"])
    assert all(a.equal(b) for a, b in zip(before, made.weights().values(), strict=True))
    assert told(caplog) == []


def test_an_algorithm_may_come_and_go_between_runs(folder):
    """One replica has no buckets until it has an algorithm; runs without it go on."""
    made = scene(folder)
    samba.session.run(named(made.tensors), made.model.output_tensors)
    made.host_step()
    bagua.with_session(bagua.GradientAllReduceAlgorithm())
    for data_parallel in (False, True):
        made.run(data_parallel=data_parallel)
        made.host_step()
        made.assert_follows()
    bagua.with_session(None)
    made.run()
    made.host_step()
    made.assert_follows()


def test_weights_that_are_set_are_told_of_without_other_ranks(folder):
    """An algorithm that knows older ones begins again."""
    made = scene(folder)
    algorithm = bagua.LowPrecisionDecentralizedAlgorithm()
    bagua.with_session(algorithm)
    made.run(data_parallel=True)
    assert not algorithm.need_reset()
    parameter = next(iter(made.model.parameters()))
    parameter.sn_data = torch.zeros_like(parameter)
    assert algorithm.need_reset()


def test_an_error_that_is_no_loss_is_told_as_what_it_is(folder):
    """Nobody is gone, and no error is its own cause."""

    class Wrong(bagua.GradientAllReduceAlgorithm):
        def init_operations(self, bucket: Any, trained: Any) -> None:
            bucket.append_python_op(lambda _: {}["weight"])

    class Lost(bagua.GradientAllReduceAlgorithm):
        def before_forward(self, trained: Any) -> None:
            raise KeyError("no such thing")

    def work(program: Loaded, rank: int) -> None:
        attach(program, Lost())
        with pytest.raises(KeyError, match="no such thing") as lost:
            run(program, rank, 2, 0)
        assert lost.value.__cause__ is None
        attach(program, Wrong())
        with pytest.raises(DataParallelError, match=r"step 2: rank \d: bucket .*KeyError") as wrong:
            run(program, rank, 2, 0)
        assert "gone" not in str(wrong.value)
        assert wrong.value.ranks == (rank,)

    together([loaded(folder), loaded(folder)], work)


def test_what_cannot_train(folder):
    samba.session.reset()
    with pytest.raises(NotLoaded, match=r"samba.distributed.bagua.with_session\(\): nothing"):
        bagua.with_session(bagua.ByteGradAlgorithm())
    scene(folder, data_parallel=False)
    with pytest.raises(NotDataParallel, match="--data-parallel"):
        bagua.with_session(bagua.ByteGradAlgorithm())
    scene(folder)
    with pytest.raises(ArgumentError, match="expected an Algorithm"):
        bagua.with_session("bytegrad")
    optimizer = bagua.QAdamOptimizer([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(ArgumentError, match=r"layers.*by another rule"):
        bagua.with_session(bagua.QAdamAlgorithm(optimizer))


def test_closures_of_regions_follow_the_device(folder):
    """A region's memory is another after each run; its gradient lies in a bucket."""
    made = scene(folder)
    parameter = next(iter(made.model.parameters()))
    device = samba.session._slot.loaded.device
    made.run()
    for name, value in ((parameter.sn_name, "sn_data"), (parameter.sn_grad_name, "sn_grad")):
        proxy = torch.zeros(1)
        bagua.ensure_bagua_tensor(proxy, name, None, *bagua.region_closures(device, name))
        assert bagua.bagua_getter_closure(proxy).equal(getattr(parameter, value))
        before = bagua.bagua_getter_closure(proxy)
        made.run()
        assert bagua.bagua_getter_closure(proxy).equal(getattr(parameter, value))
        assert not bagua.bagua_getter_closure(proxy).equal(before)
        backend = bagua.bagua_backend_tensor(proxy)
        packed = backend.compress("MinMaxUInt8", 1)
        exact = bagua.bagua_getter_closure(proxy)
        backend.decompress_from("MinMaxUInt8", 1, packed)
        assert not getattr(parameter, value).equal(exact)
        assert backend.compress("MinMaxUInt8", 1).data[32:].equal(packed.data[32:])
        others = [p.sn_grad.clone() for p in list(made.model.parameters())[1:]]
        bagua.bagua_setter_closure(proxy, torch.full_like(before, 7.0))
        assert (getattr(parameter, value) == 7.0).all()
        assert all(
            p.sn_grad.equal(o)
            for p, o in zip(list(made.model.parameters())[1:], others, strict=True)
        )
    with pytest.raises(UnknownName, match="nothing"):
        bagua.region_closures(device, "nothing")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bytegrad:1", "decentralized:1", "low_precision_decentralized:0"])
def test_two_processes(folder, way):
    """What programs in one process give, ``samba.session`` of two processes gives."""
    command = [*worker("train"), str(folder), "4", f"sgd:{way}"]
    all_well(run_replicas(2, command, seconds=180, env={"OMP_NUM_THREADS": "1"}))
    paths = [path for path, _ in Deep().named_parameters()]
    for rank, wanted in enumerate(on_device(folder, ALGORITHMS[way.split(":")[0]], 2)):
        file = folder / f"sgd-{way.replace(':', '-')}-torch-2-{rank}.pt"
        found = torch.load(file, weights_only=True)
        assert torch.cat([found[path].flatten() for path in paths]).equal(wanted[-1])


# -- QAdam -----------------------------------------------------------------------------


WARM, STEPS = 3, 6


@pytest.fixture(scope="module")
def qadam(folder: Path) -> Path:
    """A folder with a PEF with small buckets and qadam's update rule."""
    compile_to(folder, world("qadam"))
    return folder


def on_devices(folder: Path, size: int, make: Make = bagua.QAdamAlgorithm, **keywords: Any) -> Any:
    return on_device(folder, make, size, "qadam", steps=STEPS, **keywords)


def rounding_of_steps(size: int = 1) -> torch.Tensor:
    """By what part of it a step after the warm-up is uncertain, for each weight.

    It is divided by the root of the second moment that the warm-up has left: the root mean square
    of its gradients. Where these are small differences of larger numbers, they have the rounding of
    the larger ones, 2**-24 of the largest gradient, and steps are large: ten learning rates.
    """
    made = world("qadam").build()
    gradients = []
    for step in range(WARM):
        made.host_step(batch(BATCH * size, step))
        gradients.append(torch.cat([p.grad.flatten() for p in made.host.parameters()]))
    found = torch.stack(gradients)
    return 2**-24 * found.abs().max() / found.square().mean(0).sqrt()


@pytest.mark.parametrize("size", [1, 2])
def test_qadam_as_the_torch_loop(qadam, size):
    found = on_devices(qadam, size)
    wanted = in_torch(bagua.QAdamAlgorithm, size, "qadam", steps=STEPS)
    part = rounding_of_steps(size)
    for ours, theirs in zip(found, wanted, strict=True):
        way = theirs.diff(dim=0, prepend=theirs[:1]).abs().cumsum(0)
        # Six steps where CLOSE is of four.
        assert bool(((ours - theirs).abs() <= 2 * CLOSE + part * way).all())
        assert float((part * way).median()) < CLOSE / 10  # it is a matter of few weights
    assert all(ours.equal(found[0]) for ours in found)


def test_moments_and_not_gradients_are_averaged_after_the_warm_up(qadam):
    """Other algorithms leave the moments of the warm-up as they are, as the optimizer does."""
    found = on_devices(qadam, 2)[0]
    plain = on_devices(qadam, 2, lambda _: bagua.GradientAllReduceAlgorithm())[0]
    assert plain[:WARM].equal(found[:WARM])
    assert not plain[WARM].allclose(found[WARM], rtol=0, atol=5e-4)


@pytest.mark.slow
def test_qadam_section_by_section(qadam):
    whole, parts = on_devices(qadam, 2), on_devices(qadam, 2, by_section=True)
    for ours, theirs in zip(parts, whole, strict=True):
        # What XLA fuses may differ, and so the last bit.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE)


def test_alone_it_is_the_torch_optimizer(qadam):
    """Without other ranks and without the algorithm; hyperparameters and state move over."""
    made = scene(qadam, "qadam")
    for step in range(STEPS):
        tensors = batch(BATCH, step)
        made.run(named(tensors))
        made.host_step(tensors)
        made.assert_follows()
    samba.session.optimizers_to_cpu(made.optimizer)
    for ours, theirs in zip(
        made.model.parameters(), made.host_optimizer.param_groups[0]["params"], strict=True
    ):
        state, wanted = made.optimizer.state[ours], made.host_optimizer.state[theirs]
        assert int(state["step"]) == wanted["step"] == STEPS
        for name in ("exp_avg", "exp_avg_sq"):
            # Numbers near 0 are sums of larger ones, whose last bit depends on their order.
            ulp = wanted[name].abs().max().item() * 2**-23
            torch.testing.assert_close(state[name], wanted[name], rtol=0, atol=4 * ulp)


@pytest.mark.parametrize("changed", [1, WARM + 1])
def test_weight_decay_of_the_device_holds(qadam, changed):
    """``hyperparam_dict`` reaches the moments of the warm-up; later ones go without it."""
    made = scene(qadam, "qadam")
    (optimizer,) = made.host_optimizer.param_groups
    bagua.with_session(bagua.QAdamAlgorithm(made.optimizer))
    decays = [3.0 if step == changed else 0.01 for step in range(WARM + 2)]
    for step, decay in enumerate(decays):
        tensors = batch(BATCH, step)
        made.run(named(tensors), data_parallel=True, hyperparam_dict={"weight_decay": decay})
    moved = torch.cat([w.flatten() for w in made.weights().values()])
    host = made.host_optimizer

    def work(_: Any) -> torch.Tensor:
        bagua.with_bagua(made.host, [host], bagua.QAdamAlgorithm(host))
        history = []
        for step, decay in enumerate(decays):
            optimizer["weight_decay"] = decay if changed < WARM else 0.01
            made.host_step(batch(BATCH, step))
            history.append(torch.cat([p.detach().flatten() for p in made.host.parameters()]))
        return torch.stack(history)

    (wanted,) = on_ranks(1, work, nodes=[range(1)])
    way = wanted.diff(dim=0).abs().sum(0)
    # Such a decay moves weights by up to 0.7 in a step, and 16 roundings may make up the step.
    allowed = 0.7 * 16 * 2**-24 + rounding_of_steps() * way
    assert bool(((moved - wanted[-1]).abs() <= allowed).all())


def test_the_count_decides_what_is_communicated(qadam):
    """A state that is loaded ends the warm-up, or begins it again."""
    made = scene(qadam, "qadam")
    algorithm = bagua.QAdamAlgorithm(made.optimizer)
    bagua.with_session(algorithm)
    for step in range(WARM):
        made.run(named(batch(BATCH, step)), data_parallel=True)
    assert algorithm.need_reset()
    samba.session.optimizers_to_cpu(made.optimizer)
    for state in made.optimizer.state.values():
        state["step"] = 0
    samba.session.optimizers_to_rdu(made.optimizer)
    assert not algorithm.need_reset()

"""TrainingCheckpoint: a training goes on from its file as if nothing had happened."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import samba
from samba import utils
from samba.errors import ArgumentError, NotLoaded, SambaError
from samba.utils import training_checkpoint
from samba.utils.checkpoint import BadCheckpoint
from tests.samba.worlds import DROPOUT, MLP, Pefs, Scene, named, other_batch


def step(scene: Scene, number: int, **keywords: Any) -> None:
    inputs = named(other_batch(seed=number))
    samba.session.run(inputs, scene.model.output_tensors, **keywords)


def state(scene: Scene) -> dict[str, torch.Tensor]:
    """Weights, momenta and the random stream of the device."""
    momenta = {name: tensor.sn_data for name, tensor in samba.session.optim_dict.items()}
    return scene.weights() | momenta | {"random": samba.session.get_rng_state()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def scheduler_of(scene: Scene) -> torch.optim.lr_scheduler.StepLR:
    return torch.optim.lr_scheduler.StepLR(scene.optimizer, 2, 0.5)


def parts_of(
    scene: Scene, path: Path
) -> tuple[Any, utils.ElasticSampler, utils.TrainingCheckpoint]:
    scheduler, sampler = scheduler_of(scene), utils.ElasticSampler(range(20), 5)
    made = utils.TrainingCheckpoint(
        path, scene.model, scene.optimizer, sampler=sampler, scheduler=scheduler
    )
    return scheduler, sampler, made


def go_on(scene: Scene, scheduler: Any, numbers: range) -> None:
    for number in numbers:
        step(scene, number)
        scheduler.step()


@pytest.mark.parametrize("done", range(5))
def test_a_restart_goes_on_exactly(pefs: Pefs, tmp_path: Path, done: int):
    """The scheduler has just changed the rate after two runs and after four."""
    scene = pefs.loaded(DROPOUT)
    scheduler, sampler, checkpoint = parts_of(scene, tmp_path / "last.pt")
    assert checkpoint.load() is None
    go_on(scene, scheduler, range(done))
    sampler.advance(done)
    checkpoint.save(step=done, note="so far", of=[torch.ones(2)])
    go_on(scene, scheduler, range(done, 6))
    whole, rate = state(scene), scheduler.get_last_lr()

    scene = pefs.loaded(DROPOUT)
    scheduler, sampler, checkpoint = parts_of(scene, tmp_path / "last.pt")
    values = checkpoint.load()
    assert values is not None
    assert (values["step"], values["note"], values["of"][0].tolist()) == (done, "so far", [1, 1])
    assert (sampler.epoch, sampler.position) == divmod(5 * done, 20)
    go_on(scene, scheduler, range(done, 6))
    assert same(state(scene), whole)
    assert scheduler.get_last_lr() == rate


def test_a_rate_of_groups_counts_before_the_first_run(pefs: Pefs, tmp_path: Path):
    """That of the training which goes on is the file's, as its weights are."""
    ends = []
    for rate in (0.02, 0.3):
        scene = pefs.scene(MLP)
        scene.optimizer.param_groups[0]["lr"] = rate
        scene.trace()
        path = tmp_path / "rate.pt"
        checkpoint = utils.TrainingCheckpoint(path, scene.model, scene.optimizer)
        if checkpoint.load() is None:
            checkpoint.save()
        step(scene, 1)
        ends.append(state(scene))
    assert same(*ends)


def test_hyperparameters_of_runs_go_on(pefs: Pefs, tmp_path: Path):
    """They were given once: neither the compiled ones nor those of parameter groups count."""
    ends = []
    for saves in (True, False):
        scene = pefs.scene(DROPOUT)
        scene.optimizer.param_groups[0]["lr"] = 0.02  # another than the compiled one
        scene.trace()
        checkpoint = utils.TrainingCheckpoint(tmp_path / "hyper.pt", scene.model, scene.optimizer)
        if saves:
            step(scene, 0, hyperparam_dict={"lr": 0.3, "p": 0.25})
            checkpoint.save()
        else:
            checkpoint.load()
        step(scene, 1)
        ends.append(state(scene))
    assert same(*ends)


def test_what_loads_counts_at_once(scene: Scene, tmp_path: Path):
    checkpoint = utils.TrainingCheckpoint(tmp_path / "once.pt", scene.model, scene.optimizer)
    step(scene, 0)
    checkpoint.save()
    kept = state(scene)
    step(scene, 1)
    assert not same(state(scene), kept)
    checkpoint.load()
    assert same(state(scene), kept)


def test_nothing_is_loaded(tmp_path: Path):
    samba.session.reset()
    checkpoint = utils.TrainingCheckpoint(tmp_path / "none.pt", torch.nn.Linear(1, 1))
    with pytest.raises(NotLoaded, match=r"TrainingCheckpoint.load\(\)"):
        checkpoint.load()
    with pytest.raises(NotLoaded, match=r"TrainingCheckpoint.save\(\)"):
        checkpoint.save()


def test_a_rank_that_has_evaluated_alone_is_told_what_differs(
    pefs: Pefs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[dict[str, str]] = []

    class Job:
        def agree(self, when: str, facts: dict[str, str], *, advice: str) -> None:
            assert when == "TrainingCheckpoint.save()"
            assert "evaluates alone sets its random streams back: session.set_rng_state" in advice
            seen.append(facts)

        def gather(self, what: str, content: bytes) -> list[bytes]:
            return [content]

    monkeypatch.setattr(training_checkpoint, "job_of_replicas", lambda _: Job())
    scene = pefs.loaded(DROPOUT)
    checkpoint = utils.TrainingCheckpoint(tmp_path / "alone.pt", scene.model, scene.optimizer)
    checkpoint.save()
    streams = samba.session.get_rng_state()
    step(scene, 0, section_types=["FWD"], train=False)
    checkpoint.save()
    samba.session.set_rng_state(streams)
    checkpoint.save()
    first, second, third = seen
    differs = [name for name in first if first[name] != second[name]]
    assert differs == ["random streams, which a run of one rank alone moves on"]
    assert third == first


class Harm:
    def __reduce__(self):
        return os.getcwd, ()


def test_files_that_are_none_are_refused_and_change_nothing(scene: Scene, tmp_path: Path):
    path = tmp_path / "bad.pt"
    checkpoint = utils.TrainingCheckpoint(path, scene.model, scene.optimizer)
    checkpoint.save()
    whole = path.read_bytes()
    before = state(scene)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadCheckpoint, match="torch cannot load it"):
        checkpoint.load()
    path.write_bytes(pickle.dumps(Harm()))
    with pytest.raises(BadCheckpoint, match="torch cannot load it"):
        checkpoint.load()
    torch.save({"model": {}}, path)
    with pytest.raises(BadCheckpoint, match="not a file of TrainingCheckpoint"):
        checkpoint.load()
    path.unlink()
    path.mkdir()
    with pytest.raises(BadCheckpoint, match="torch cannot load it"):
        checkpoint.load()
    assert same(state(scene), before)


def test_a_file_of_another_training_names_all_that_differs(scene: Scene, tmp_path: Path):
    path = tmp_path / "other.pt"
    scheduler, _, checkpoint = parts_of(scene, path)
    checkpoint.save()
    kept = torch.load(path, weights_only=True)
    kept["model"]["first.weight"] = torch.zeros(2, 2)
    kept["model"]["third.weight"] = kept["model"].pop("second.weight")
    kept["optimizers"] = []
    torch.save(kept, path)
    before = state(scene)
    other = utils.TrainingCheckpoint(path, scene.model, scene.optimizer, schedule=scheduler)
    with pytest.raises(BadCheckpoint) as caught:
        other.load()
    for text in (
        "no tensor 'second.weight'",
        "its tensor 'third.weight' is not known",
        "tensor 'first.weight' is [2, 2] torch.float32, expected [6, 4] torch.float32",
        "no part 'schedule'",
        "its part 'sampler' is not known",
        "optimizers over [] parameters, expected [[4]]",
    ):
        assert text in str(caught.value)
    assert same(state(scene), before)


def test_what_cannot_be_saved(scene: Scene, tmp_path: Path):
    checkpoint = utils.TrainingCheckpoint(tmp_path / "save.pt", scene.model, scene.optimizer)
    checkpoint.save(step=1)
    with pytest.raises(BadCheckpoint, match=r"not written: harm is .* could not be loaded again"):
        checkpoint.save(harm=Harm())
    values = checkpoint.load()
    assert values == {"step": 1}
    nowhere = utils.TrainingCheckpoint(tmp_path / "no" / "x.pt", scene.model, scene.optimizer)
    with pytest.raises(SambaError, match=r"not written: .*there is no folder"):
        nowhere.save()
    with pytest.raises(ArgumentError, match=r"expected objects with state_dict\(\)"):
        part: Any = 7
        utils.TrainingCheckpoint(tmp_path / "x.pt", scene.model, scene.optimizer, step=part)

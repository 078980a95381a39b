"""A training that is followed: what makes a row, what stands in it, and what it does to runs."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samba
from samba import utils
from samba.errors import MissingPackage
from samba.profiler import PROFILER
from samba.session import following, step_log
from samba.session.step_log import FORMAT, VERSION
from samba.utils.checkpoint import BadCheckpoint
from tests.pages import page
from tests.samba.worlds import MLP, Pefs, Scene, World, named, other_batch

LOSS = "mlp__cross_entropy_loss__outputs__0"
KEYS = {"kind", "program", "step", "time", "seconds", "runs", "losses"}


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Nothing is followed after a test."""
    yield
    samba.session.stop_following()


@pytest.fixture
def follow(tmp_path: Path) -> Callable[..., None]:
    """Follow into the test's folder, without TensorBoard, which takes a second to import."""
    return lambda **more: samba.session.follow(tmp_path / "log", **{"tensorboard": False, **more})


@pytest.fixture
def scene(pefs: Pefs, follow: Callable[..., None]) -> Scene:
    """A model on the device whose training is followed."""
    scene = pefs.loaded(MLP)
    follow()
    return scene


def lines(folder: Path) -> list[dict[str, Any]]:
    """All lines of the file; each is JSON as its standard has it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not valid JSON")

    text = (folder / "log" / "steps.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows; what is under way is waited for."""
    samba.session.stop_following()
    return [line for line in lines(folder) if line["kind"] != "start"]


def test_a_row_for_each_step(scene, tmp_path):
    losses = [
        scene.run(named(other_batch(seed)), hyperparam_dict={"lr": 0.1 / (seed + 1)})[0].item()
        for seed in range(3)
    ]
    # A row is there when its loss is: nothing has to end first.
    assert [line["kind"] for line in lines(tmp_path)] == ["start", *["train"] * 3]
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [1, 2, 3]
    assert [row["losses"] for row in found] == [{LOSS: loss} for loss in losses]
    for seed, row in enumerate(found):
        assert set(row) == KEYS | {"hyperparameters"}
        assert row["program"] == samba.session.program.name and row["runs"] == 1
        held = {"lr": 0.1 / (seed + 1), "momentum": 0.9, "weight_decay": 0.0}
        assert row["hyperparameters"] == pytest.approx(held)
    assert found[0]["seconds"] is None
    assert all(row["seconds"] > 0 for row in found[1:])
    assert [row["time"] for row in found] == sorted(row["time"] for row in found)


def test_losses_that_nobody_fetches_are_those_of_their_runs(pefs, follow, tmp_path):
    scene = pefs.loaded(MLP)
    batches = [named(other_batch(seed)) for seed in range(8)]
    wanted = [scene.run(batch)[0].item() for batch in batches]
    scene = pefs.loaded(MLP)
    follow()
    for batch in batches:
        assert samba.session.run(batch, ()) == ()
    assert [row["losses"][LOSS] for row in rows(tmp_path)] == wanted


def test_a_loss_that_is_under_way_is_not_waited_for(pefs, follow, tmp_path, monkeypatch):
    """Its memory is the next run's: what is read later is a copy."""
    pefs.loaded(MLP)
    follow()
    region = samba.session.program.graphs[0].outputs[0].region
    device = samba.session.need_loaded("test").device
    made = []

    class Busy:
        """An array that is not there until it is asked for."""

        def __init__(self, array: Any) -> None:
            self.array, self.ready = array, False

        def is_ready(self) -> bool:
            return self.ready

        def __float__(self) -> float:
            return float(self.array)

        def mean(self) -> Busy:
            made.append(Busy(self.array.copy()))
            return made[-1]

    later = following._later

    def busy(device: Any, of: int) -> Any:
        buffer = device.pool.buffers[of]
        device.pool.buffers[of] = Busy(buffer)
        try:
            return later(device, of)
        finally:
            device.pool.buffers[of] = buffer

    monkeypatch.setattr(following, "_later", busy)
    for seed in range(3):
        samba.session.run(named(other_batch(seed)), ())
    assert len(made) == 3 and len(lines(tmp_path)) == 1
    made[1].ready = True  # not before its predecessor
    samba.session.run(named(other_batch(3)), ())
    assert len(lines(tmp_path)) == 1
    made[0].ready = True
    samba.session.run(named(other_batch(4)), ())
    assert [line["step"] for line in lines(tmp_path)[1:]] == [1, 2]
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [1, 2, 3, 4, 5]
    assert found[-1]["losses"][LOSS] == float(device.pool.buffers[region])


def test_runs_are_the_same(pefs, follow):
    def trained() -> list[torch.Tensor]:
        scene = pefs.loaded(MLP)
        for seed in range(4):
            scene.run(named(other_batch(seed)))
        samba.session.to_cpu(scene.model)
        return [samba.to_torch(p).clone() for p in scene.model.parameters()]

    plain = trained()
    follow()
    assert all(map(torch.equal, trained(), plain))
    assert PROFILER.active
    samba.session.stop_following()
    assert not PROFILER.active and PROFILER.follower is None


def test_a_step_in_parts_is_one_row(scene, tmp_path):
    losses = []
    for seed in range(2):
        losses += [scene.run(named(other_batch(seed)), section_types=["fwd"])[0].item()]
        samba.session.run(None, (), section_types=["bckwd"])
        samba.session.run(None, (), section_types=["opt"])
    found = rows(tmp_path)
    assert [(row["kind"], row["step"], row["runs"]) for row in found] == [
        ("train", 1, 1),
        ("train", 2, 1),
    ]
    assert [row["losses"][LOSS] for row in found] == losses


def test_accumulated_runs_are_one_row_with_their_mean(scene, tmp_path):
    losses = []
    for seed in range(3):
        losses += [scene.run(named(other_batch(seed)), section_types=["fwd", "bckwd"])[0].item()]
    samba.session.run(None, (), section_types=["opt"])
    (row,) = rows(tmp_path)
    assert row["runs"] == 3 and row["losses"][LOSS] == pytest.approx(sum(losses) / 3)


def test_runs_without_a_backward_pass_are_an_evaluation(scene, tmp_path):
    scene.run()
    losses = [
        scene.run(named(other_batch(seed)), section_types=["fwd"])[0].item() for seed in range(3)
    ]
    scene.run()
    found = rows(tmp_path)
    assert [(row["kind"], row["step"]) for row in found] == [
        ("train", 1),
        ("eval", 1),
        ("train", 2),
    ]
    assert set(found[1]) == KEYS and found[1]["runs"] == 3
    assert found[1]["losses"][LOSS] == pytest.approx(sum(losses) / 3)


def test_an_evaluator_makes_rows_of_the_program_that_is_trained(scene, tmp_path):
    evaluate = samba.session.evaluator(scene.model, scene.inputs)
    scene.run()
    loss = samba.to_torch(evaluate.run(scene.inputs)[0]).item()
    samba.session.reset()  # which waits for what is under way, and writes it
    train, evaluated = (line for line in lines(tmp_path) if line["kind"] != "start")
    assert evaluated["program"] == train["program"]
    assert (evaluated["kind"], evaluated["step"]) == ("eval", 1)
    assert evaluated["losses"] == {LOSS: pytest.approx(loss)}


class Growing(nn.Module):
    """Its loss is infinite or no number for such an input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * x).sum(-1)


GROWING = World(
    name="growing",
    model=Growing,
    inputs=lambda: {"x": torch.ones(3, 2)},
    optimizer=lambda model: samba.optim.SGD(model.parameters(), lr=0.0),
)


def test_numbers_that_json_has_not_are_texts(pefs, follow, tmp_path):
    """And a loss of several elements is their mean."""
    pefs.loaded(GROWING)
    follow()
    for rows_of in ([1.0, 2.0, 4.5], [math.inf, 0, 0], [-math.inf, 0, 0], [math.nan, 0, 0]):
        x = torch.tensor(rows_of)[:, None] * torch.tensor([1.0, 1.0])
        samba.session.run(samba.from_torch_tensor(x, name="x"), (), section_types=["fwd"])
        follow()
    found = [next(iter(row["losses"].values())) for row in rows(tmp_path)]
    assert found == [5.0, "Infinity", "-Infinity", "NaN"]
    assert math.isnan(float("NaN")) and float(found[2]) == -math.inf


def test_a_file_is_continued_with_a_line_that_says_so(pefs, follow, tmp_path):
    scene = pefs.loaded(MLP)
    for _ in range(2):
        follow()
        scene.run()
        scene.run()
        samba.session.stop_following()
    with (tmp_path / "log" / "steps.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # the machine has lost its power here
    follow(step=1)
    scene.run()
    samba.session.stop_following()
    found = lines(tmp_path)
    assert [(line["kind"], line["step"]) for line in found] == [
        *[("start", None), ("train", 1), ("train", 2)],
        *[("start", None), ("train", 3), ("train", 4)],
        *[("start", 1), ("train", 2)],
    ]
    assert [line["removed_bytes"] for line in found if line["kind"] == "start"] == [0, 0, 21]
    assert (found[0]["format"], found[0]["version"]) == (FORMAT, VERSION)


def test_a_checkpoint_knows_its_step(pefs, follow, tmp_path):
    scene = pefs.loaded(MLP)
    follow()
    checkpoint = utils.TrainingCheckpoint(tmp_path / "last.pt", scene.model, scene.optimizer)
    for save in (False, True, False):
        scene.run()
        if save:
            checkpoint.save()
    checkpoint.load()
    scene.run()
    follow()  # as a new process does, which would count on from the last row
    checkpoint.load()
    scene.run()
    samba.session.stop_following()
    checkpoint.load()
    checkpoint.save()
    assert checkpoint.load() == {}
    torch.save(torch.load(tmp_path / "last.pt") | {"step": -1}, tmp_path / "last.pt")
    with pytest.raises(BadCheckpoint, match="step -1, expected a whole number"):
        checkpoint.load()
    assert [(line["kind"], line["step"]) for line in lines(tmp_path)] == [
        *[("start", None), ("train", 1), ("train", 2), ("train", 3)],
        *[("start", 2), ("train", 3)],
        *[("start", None), ("start", 2), ("train", 3)],
    ]


def test_a_full_disk_ends_no_training(scene, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    scene.run()
    scene.run()
    monkeypatch.undo()
    told = [r.getMessage() for r in caplog.records]
    path = tmp_path / "log" / "steps.jsonl"
    assert told == [f"{path}: this training is no longer recorded: No space left"]
    assert samba.session.counters.runs == 2 and PROFILER.follower is None


def test_a_run_that_has_failed_is_none_of_a_row(scene, tmp_path, monkeypatch):
    """Nor is its error told twice: the session has its own words for it."""

    class Failed:
        def is_ready(self) -> bool:
            return True

        def __float__(self) -> float:
            raise RuntimeError("the executable has failed")

    with monkeypatch.context() as patch:
        patch.setattr(following, "_later", lambda *_: Failed())
        scene.run(section_types=["fwd", "bckwd"])
    loss = scene.run(section_types=["fwd", "bckwd"])[0].item()
    samba.session.run(None, (), section_types=["opt"])
    (row,) = rows(tmp_path)
    assert row["runs"] == 1 and row["losses"] == {LOSS: loss}


def test_runs_on_a_timeline_are_followed_too(scene, tmp_path):
    samba.session.start_timeline(tmp_path / "t.json")
    loss = scene.run()[0].item()
    samba.session.stop_timeline()
    (row,) = rows(tmp_path)
    assert (row["step"], row["losses"]) == (1, {LOSS: loss})


def test_without_an_optimizer_each_backward_pass_is_a_step(pefs, follow, tmp_path):
    scene = pefs.loaded(World(name="host-optimizer", optimizer=lambda _: None))
    follow()
    losses = [scene.run(named(other_batch(seed)))[0].item() for seed in range(2)]
    found = rows(tmp_path)
    assert [(row["kind"], row["step"]) for row in found] == [("train", 1), ("train", 2)]
    assert [row["losses"][LOSS] for row in found] == losses
    assert found[0]["hyperparameters"] == {}


def test_an_inference_has_no_rows(pefs, follow, tmp_path):
    scene = pefs.loaded(
        World(name="inference", compile={"inference": True}, optimizer=lambda _: ())
    )
    follow()
    scene.run()
    assert rows(tmp_path) == []


# -- TensorBoard -------------------------------------------------------------------------


def test_tensorboard_shows_the_same(pefs, follow, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scene = pefs.loaded(MLP)
    follow(tensorboard=True)
    scene.run()
    scene.run(section_types=["fwd"])
    scene.run()
    found = rows(tmp_path)
    events = EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    name = samba.session.program.name
    figures = ("lr", "momentum", "weight_decay", "seconds", LOSS)
    wanted = {f"train/{name}/{figure}" for figure in figures}
    assert set(events.Tags()["scalars"]) == wanted | {
        f"eval/{name}/{LOSS}",
        f"eval/{name}/seconds",
    }
    losses = events.Scalars(f"train/{name}/{LOSS}")
    trained = [row for row in found if row["kind"] == "train"]
    assert [(e.step, e.value) for e in losses] == [(r["step"], r["losses"][LOSS]) for r in trained]
    # A training that goes back to an earlier step takes what came later with it.
    follow(tensorboard=True, step=1)
    scene.run()
    samba.session.stop_following()
    events = EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    assert [e.step for e in events.Scalars(f"train/{name}/{LOSS}")] == [1, 2]
    assert events.Scalars(f"train/{name}/{LOSS}")[1].value == lines(tmp_path)[-1]["losses"][LOSS]


def test_without_tensorboard_one_message_says_what_to_install(
    follow, tmp_path, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingPackage, match=r"pip install 'sambaflow-emulator\[tensorboard\]'"):
        follow(tensorboard=True)
    follow(tensorboard=None)
    (told,) = [r.getMessage() for r in caplog.records]
    assert "pip install 'sambaflow-emulator[tensorboard]'" in told and "\n" not in told
    assert told.endswith(f"; only {tmp_path / 'log' / 'steps.jsonl'} is written")
    assert len(lines(tmp_path)) == 1


# -- around it ---------------------------------------------------------------------------


def test_rows_are_lines_of_the_logger(pefs, follow, caplog):
    from sambaflow.logging import samba_logger

    scene = pefs.loaded(MLP)
    with caplog.at_level(logging.INFO, logger=samba_logger.logger.name):
        follow()
        loss = scene.run()[0].item()
    name = samba.session.program.name
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.INFO] == [
        f"step 1: train/{name}/{LOSS} {loss:.6g}, train/{name}/lr 0.1, "
        f"train/{name}/momentum 0.9, train/{name}/weight_decay 0"
    ]


def test_of_replicas_the_first_writes(follow, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    follow()
    assert PROFILER.follower is None and not (tmp_path / "log").exists()
    monkeypatch.setenv("RANK", "0")
    follow()
    assert PROFILER.follower is not None and (tmp_path / "log").exists()


def test_another_folder_takes_its_place(pefs, follow, tmp_path):
    scene = pefs.loaded(MLP)
    follow()
    scene.run(section_types=["fwd"])
    samba.session.follow(tmp_path / "second", tensorboard=False)
    scene.run()
    assert [line["kind"] for line in lines(tmp_path)] == ["start", "eval"]
    samba.session.stop_following()
    samba.session.stop_following()
    assert len((tmp_path / "second" / "steps.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("command", "follows"), [("run", True), ("test", True), ("compile", False)]
)
def test_the_option_follows(command, follows, tmp_path, monkeypatch, pefs, caplog):
    pefs.loaded(MLP)
    arguments = [command, f"--log-dir={tmp_path / 'log'}", f"--pef={samba.session.pef_path}"]
    monkeypatch.setattr("sys.argv", ["app.py", *arguments])
    monkeypatch.setattr("samba.utils.argparser.show_uncaught_as_messages", lambda **_: None)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    monkeypatch.setattr(step_log, "_writer", lambda *_: None)
    utils.argparser.parse_app_args()
    assert (PROFILER.follower is not None) == follows == (tmp_path / "log").exists()
    lost = any("--log-dir: nothing is written" in r.getMessage() for r in caplog.records)
    assert lost != follows


def test_an_option_of_the_app_is_the_apps(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", "run", "--log-dir=mine", "--cpu"])
    monkeypatch.setattr("samba.utils.argparser.show_uncaught_as_messages", lambda **_: None)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    monkeypatch.chdir(tmp_path)

    def declare(parser: Any) -> None:
        parser.add_argument("--log-dir")
        parser.add_argument("--cpu", action="store_true")

    args = utils.argparser.parse_app_args(common_parser_fn=declare)
    assert args.log_dir == "mine" and PROFILER.follower is None and not list(tmp_path.iterdir())


def test_the_page_has_every_key():
    text = page("follow.md", "The lines")
    for key in (*KEYS, "hyperparameters", "format", "version", "removed_bytes"):
        assert f"`{key}`" in text, key
    assert f'"{FORMAT}", {VERSION}' in text

"""One program on 1, 2 and 4 chips: the same losses and weights, and a chip's share of memory."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.kept_files import CACHE_VARIABLE
from emulator.memory.budget import LIMIT_VARIABLE
from samba.errors import ArgumentError
from samba.session import loading
from samba.session.loading import wanted_chips
from samba.support.deviations import Deviations
from tests.processes import finished, host_devices
from tests.samba.distributed.processes import clean_environment
from tests.warm import finished as finished_warm, for_children

ROOT = Path(__file__).parents[3]
CLOSE = 1e-5
"""Relative, of losses and of the sums of weights after ten steps: sums over parts of a batch or of
a layer are rounded in another order."""


def run(model: str, folder: Path, *ways: str, **env: str) -> Any:
    """How the worker ended; it finds the executables of those before it."""
    command = [sys.executable, "-m", "tests.samba.mesh.worker", model, str(folder), *ways]
    env = clean_environment(**{"XLA_FLAGS": host_devices(8), **env})
    return finished_warm(command, cwd=ROOT, env=env, seconds=900)


def trained(model: str, folder: Path, *ways: str, **env: str) -> list[dict[str, Any]]:
    """What the worker says of each way."""
    done = run(model, folder, *ways, **env)
    assert done.returncode == 0, done.stderr
    return told(done)


def told(done: Any) -> list[dict[str, Any]]:
    """What the worker said of the ways that it has gone."""
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check(found: list[dict[str, Any]]) -> None:
    """All that was trained is as the first."""
    one, *others = found
    assert one["losses"][0] != pytest.approx(one["losses"][-1], rel=1e-3)  # it has learned
    for other in others:
        np.testing.assert_allclose(other["losses"], one["losses"], rtol=CLOSE)
        np.testing.assert_allclose(other["weights"], one["weights"], rtol=CLOSE, atol=CLOSE)


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """How a worker ended whose last way has more chips than there are."""
    ways = "1:none", "2:weight", "4:batch", "9:batch"
    return run("lenet", tmp_path_factory.mktemp("lenet"), *ways)


def test_lenet(lenet: Any) -> None:
    found = told(lenet)
    assert len(found) == 3, lenet.stderr
    check(found)
    one, weight, batch = found
    assert one["bytes"] == [one["kept"]]
    assert batch["bytes"] == [one["kept"]] * 4
    assert max(weight["bytes"]) <= 1.1 * one["kept"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet", "gpt", "resnet18"])
def test_every_number_of_chips(model: str, tmp_path: Path) -> None:
    found = trained(model, tmp_path, "1:none", "2:weight", "4:weight", "2:batch", "4:batch")
    check(found)
    for count, weight in ((2, found[1]), (4, found[2])):
        assert len(weight["bytes"]) == count
        assert max(weight["bytes"]) <= 1.1 * found[0]["kept"] / count


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet", "gpt"])
def test_section_by_section(model: str, tmp_path: Path) -> None:
    """Activations lie on the chips between sections."""
    check(trained(model, tmp_path, "1:none:o0", "2:weight:o0", "4:batch:o0"))


def test_a_model_of_four_times_a_chips_memory(tmp_path: Path) -> None:
    """What one chip refuses eight train; each has an eighth of the weights and their states."""
    one, eight = trained("wide", tmp_path, "1:none", "8:weight")
    check([one, eight])
    limit = one["kept"] // 4
    assert max(eight["bytes"]) == one["kept"] // 8
    again = trained("wide", tmp_path, "8:weight", **{LIMIT_VARIABLE: str(limit)})
    assert again == [eight]
    refused = run("wide", tmp_path, "1:none", **{LIMIT_VARIABLE: str(limit)})
    assert refused.returncode != 0
    assert "OutOfMemory" in refused.stderr
    assert LIMIT_VARIABLE in refused.stderr


@pytest.mark.slow
def test_fourier_transforms_along_an_axis_that_is_divided(tmp_path: Path) -> None:
    """The entries of torch's database, of which every argument is divided along its first axis."""
    command = [sys.executable, "-m", "tests.opinfo", "--chips", "2", "--only", "^stft$|^fft.rfft"]
    command += ["--results", str(tmp_path / "results"), "--workers", "1"]
    done = finished(command, cwd=ROOT, seconds=600)
    assert done.returncode == 0, done.stdout
    assert "'passed': " in done.stdout
    assert "failed" not in done.stdout


_TRAIN = """
import sys
from pathlib import Path
from emulator.plans.kept_plans import KeptPlans
from tests.samba.mesh.worker import train
def refuse(*args):
    raise AssertionError("it is traced again")
if sys.argv[2] == "again":
    KeptPlans.keep = refuse
for split in ("weight", "batch"):
    print(train("wide", Path(sys.argv[1]), 2, split))
"""


def test_a_later_process_traces_no_plan_again(tmp_path: Path) -> None:
    env = os.environ | {"XLA_FLAGS": host_devices(2), CACHE_VARIABLE: str(tmp_path / "kept")}
    first, again = [
        finished([sys.executable, "-c", _TRAIN, str(tmp_path), when], cwd=ROOT, env=env)
        for when in ("first", "again")
    ]
    assert first.returncode == 0, first.stderr
    assert [*(tmp_path / "kept" / "plans").iterdir()]
    results = [
        [line for line in done.stdout.splitlines() if line.startswith("{")]
        for done in (first, again)
    ]
    assert len(results[0]) == 2
    assert results[1] == results[0], again.stderr


def test_chips_that_are_not_there(lenet: Any) -> None:
    assert lenet.returncode != 0
    assert "--n-chips: found 8 cpu device(s) in this process, expected 9" in lenet.stderr
    assert "--xla_force_host_platform_device_count=9" in lenet.stderr


@pytest.mark.slow
def test_replicas_of_several_chips(tmp_path: Path) -> None:
    """Two replicas of two chips each print the losses of two of one chip, by each engine."""
    lenet = [sys.executable, "examples/lenet.py"]
    where = ["--output-folder", str(tmp_path), "--pef-name", "lenet"]
    compiled = finished_warm([*lenet, "compile", "--data-parallel", "-ws", "2", *where], cwd=ROOT)
    assert compiled.returncode == 0, compiled.stderr
    said = []
    for engine, split in (
        ("torch", ""),
        ("torch", "weight"),
        ("torch", "batch"),
        ("jax", "weight"),
    ):
        more = ["--n-chips", "2", "--tensor-parallel", split] if split else []
        run_ = ["run", "--pef", str(tmp_path / "lenet" / "lenet.pef"), "-e", "1"]
        options = ["--data-parallel", "--reduce-on-rdu", *more]
        launch = [sys.executable, "-m", "samba", "launch", "-n", "2", *lenet[1:], *run_, *options]
        env = clean_environment(SN_DP_ENGINE=engine, **for_children())
        done = finished_warm(launch, cwd=ROOT, env=env, seconds=600)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        said.append(sorted(line for line in lines if "Loss: " in line))
        assert len(said[-1]) == 4  # an epoch and a test on each replica
    assert all(losses == said[0] for losses in said)


# -- what a command line or a config says of chips -------------------------------------


@pytest.mark.parametrize("config", [{}, {"n_chips": 1}, {"tensor_parallel": "none"}])
def test_one_chip_where_nothing_is_said(config: dict[str, object]) -> None:
    assert wanted_chips(config) is None


@pytest.mark.parametrize("count", [0, -1, "2", 2.0, True])
def test_numbers_of_chips_that_are_none(count: object) -> None:
    with pytest.raises(ArgumentError, match=r"--n-chips.*1 or more"):
        wanted_chips({"n_chips": count, "tensor_parallel": "batch"})


@pytest.mark.parametrize("split", ["weights", "", 3])
def test_splits_that_are_none(split: object) -> None:
    with pytest.raises(ArgumentError, match=r"--tensor-parallel.*none or batch or weight"):
        wanted_chips({"n_chips": 2, "tensor_parallel": split})


@pytest.mark.parametrize(
    "config",
    [{"n_chips": 4}, {"n_chips": 4, "tensor_parallel": "none"}, {"tensor_parallel": "weight"}],
)
def test_half_of_the_two_options_is_told(
    config: dict[str, object], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "deviations", Deviations())
    with caplog.at_level(logging.WARNING, logger="samba"):
        assert wanted_chips(config) is None
    assert "the program runs on one device [deviation: one-chip]" in caplog.text

"""``samba.session.memory()``: what is held; and a loop of runs keeps neither memory nor threads."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

import samba
from samba.errors import NotLoaded
from tests.samba.session.loading import FINE
from tests.samba.worlds import MLP, named, other_batch
from tests.warm import finished


def test_without_a_program_there_is_none():
    with pytest.raises(NotLoaded, match="memory"):
        samba.SambaSession().memory()


def test_what_is_held(scene):
    before = samba.session.memory()
    assert before.plans == () and "no plan has run yet" in str(before)
    held = dict(before.held)
    weights = sum(4 * p.numel() for p in scene.model.parameters())
    assert held["weight"] == weights
    assert "optimizer_state" not in held
    samba.session.run(named(other_batch()), scene.model.output_tensors)
    held = dict(samba.session.memory().held)
    assert held["weight"] == held["gradient"] == held["optimizer_state"] == weights
    assert held["input"] == 5 * 4 * 4 + 5 * 8


def test_every_plan_is_predicted_and_measured(scene):
    samba.session.run(scene.inputs, ())
    samba.session.run(scene.inputs, (), section_types=["FWD"])
    evaluator = samba.session.evaluator(scene.model)
    evaluator.run(scene.inputs)
    found = samba.session.memory()
    assert [plan.purpose for plan in found.plans] == ["", "", "evaluation"]
    names = [section.name for section in samba.session.program.sections]
    assert found.plans[0].sections == tuple(names)
    assert found.plans[1].sections == ("fwd_0",)
    for plan in found.plans:
        predicted, measured = plan.predicted, plan.measured
        assert measured is not None
        assert (predicted.argument, predicted.alias) == (measured.argument, measured.alias)
        assert 0 <= measured.output - predicted.output <= 8 * 50  # XLA's list of the results
        assert measured.peak > 0
    text = str(found)
    assert text.count("predicted") == text.count("measured") == 3
    assert "fwd_0 (evaluation)" in text
    told = json.loads(json.dumps(found.as_dict()))
    assert told["held_bytes"] == sum(told["held"].values())
    assert told["plans"][0]["measured"]["peak_bytes"] == found.plans[0].measured.peak


def test_evaluators_are_listed_while_a_script_has_them_and_their_program_is_loaded(pefs):
    scene = pefs.loaded(MLP)
    first, second = (samba.session.evaluator(scene.model) for _ in range(2))
    for evaluator in (first, second):
        evaluator.run(scene.inputs)
    assert len(samba.session.memory().plans) == 2
    del first, evaluator
    assert len(samba.session.memory().plans) == 1
    scene = pefs.loaded(MLP)
    assert samba.session.memory().plans == ()
    assert second.output_tensors  # a script still has it


def test_a_plan_is_predicted_for_what_the_host_has_set(scene):
    """Gradients of outputs that were written, and momentum that is 0, change what it takes."""
    samba.session.run(scene.inputs, ())
    samba.session.run(scene.inputs, (), {"momentum": 0.0})
    with_momentum, without = samba.session.memory().plans
    states = sum(4 * p.numel() for p in scene.model.parameters())
    assert with_momentum.predicted.argument - without.predicted.argument == states
    assert without.predicted.argument == without.measured.argument


def test_many_sections_are_named_by_the_first_and_the_last(pefs):
    scene = pefs.loaded(FINE)
    samba.session.run(scene.inputs, ())
    count = len(samba.session.program.sections)
    text = " ".join(str(samba.session.memory()).split())
    assert f"fwd_0 .. opt_sgd0, {count}" in text


# -- a loop keeps nothing --------------------------------------------------------------


SCRIPT = """
    import os, sys, threading
    import torch
    import sambaflow.samba as samba
    import sambaflow.samba.utils as utils
    from sambaflow.samba.sambaloader import SambaLoader

    class LogReg(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin_layer = torch.nn.Linear(784, 10, bias=False)
            self.criterion = torch.nn.CrossEntropyLoss()

        def forward(self, image, label):
            out = self.lin_layer(image)
            return self.criterion(out, label), out

    def state():
        with open("/proc/self/status") as status:
            pages = next(line for line in status if line.startswith("VmRSS"))
        return int(pages.split()[1]) / 1024, len(os.listdir("/proc/self/task"))

    def batches(count):
        for _ in range(count):
            yield torch.randn(1, 784), torch.randint(10, (1,))

    names, runs, use_loader = ("image", "label"), int(sys.argv[1]), sys.argv[2] == "loader"
    model = samba.from_torch_model_(LogReg())
    inputs = [samba.from_torch_tensor(t, name=n) for t, n in zip(next(batches(1)), names)]
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pef = samba.session.compile(
        model, inputs, optimizer, name="logreg", config_dict={"output_folder": sys.argv[3]}
    )
    outputs = utils.trace_graph(model, inputs, optimizer, pef=pef)

    def loop(count):
        source = SambaLoader(batches(count), names) if use_loader else batches(count)
        for step, batch in enumerate(source):
            if not use_loader:
                batch = [samba.from_torch_tensor(t, name=n) for t, n in zip(batch, names)]
            loss, _ = samba.session.run(batch, outputs, hyperparam_dict={"lr": 0.1 / (step + 1)})
            loss.item()
        del source

    warmup = min(1000, runs // 2)
    loop(warmup)
    memory, threads = state()
    loop(runs - warmup)
    after, threads_after = state()
    left = [t.name for t in threading.enumerate() if t.name.startswith("SambaLoader")]
    print(after - memory, threads_after - threads, len(left))
"""


def grown(runs: int, feed: str, folder: Path) -> tuple[float, int, int]:
    """Growth after the first 1,000 runs in a process of its own: MB, threads, loader threads."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(runs), feed, str(folder)]
    done = finished(command, seconds=300)
    assert done.returncode == 0, done.stderr
    megabytes, threads, left = done.stdout.splitlines()[-1].split()
    return float(megabytes), int(threads), int(left)


@pytest.mark.parametrize(
    ("runs", "feed"),
    [
        (1500, "tensors"),
        pytest.param(10_000, "tensors", marks=pytest.mark.slow),
        pytest.param(10_000, "loader", marks=pytest.mark.slow),
    ],
)
def test_memory_and_threads_stay(runs, feed, tmp_path):
    megabytes, threads, left = grown(runs, feed, tmp_path)
    # Had each run kept as much as its own inputs, it would be 3 kB a run.
    assert abs(megabytes) < (5 if runs > 5000 else 1), megabytes
    assert (threads, left) == (0, 0)

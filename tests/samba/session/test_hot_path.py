"""A repeated ``session.run`` walks what the call before prepared: calls counted, nothing timed."""

from __future__ import annotations

import sys
from collections import Counter

import samba
from tests.samba.session.loading import FINE
from tests.samba.worlds import MLP, World, close, named, other_batch

ADDING = World(name="adding", compile={"is_split_batch": True})

PREPARING = {"section_choice.py", "hyperparams.py", "program.py"}
"""Files of what a call prepares."""

_LIMIT = 40
"""Python functions that a repeated call with two inputs and two outputs enters, jax's included."""


def entered(call) -> Counter[str]:
    """Python functions that a call enters, by file and name."""
    names: Counter[str] = Counter()

    def count(frame, event, argument):
        if event == "call":
            code = frame.f_code
            names[f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_name}"] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def repeated(scene, **keywords) -> Counter[str]:
    """What the fourth of four equal calls enters."""
    batches = [named(other_batch(seed)) for seed in range(4)]
    outputs = scene.model.output_tensors
    for batch in batches[:3]:
        samba.session.run(batch, outputs, **keywords)
    return entered(lambda: samba.session.run(batches[3], outputs, **keywords))


def test_a_repeated_call_prepares_nothing(scene):
    for keywords in (
        {},
        {"hyperparam_dict": {"lr": 0.1, "weight_decay": 0.0}},
        {"section_types": ["FWD", "BCKWD", "OPT"]},
        {"section_ids": [[0], [1, 2]]},
        {"train": False},
    ):
        names = repeated(scene, **keywords)
        assert names.total() <= _LIMIT, names
        files = {name.split(":")[0] for name in names}
        assert not files & {*PREPARING, "dispatch.py"}, names
        assert "running.py:_change" not in names


def test_outputs_listed_anew_are_the_outputs_of_the_last_call(scene):
    batch = named(other_batch(0))
    for make in (tuple, list):
        for _ in range(2):
            samba.session.run(batch, make(scene.model.output_tensors))
        names = entered(
            lambda make=make: samba.session.run(batch, make(scene.model.output_tensors))
        )
        assert "running.py:_start" in names
        assert "running.py:_change" not in names and names.total() <= _LIMIT


def test_another_call_prepares_anew(scene):
    """What the tests above look for is there where a call asks for something else."""
    batch = named(other_batch(0))
    samba.session.run(batch, scene.model.output_tensors)
    names = entered(lambda: samba.session.run(batch, (), section_types=["FWD"]))
    assert "running.py:_change" in names
    # "program.py" is among them only if nothing in this process has loaded the program before.
    assert {name.split(":")[0] for name in names} >= PREPARING - {"program.py"}


def test_its_cost_does_not_grow_with_the_program(pefs):
    """Many sections, one an op, cost what three cost."""
    few = repeated(pefs.loaded(MLP))
    samba.session.reset()
    many = repeated(pefs.loaded(FINE))
    assert len(samba.session.program.sections) > 8
    assert many == few


def test_a_schedule_of_learning_rates_resolves_only_its_values(scene):
    """A new lr in each step is a new value on the device and nothing else."""
    inputs, outputs = named(other_batch()), scene.model.output_tensors
    for lr in (0.1, 0.2):
        samba.session.run(inputs, outputs, {"lr": lr})
    names = entered(lambda: samba.session.run(inputs, outputs, {"lr": 0.3}))
    assert names["device.py:set_argin"] == 1
    for prepared in ("device.py:plan", "running.py:_resolve_outputs", "running.py:_resolve_steps"):
        assert prepared not in names


def test_preparing_again_gives_the_same(scene):
    """Alternating calls take the slow path each time, and no other numbers."""
    for seed in range(4):
        batch = other_batch(seed)
        loss, _ = scene.run(named(batch), section_types=["fwd"], train=False)
        close(loss, scene.host(**batch)[0].detach())
        scene.run(named(batch), hyperparam_dict={"lr": 0.1})
        scene.host_step(batch)
    scene.assert_follows()
    assert samba.session.counters.compiles == 2


def test_backward_passes_that_add_up_are_repeated(pefs):
    """They replace no gradients, so there is nothing to warn of."""
    names = repeated(pefs.loaded(ADDING), section_types=["FWD", "BCKWD"])
    assert "running.py:_change" not in names and "running.py:_repeat" in names

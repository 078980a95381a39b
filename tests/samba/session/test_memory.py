"""``samba.session.memory()``: what is held, and plans as predicted and as measured."""

from __future__ import annotations

import json

import pytest

import samba
from samba.errors import NotLoaded
from tests.samba.worlds import MLP, named, other_batch


def test_without_a_program_there_is_none():
    with pytest.raises(NotLoaded, match="memory"):
        samba.SambaSession().memory()


def test_what_is_held(pefs):
    scene = pefs.loaded(MLP)
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


def test_every_plan_is_predicted_and_measured(pefs):
    scene = pefs.loaded(MLP)
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


def test_a_plan_is_predicted_for_what_the_host_has_set(pefs):
    """Gradients of outputs that were written, and momentum that is 0, change what it takes."""
    scene = pefs.loaded(MLP)
    samba.session.run(scene.inputs, ())
    samba.session.run(scene.inputs, (), {"momentum": 0.0})
    with_momentum, without = samba.session.memory().plans
    states = sum(4 * p.numel() for p in scene.model.parameters())
    assert with_momentum.predicted.argument - without.predicted.argument == states
    assert without.predicted.argument == without.measured.argument


def test_many_sections_are_named_by_the_first_and_the_last(pefs):
    from tests.samba.session.test_hot_path import FINE

    scene = pefs.loaded(FINE)
    samba.session.run(scene.inputs, ())
    count = len(samba.session.program.sections)
    text = " ".join(str(samba.session.memory()).split())
    assert f"fwd_0 .. opt_sgd0, {count}" in text

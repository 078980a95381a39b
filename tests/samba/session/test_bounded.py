"""What a session keeps does not grow with the calls of a loop; what never ends says so."""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from emulator import device as device_module
from emulator.errors import OpLimit, UnknownSection
from samba.errors import SambaError
from samba.session import evaluation, onnx_model
from samba.session.onnx_model import OnnxModels
from samba.support.deviations import MOST_TOLD, Deviations
from samba.tensor.host_use import twinned
from tests.samba.session.loading import load
from tests.samba.worlds import MLP, deviations, named, other_batch, told

OURS = ("samba", "emulator", "pef_schema")


def entries(*roots: Any) -> dict[str, int]:
    """How many entries the containers hold that can be reached from some objects, by place."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting = deque((type(root).__name__, root) for root in roots)
    while waiting:
        place, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (dict, list, set, deque)):
            found[place] = found.get(place, 0) + len(value)
            inner = [*value.values()] if isinstance(value, dict) else list(value)
            waiting.extend((f"{place}[]", item) for item in inner)
        elif type(value).__module__.split(".")[0] in OURS and not isinstance(value, torch.Tensor):
            names = {*getattr(value, "__dict__", {}), *_slots(type(value))}
            waiting.extend(
                (f"{place}.{name}", getattr(value, name)) for name in names if hasattr(value, name)
            )
    return found


def _slots(kind: type) -> set[str]:
    return {s for base in kind.__mro__ for s in getattr(base, "__slots__", ()) if s[:2] != "__"}


def test_the_count_sees_what_is_kept():
    kept = Deviations()
    before = entries(kept)
    kept.tell("zero-output", "a")
    assert sum(entries(kept).values()) > sum(before.values())


def test_20_000_unknown_hyperparameters_are_one_warning(pefs, caplog):
    scene = pefs.loaded(MLP)
    unknown = {f"option{n}": n for n in range(20_000)}
    for _ in range(3):
        scene.run(hyperparam_dict={"lr": 0.1, **unknown})
    assert deviations(caplog) == ["unknown-hyperparameter"]
    (text,) = told(caplog)
    assert "20000 hyperparameters have no argin in this PEF and are ignored: 'option0', " in text
    assert "and 19,996 more" in text and "it has lr, momentum" in text and len(text) < 400
    scene.host_step()


def test_of_100_000_unknown_sections_eight_are_asked_for_their_text() -> None:
    asked: list[int] = []

    class Large:
        def __repr__(self) -> str:
            asked.append(1)
            return "9" * 4000

    error = UnknownSection(found=[Large()] * 100_000, wanted=[1], what="section_ids")
    assert "and 99,992 more" in str(error) and len(str(error)) < 2500
    assert len(asked) == 8


def test_ever_new_unknown_keys_are_told_some_times(pefs, caplog):
    scene = pefs.loaded(MLP)
    for n in range(3 * MOST_TOLD):
        scene.run(section_types=["fwd"], hyperparam_dict={f"key{n}": 1})
    texts = told(caplog)
    assert len(texts) == MOST_TOLD
    assert texts[-1].endswith("; further cases of this are not told")
    assert not any(text.endswith("are not told") for text in texts[:-1])


def test_each_deviation_has_a_bound_of_its_own(caplog):
    caplog.set_level(logging.WARNING)
    kept = Deviations()
    for n in range(10_000):
        kept.tell("cast-input", f"text {n}")
    kept.tell("zero-output", "another")
    kept.tell("zero-output", "another")
    assert len(told(caplog)) == MOST_TOLD + 1 and told(caplog)[-1] == "another"
    assert sum(entries(kept).values()) < 2 * MOST_TOLD


def ask(scene, n: int) -> None:
    """What a loop may ask for with ever new values; half of it is refused."""
    batch = named(other_batch(n))
    outputs = scene.model.output_tensors
    samba.session.run(batch, outputs, hyperparam_dict={"lr": 1 / (n + 10), f"unknown{n}": n})
    samba.session.run(batch, [outputs[n % 2]], section_types=["fwd"] * (1 + n % 3))
    samba.session.run(batch, outputs, section_ids=[[0], [[0]] * (n % 3)])
    for refused in (
        {"input_tensors": (torch.zeros(n + 6, 4), batch[1])},
        {"input_tensors": {f"name{n}": torch.zeros(5, 4)}},
        {"input_tensors": (torch.zeros(5, 4).to_sparse(), batch[1])},
        {"section_ids": [100 + n]},
        {"section_types": [f"type{n}"]},
        {"run_until_call_id": 100 + n},
        {"output_tensors": [f"output{n}"]},
        {"hyperparam_dict": {"lr": -n - 1}},
        {"graph_name": f"graph{n}"},
        {f"keyword{n}": n},
    ):
        with pytest.raises(SambaError):
            samba.session.run(**{"input_tensors": batch, "output_tensors": outputs} | refused)
    with pytest.raises(SambaError):
        samba.session.get_tensors_by_name([f"tensor{n}"])


def test_a_session_keeps_the_same_after_many_calls(pefs, monkeypatch):
    monkeypatch.setattr("samba.support.deviations.MOST_TOLD", 4)
    scene = pefs.loaded(MLP)

    def kept() -> dict[str, int]:
        return entries(samba.session, samba.session._slot.loaded, samba.profiler.PROFILER)

    for n in range(12):
        ask(scene, n)
    before = kept()
    for n in range(100, 112):
        ask(scene, n)
    grown = {place: (before.get(place), n) for place, n in kept().items() if n != before.get(place)}
    # Unknown hyperparameters are kept up to a bound of their own, which another test comes to.
    ignored = [place for place in grown if place.endswith("._ignored")]
    assert len(ignored) == 1 and grown[ignored[0]][1] <= 1000
    assert set(grown) == set(ignored), grown


def test_plans_and_choices_are_bounded(pefs, monkeypatch):
    """Ever new lists of sections: the oldest plans go, and results stay right."""
    monkeypatch.setattr(device_module, "MOST_PLANS", 4)
    scene = pefs.loaded(MLP)
    device = samba.session._slot.loaded.device
    runner = samba.session._slot.loaded.only
    want = scene.run(section_types=["fwd"])
    for n in range(2, 9):
        got = scene.run(section_ids=[0] * n)
        assert all(map(torch.equal, got, want))
        kept = max(len(device._plans), len(device._checked), len(runner._choices))
        assert kept <= 4 + len(device.program.sections)
        assert all(id(plan) == key for key, plan in device._checked.items())
    for _ in range(2):
        scene.run()
        scene.host_step()
    scene.assert_follows()


def test_every_section_of_a_program_keeps_its_plan(pefs, monkeypatch):
    """Run one by one, as ``measure-sections`` does: the second round compiles nothing."""
    monkeypatch.setattr(device_module, "MOST_PLANS", 1)
    scene = pefs.loaded(MLP)
    sections = range(len(samba.session._slot.loaded.program.sections))
    assert len(sections) > 1
    for section in sections:
        scene.run(section_ids=[section])
    before = samba.session.counters.compiles
    for section in sections:
        scene.run(section_ids=[section])
    assert samba.session.counters.compiles == before


def test_an_evaluator_keeps_some_forms(pefs, monkeypatch):
    monkeypatch.setattr(evaluation, "MOST_FORMS", 2)
    scene = pefs.loaded(MLP)
    evaluator = samba.session.evaluator(scene.model)
    for size in (1, 2, 3, 1):
        batch = other_batch(size, size)
        logits = evaluator.run((batch["x"], batch["y"]))[1]
        assert logits.shape == (size, 3) and len(evaluator._parts) <= 2
        torch.testing.assert_close(samba.to_torch(logits), scene.host(**batch)[1].detach())


def test_onnx_models_are_kept_for_a_while(monkeypatch):
    monkeypatch.setattr(onnx_model, "_convert", lambda proto: torch.nn.Linear(1, 1))
    monkeypatch.setattr(onnx_model, "_is_model_proto", lambda model: True)
    models = OnnxModels()
    last = object()
    for _ in range(100):
        models.module(last := object(), "test")
    assert len(models._made) == 32
    assert models.module(last, "test") is models.module(last, "test")


def test_events_of_ever_new_names_are_bounded():
    profiler = samba.profiler.Profiler()
    profiler.start_profile()
    for n in range(10_100):
        profiler.end_event(profiler.start_event(f"event {n}"))
    profiler.stop_profile()
    assert len(profiler.names) <= 10_001
    assert len(profiler.get_iter_times("(other events)")) == 100


def test_a_failed_load_leaves_no_notes_about_its_tensors(pefs):
    scene = pefs.scene(MLP)
    scene.inputs = (torch.empty(5, 4, device="meta"), scene.inputs[1])
    before = len(twinned)
    with pytest.raises(SambaError, match="on device meta"):
        scene.trace()
    assert len(twinned) == before


# -- models that meet what a loop would never end for ----------------------------------


NAN, INF = float("nan"), float("inf")


class Whitened(nn.Module):
    """What a matrix that is not finite reaches: a pseudo-inverse, singular values, divisors."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = torch.linalg.svd(x, full_matrices=False)[1]
        return torch.linalg.pinv(x), values, torch.gcd(n, n * 0 + 6), torch.polygamma(10**9, x)


class LongWindow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool1d(x, 2**27, 1, 2**26)


def test_a_model_of_singular_values_ends_for_every_matrix(tmp_path: Path) -> None:
    model = Whitened()
    good = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    n = torch.tensor([-(2**31), 9], dtype=torch.int32)
    inputs = named({"x": good, "n": n})
    load(samba.from_torch_model_(model), inputs, tmp_path, inference=True)
    for bad in (INF, NAN, -INF):
        x = good.clone()
        x[0, 0] = bad
        found = samba.session.run(named({"x": x, "n": n}), model.output_tensors)
        inverse, values, divisors, _ = map(samba.to_torch, found)
        assert inverse.isnan().all()
        assert values.isnan().all()
        assert torch.equal(divisors, torch.gcd(n, torch.tensor(6, dtype=torch.int32)))
    found = samba.session.run(inputs, model.output_tensors)
    torch.testing.assert_close(samba.to_torch(found[0]), torch.linalg.pinv(good))


def test_what_is_beyond_a_bound_is_told_with_its_line(tmp_path: Path) -> None:
    model, inputs = LongWindow(), named({"x": torch.ones(1, 1, 2)})
    with pytest.raises(OpLimit) as caught:
        load(samba.from_torch_model_(model), inputs, tmp_path, inference=True)
        samba.session.run(inputs, model.output_tensors)
    error = caught.value
    assert (error.found, error.most) == (2**27 + 2, 2**26)
    assert error.op.startswith("aten.max_pool1d")
    assert "test_bounded.py:" in error.source
    assert "the padded data, in elements, is 134217730" in str(error)

"""Every op of torch's database at size 0, at one element, and on tensors with other strides."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch

from tests.fuzz.pool import Worker
from tests.opinfo.call import Eager, run_eager
from tests.opinfo.catalog import entry_named, load_entries
from tests.sweeps.op_variants import End, run, samples_of, sized, strided
from tests.sweeps.tally import Outcome, Tally

PARTS = 8
"""Of the whole sweep: some thousand programs are traced, and most of them compiled."""


@pytest.mark.parametrize(
    ("name", "compared"),
    [pytest.param("nanmedian", 3, marks=pytest.mark.slow), ("nn.functional.nll_loss", 2)],
)
def test_other_sizes_of_some(name: str, compared: int) -> None:
    tally = Tally(f"{name} at other sizes")
    entry = entry_named(name)
    for sample in samples_of(entry, 1):
        for ways in sized(sample):
            found = run(entry, ways)
            if not isinstance(found, End):
                tally.add(f"{name}, {ways[0].what}", *found)
    tally.close(at_least=compared)


def test_other_strides_of_some() -> None:
    tally = Tally("ops at other strides, a slice")
    for name in ("nn.functional.hardswish", "mm"):
        entry = entry_named(name)
        for sample in samples_of(entry, 1):
            for variant in strided(sample):
                found = run(entry, (variant,))
                assert not isinstance(found, End), found
                tally.add(f"{name}, {variant.what}", *found)
    tally.close(at_least=5)


def test_what_torch_refuses_and_the_device_computes_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweep bites: the largest of nothing, were torch's kernels not asked."""
    monkeypatch.setattr("samba.tracer.lowering.refuse_of_nothing", lambda graph, model: None)
    entry = entry_named("max.reduction_no_dim")
    (sample,) = samples_of(entry, 1)
    found = run(entry, next(sized(sample)))
    assert not isinstance(found, End)
    assert found[0] is Outcome.SILENT
    assert "torch raises RuntimeError: max(): Expected" in found[1]


@pytest.mark.parametrize(
    ("name", "ends"),
    [("nn.functional.multilabel_margin_loss", True), ("nn.functional.hardswish", False)],
)
def test_memory_that_torch_has_not_written_is_no_result(
    name: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's kernel returns without a word for no rows, and leaves what lay in memory."""
    found = (Outcome.SILENT, "another number")
    monkeypatch.setattr("tests.sweeps.op_variants._compared", lambda *_: found)
    monkeypatch.setattr("tests.sweeps.op_variants.run_eager", _with_zeros_for_nan(run_eager))
    entry = entry_named(name)
    ways = [
        w
        for sample in samples_of(entry, 1)
        for w in sized(sample)
        if "(0, 5)" in w[0].what or not ends
    ]
    assert ways
    assert run(entry, ways[0]) == (End.UNWRITTEN if ends else found)


def _with_zeros_for_nan(run_torch: Callable[..., Eager]) -> Callable[..., Eager]:
    """Torch as it is where new memory holds zeros."""

    def eager(*args: Any, **kwargs: Any) -> Eager:
        found = run_torch(*args, **kwargs)
        if torch.are_deterministic_algorithms_enabled():
            return found
        return dataclasses.replace(found, outputs=tuple(map(torch.nan_to_num, found.outputs)))

    return eager


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_ops(part: int) -> None:
    """In a process of its own: what ends it is a find, too."""
    tally = Tally(f"ops at other sizes and strides, part {part} of {PARTS}")
    ends: Counter[str] = Counter()
    with closing(Worker("variants", deadline=240.0)) as worker:
        for result in worker.tries([entry.name for entry in load_entries()[part::PARTS]]):
            assert not result.outcome.find, f"{result.case}: {result.outcome}"
            for case, found in json.loads(result.outcome.text):
                if isinstance(found, str):
                    ends[found] += 1
                else:
                    tally.add(case, Outcome(found[0]), found[1])
    print(tally.line() + "".join(f"; {n} not compared: {end}" for end, n in ends.items()))
    tally.close(at_least=300)

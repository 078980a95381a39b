"""Runs of equal stretches are found, wherever they begin and whatever lies around them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from emulator.plans.linked.layers import Run, runs_of


@given(
    before=st.lists(st.integers(100, 120), max_size=6),
    layer=st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True),
    count=st.integers(2, 12),
    behind=st.lists(st.integers(200, 220), max_size=6),
)
def test_a_run_is_found_between_others(
    before: list[int], layer: list[int], count: int, behind: list[int]
) -> None:
    forms = [*before, *layer * count, *behind]
    found = runs_of(forms, [1] * len(forms), least=len(layer) * (count - 1))
    covered = len(layer) * count
    assert Run(start=len(before), period=len(layer), covered=covered) in found


def test_runs_do_not_overlap_and_light_ones_are_left_out() -> None:
    forms = [*"ab" * 5, "-", *"xyz" * 3]
    weights = [1] * 11 + [0] * 9
    assert runs_of(forms, weights, least=1) == [Run(start=0, period=2, covered=10)]
    both = runs_of(forms, [1] * 20, least=1)
    assert [(r.start, r.period, r.covered) for r in both] == [(0, 2, 10), (11, 3, 9)]


@pytest.mark.parametrize("forms", ["", "a", "ab", "abcdef"])
def test_what_does_not_repeat_has_no_run(forms: str) -> None:
    assert runs_of(forms, [1] * len(forms), least=1) == []

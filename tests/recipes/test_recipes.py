"""Every recipe ends on the device as with torch, or its difference is said by name."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch

from pef_schema.errors import SambaError
from tests.recipes import (  # noqa: F401  # importing a file collects its recipes
    functions,
    generative,
    heads,
    loops,
    losses,
    networks,
    reinforcement,
    sequences,
)
from tests.recipes.book import RECIPES, Recipe
from tests.recipes.sides import Device, Side, Torch
from tests.samba.worlds import deviations


def cook(recipe: Recipe, side: Side) -> Side:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    recipe.cook(side)
    return side


def assert_same(ours: Side, theirs: Side) -> None:
    assert [n for n, *_ in ours.notes] == [n for n, *_ in theirs.notes] != []
    for (name, got, relative), (_, want, _) in zip(ours.notes, theirs.notes, strict=True):
        scale = want.double().abs().max().item() if want.numel() else 0.0
        torch.testing.assert_close(
            got, want, rtol=0, atol=relative * scale, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_ends_as_with_torch_or_says_what_differs(name, tmp_path, caplog):
    recipe = RECIPES[name]
    theirs = cook(recipe, Torch(tmp_path / "torch"))
    device = Device(tmp_path / "device")
    if recipe.refused:
        with pytest.raises(SambaError) as caught:
            cook(recipe, device)
        assert caught.value.deviation == recipe.refused
        return
    ours = cook(recipe, device)
    assert set(deviations(caplog)) == recipe.tells
    if not recipe.differs:
        assert_same(ours, theirs)


def test_there_are_forty():
    assert len(RECIPES) >= 40


def test_the_comparison_bites(tmp_path):
    side = Torch(tmp_path)
    side.note("weights", torch.tensor([1.0, 100.0]))
    other = copy.deepcopy(side)
    other.notes[0] = ("weights", torch.tensor([1.0 + 3e-3, 100.0]), 2e-5)
    with pytest.raises(AssertionError, match="weights"):
        assert_same(other, side)
    assert_same(side, side)
    other.notes.clear()
    with pytest.raises(AssertionError):
        assert_same(other, other)

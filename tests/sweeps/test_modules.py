"""The modules of ``torch.nn`` with each of their options, trained by torch and on the device."""

from __future__ import annotations

import pytest

from tests.sweeps.module_cases import cases, constructible, run
from tests.sweeps.module_options import classes, needed, options_of
from tests.sweeps.tally import Tally

_A_MODEL = 24
"""Cases in one model: a compile takes longer than a small module."""

_PARTS = 8
"""Tests that the cases are divided among: each ends within the limit for a test."""


def test_every_option_of_every_module_has_a_value():
    """An option that a release of torch adds fails here until it has one."""
    for cls in classes():
        needed(cls)
        options_of(cls)
    assert len(classes()) > 140


def test_a_slice_of_the_modules(tmp_path):
    tally = Tally("modules, a slice")
    chosen = constructible(cases()[5::190])
    run(chosen, tmp_path, tally, _A_MODEL)
    tally.close(at_least=len(chosen) - 1)


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_traces")
@pytest.mark.parametrize("part", range(_PARTS))
def test_modules_with_all_their_options(part, tmp_path):
    tally = Tally(f"modules, part {part + 1} of {_PARTS}")
    chosen = constructible(cases())[part::_PARTS]
    assert len(chosen) > 1100 // _PARTS
    run(chosen, tmp_path, tally, _A_MODEL)
    tally.close(at_least=len(chosen) - 3)

"""Tests of operations compile what they compare together."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.emulator.ops.checks import one_program


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Judge what a test has compared when its function has returned."""
    with one_program():
        return (yield)

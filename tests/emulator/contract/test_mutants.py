"""Changed programs that verify: each runs, or is refused with its node and line."""

from __future__ import annotations

from collections import Counter

import pytest

from emulator.errors import CannotRun, LoweringError
from tests.emulator.contract.mutants import OPS, mutants, outcome, program_of


def _ends(name: str) -> Counter[str]:
    """How the mutants of an op end: none in the error for all that is left, each with its line."""
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for mutant in mutants(program_of(name)):
        end, error = outcome(mutant.program)
        ends[end] += 1
        if end in ("plan", "foreign"):
            wrong.append(f"{mutant.what}: {error}")
        sources: list[str] = []
        if isinstance(error, LoweringError):
            sources = [error.source]
        elif isinstance(error, CannotRun):
            sources = [problem.source for problem in error.problems]
            assert all(problem.node >= 0 for problem in error.problems)
        assert all("mutants.py:" in source for source in sources), (mutant.what, error)
    assert not wrong, "\n".join(wrong)
    return ends


@pytest.mark.parametrize("name", ["conv1d", "view"])
def test_some_mutants(name: str) -> None:
    ends = _ends(name)
    assert ends.total() > 25
    assert ends["cannot run"] > 10 or "conv" not in name


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_all_mutants(name: str) -> None:
    print(f"mutants of {name}: {dict(_ends(name))}")

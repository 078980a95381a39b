"""Here every repetition is worth an executable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emulator.plans.linked import layers, parts


@pytest.fixture(autouse=True)
def _every_repetition_is_worth_it() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (layers, parts):
            patch.setattr(module, "LEAST_SPARED", 4)
            patch.setattr(module, "LEAST_SECONDS", 1e-12)
        patch.setattr(layers, "_BESIDE", 0.0)
        yield

"""What XLA makes of fused programs is seen with the emitters that users run."""

from __future__ import annotations

import pytest

from emulator.plans import xla_options


@pytest.fixture
def fusion_emitters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are compiled with XLA's fusion emitters, which the other fast tests run without."""
    options = {**xla_options._CPU, "xla_cpu_use_fusion_emitters": True}
    monkeypatch.setattr(xla_options, "_CPU", options)

"""These tests are about XLA's fusion emitters, which the other fast tests run without."""

from __future__ import annotations

from pathlib import Path

import pytest
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]  # jax makes its options of it


def pytest_collection_modifyitems(items):
    options = xla_client.CompileOptions()  # it owns what it gives
    if "xla_cpu_use_fusion_emitters: false" not in str(
        options.executable_build_options.debug_options
    ):
        return
    reason = "needs XLA's fusion emitters: XLA_FLAGS=--xla_backend_optimization_level=0"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))

"""PEFs that several tests share."""

from __future__ import annotations

import pytest

from tests.samba.worlds import Pefs


@pytest.fixture(scope="session")
def pefs(tmp_path_factory: pytest.TempPathFactory) -> Pefs:
    """Each world's PEF, compiled when first asked for."""
    return Pefs(tmp_path_factory.mktemp("pefs"))

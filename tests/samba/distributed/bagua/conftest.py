"""What a test registers is forgotten after it: its closures hold the tensors that they are of."""

from __future__ import annotations

import pytest

from samba.distributed.bagua.world import current_world


@pytest.fixture(autouse=True)
def forgotten_names():
    yield
    current_world().tensors.clear()

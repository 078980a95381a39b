"""PEFs and executables that several tests share."""

from __future__ import annotations

import pytest

from tests.samba.shared_traces import sharing_traces
from tests.samba.worlds import MLP, Pefs, Scene, sharing_executables


@pytest.fixture(scope="session")
def pefs(tmp_path_factory: pytest.TempPathFactory) -> Pefs:
    """Each world's PEF, compiled when first asked for."""
    return Pefs(tmp_path_factory.mktemp("pefs"))


@pytest.fixture
def scene(pefs: Pefs) -> Scene:
    """The small model of most tests on the device, and its twin on the host."""
    return pefs.loaded(MLP)


@pytest.fixture(scope="package", autouse=True)
def shared_executables():
    """Devices of these tests that run the same program share what XLA made of it."""
    with sharing_executables():
        yield


@pytest.fixture(scope="package", autouse=True)
def shared_traces():
    """Models that one function makes in one way share the graph of the first of them."""
    with sharing_traces():
        yield

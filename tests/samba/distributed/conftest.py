"""PEFs that several tests of this folder load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samba.distributed.worlds import compile_to, compiled, world


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with PEFs with and without buckets."""
    folder = tmp_path_factory.mktemp("replicas")
    compile_to(folder, world("sgd"))
    compile_to(folder, world("sgd", data_parallel=False))
    return folder


@pytest.fixture(scope="session")
def pef(folder: Path) -> str:
    """A program with several buckets."""
    return compiled(folder).pef

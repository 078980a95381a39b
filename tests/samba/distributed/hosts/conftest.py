"""Two hosts for a test, and what four replicas on one host come to."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.samba.distributed.hosts.jobs import PER_HOST, copied, states, training
from tests.samba.distributed.hosts.network import Network, Refused, network
from tests.samba.distributed.processes import all_well, run_replicas

HOSTS = 2


def made_or_skipped(folder: Path) -> Iterator[Network]:
    """Two hosts; the test is skipped with its reason where there can be none."""
    if sys.platform != "linux":
        pytest.skip("hosts are rehearsed in Linux network namespaces")
    tools = ("ip", "ss", "setpriv", "unshare", "nsenter")
    missing = [name for name in tools if shutil.which(name) is None]
    if missing:
        pytest.skip(f"hosts are rehearsed with {', '.join(missing)}, which this machine lacks")
    try:
        with network(HOSTS, folder) as made:
            yield made
    except Refused as error:
        pytest.skip(f"hosts cannot be rehearsed here (user {os.getuid()}): {error.reason}")


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    """Two hosts."""
    yield from made_or_skipped(tmp_path / "hosts")


@pytest.fixture(scope="session")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What four replicas on one host come to."""
    run = copied(folder, tmp_path_factory.mktemp("one-host"))
    command = training(run)
    ended = run_replicas(PER_HOST * HOSTS, [sys.executable, *command], seconds=120)
    all_well(ended)
    return states(run)

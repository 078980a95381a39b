"""A host that leaves a job under torchrun's elastic agent, and one that joins it: it goes on."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.samba.distributed.elastic import (
    check_schedule,
    noted,
    said_in,
    started,
    until,
    wait_for,
)
from tests.samba.distributed.hosts.jobs import PORT
from tests.samba.distributed.hosts.network import Host
from tests.samba.distributed.processes import worker
from tests.samba.distributed.workers.elastic import plain, world
from tests.warm import Warm

pytestmark = pytest.mark.slow
CONF = "join_timeout=120,keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout="


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Where the replicas note what they do, and keep their checkpoint."""
    made = tmp_path / "job"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What they train."""
    return world(plain).build().compile(tmp_path_factory.mktemp("elastic"))


def agent(
    host: Host, job: Path, pef: str, last_call: int, **env: str
) -> AbstractContextManager[Warm]:
    """The agent of a host, with one replica; who comes within the last call is waited for."""
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-id=job"]
    options += ["--rdzv-backend=c10d", f"--rdzv-endpoint=10.77.0.1:{PORT}"]
    options += [f"--rdzv-conf={CONF}{last_call}", "--monitor-interval=0.2"]
    options += [f"--local-addr={host.address()}"]
    script = [*worker("elastic")[1:], pef, str(job), "1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *script]
    return started(command, job, host=host.first, **env)


def test_a_host_that_leaves(net, job, pef):
    """The store at which the replicas have met stays, with all that they have written there."""
    first, second = net.hosts
    # No packet says that the other one is gone: the replica that stays waits for so long.
    env = {"CCL_TIMEOUT": "20"}
    with agent(first, job, pef, 20, **env) as stays:
        with agent(second, job, pef, 20, **env):
            until(job, 2, 3)
            second.end()
        wait_for(stays, job, 200)
    assert {step.generation: step.size for step in noted(job)} == {1: 2, 2: 1}, said_in(job)
    check_schedule(job)


def test_a_host_that_joins(net, job, pef):
    """torch's agents must make a store for each rendezvous: who joins does not find an old one."""
    first, second = net.hosts
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with agent(first, job, pef, 1, **env) as stays:
        until(job, 1, 3)
        with agent(second, job, pef, 1, **env) as joins:
            wait_for(stays, job, 200)
            wait_for(joins, job, 60)
    assert {step.generation: step.size for step in noted(job)} == {1: 1, 2: 2}, said_in(job)
    check_schedule(job)

"""What listens while a job runs, and where: at the loopback, or at the address asked for alone."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import IO

import pytest

from samba.distributed import addresses
from samba.distributed.addresses import LOOPBACK, asked_interfaces, facing, listener
from samba.distributed.environment import Launch
from samba.distributed.errors import CannotListen
from samba.distributed.rendezvous import meet
from samba.distributed.settings import ENGINES
from samba.distributed.stores import HashStore
from tests import warm
from tests.processes import finished
from tests.samba.distributed.listening import Listening, chosen, listening, tree
from tests.samba.distributed.processes import (
    ROOT,
    clean_environment,
    free_port,
    kill_group,
    launch,
    mpirun,
    torchrun,
    worker,
)

SECOND = "127.0.0.2"
"""An address of every Linux host that nothing takes by itself."""
_SECONDS = 90.0


def begun(command: Sequence[str], env: dict[str, str], err: IO[bytes]) -> Popen[bytes] | warm.Warm:
    """Start a command, which leads a group; one of Python is forked from a process with torch."""
    if command[0] == sys.executable:
        to = err.fileno()
        return warm.start(command, cwd=ROOT, env=env, stdout=to, stderr=to, new_session=True)
    return Popen(
        command, cwd=ROOT, env=env, stdin=DEVNULL, stdout=err, stderr=err, start_new_session=True
    )


def look(
    folder: Path, commands: Sequence[Sequence[str]], envs: Sequence[dict[str, str]]
) -> tuple[list[int], list[Listening]]:
    """Start a job of two replicas.

    Returns:
        The processes that were started here, and what they and theirs listen at when all is open.
    """
    errors = folder / "errors"
    with ExitStack() as stack, errors.open("wb") as err:
        processes = []
        for command, env in zip(commands, envs, strict=True):
            process = begun(command, env, err)
            stack.callback(process.wait, _SECONDS)
            stack.callback(kill_group, process.pid)
            processes.append(process)
        end = time.monotonic() + _SECONDS
        while not all((folder / f"rank{rank}").exists() for rank in range(2)):
            assert all(p.poll() is None for p in processes), errors.read_text()
            assert time.monotonic() < end, errors.read_text()
            time.sleep(0.05)
        pids = [process.pid for process in processes]
        found = listening(pid for root in pids for pid in tree(root))
        (folder / "seen").touch()
        for process in processes:
            assert process.wait(_SECONDS) == 0, errors.read_text()
    return pids, found


def by_hand(folder: Path, address: str, *options: str, **more: str) -> list[Listening]:
    """What two replicas listen at that were started with plain variables."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(free_port())} | more
    envs = [clean_environment(RANK=str(rank), **common) for rank in range(2)]
    return look(folder, [[*worker("listens"), str(folder), *options]] * 2, envs)[1]


def places(found: Sequence[Listening]) -> set[str]:
    return {one.address for one in found}


def test_a_job_listens_at_the_address_asked_for_alone(tmp_path):
    """Store and gloo; torch's own store would listen at all addresses, and gloo at the host's."""
    found = by_hand(tmp_path, SECOND, GLOO_SOCKET_IFNAME="")
    own = [one for one in found if one.address == SECOND]
    assert len(own) == 1 + 2 * 3, found  # the store; the world, the control group and its half
    # The script's own group is torch's, which knows interfaces only.
    assert {one.address for one in found if one not in own} == {"127.0.0.1"}
    assert len(found) - len(own) == 2


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_by_hand(tmp_path, engine):
    found = by_hand(tmp_path, "localhost", SN_DP_ENGINE=engine)
    assert places(found) == {"127.0.0.1"}
    assert len(found) == (9 if engine == "torch" else 12)  # the coordinator, and collectives
    (tmp_path / "second").mkdir()
    found = by_hand(tmp_path / "second", SECOND, SN_DP_ENGINE=engine)
    assert places(found) == {SECOND, "127.0.0.1"}
    assert sum(one.address == "127.0.0.1" for one in found) == 2  # the script's own group


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_replicas_of_several_hosts(tmp_path, engine):
    """Everything at the address at which they meet, nothing at the loopback or at all of them."""
    found = by_hand(tmp_path, SECOND, "hosts", SN_DP_ENGINE=engine)
    assert places(found) == {SECOND}
    assert len(found) == (7 if engine == "torch" else 10)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_an_interface_that_is_asked_for(tmp_path, engine):
    found = by_hand(tmp_path, SECOND, "hosts", SN_DP_ENGINE=engine, GLOO_SOCKET_IFNAME="lo")
    assert places(found) == {SECOND, "127.0.0.1"}
    at_second = sum(one.address == SECOND for one in found)
    assert at_second == (1 if engine == "torch" else 2)  # who asked for gloo gets gloo


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("launcher", [launch, torchrun, mpirun])
def test_launchers(tmp_path, launcher, engine):
    command = [*launcher(2), *worker("listens")[1:], str(tmp_path)]
    (root,), found = look(tmp_path, [command], [clean_environment(SN_DP_ENGINE=engine)])
    foreign = [] if launcher is launch else [one for one in found if root in one.pids]
    ours = [one for one in found if one not in foreign]
    assert places(ours) == {"127.0.0.1"}
    stores = {launch: 1, torchrun: 0, mpirun: 1}[launcher]
    assert len(ours) == 8 + stores + (0 if engine == "torch" else 3)
    if foreign:  # docs/data_parallel.md says so; were it no longer so, it should say that
        assert places(foreign) <= {"0.0.0.0", "::"}


@pytest.mark.slow
def test_the_name_of_the_host_does_not_matter(tmp_path, monkeypatch):
    """gloo would listen at what the host's name means: in an office the address that all see."""
    name = ["unshare", "--map-root-user", "--uts", "sh", "-c", 'hostname 127.0.0.3; exec "$@"', "-"]
    if finished([*name, "true"]).returncode:
        name = []  # not allowed here: the name is as it is
    command = [*name, *worker("listens"), str(tmp_path)]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    envs = [clean_environment(RANK=str(rank), SN_DP_ENGINE="jax", **common) for rank in range(2)]
    _, found = look(tmp_path, [command] * 2, envs)
    assert places(found) == {"127.0.0.1"}


# -- what is not to be had ------------------------------------------------------

ELSEWHERE = "203.0.113.7"
"""An address for documentation, which no host has."""


def first(address: tuple[str, int], **more) -> Launch:
    facts = {"local_size": 0, **more}
    return Launch(launcher="torch", rank=0, size=2, local_rank=0, address=address, **facts)


def assert_cannot(launch: Launch, message: str) -> CannotListen:
    with pytest.raises(CannotListen, match=message) as caught, meet(launch, seconds=1):
        pass
    return caught.value


def test_an_address_of_another_host():
    error = assert_cannot(first((ELSEWHERE, free_port())), "has no such address")
    assert error.address.startswith(ELSEWHERE)
    assert "MASTER_ADDR=203.0.113.7" in str(error)


def test_a_host_that_nobody_knows():
    assert_cannot(first(("nobody.invalid", 1234)), "this host cannot resolve that name")


def test_a_port_in_use():
    with listener(LOOPBACK, 0) as other:
        port = other.getsockname()[1]
        told = "another program, or another rank 0, listens there"
        error = assert_cannot(first((LOOPBACK, port)), told)
    assert f"MASTER_PORT={port}" in str(error)
    assert error.address == f"127.0.0.1:{port}"


def test_a_port_can_be_used_again_at_once():
    with listener(LOOPBACK, 0) as served:
        port = served.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as client:
            served.accept()[0].close()  # who closes first waits
            client.recv(1)
    listener(LOOPBACK, port).close()


def test_replicas_on_other_hosts_cannot_come_to_the_loopback():
    elsewhere = first((LOOPBACK, free_port()), local_size=1)
    assert_cannot(elsewhere, "only this host can reach that")
    with pytest.raises(CannotListen, match="only this host can reach that"):
        place("127.0.1.1", spaces=("here", "there"))


def test_an_interface_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,wlan77")
    with pytest.raises(CannotListen, match=r"has the interfaces .*lo") as caught:
        asked_interfaces()
    assert caught.value.what == "GLOO_SOCKET_IFNAME=lo,wlan77"
    assert caught.value.address == "'wlan77'"


def test_no_way_to_another_host():
    with pytest.raises(CannotListen, match="GLOO_SOCKET_IFNAME"):
        facing("nobody.invalid")


# -- where ------------------------------------------------------------------------


def place(host: str, spaces: Sequence[str]) -> addresses.Place:
    """The place of rank 0 among ranks in these network spaces."""
    store = HashStore()
    return chosen([store] * len(spaces), host, spaces)[0]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", LOOPBACK),
        (SECOND, SECOND),
        ("::1", "::1"),
        ("localhost", LOOPBACK),
        ("0.0.0.0", LOOPBACK),
    ],
)
def test_replicas_of_one_host_listen_at_the_loopback(monkeypatch, host, address):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert place(host, ("here", "here")) == addresses.Place(
        address=address, interfaces=(), shared=True
    )


def test_replicas_of_several_hosts_listen_where_they_face_each_other(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(addresses, "facing", lambda host: f"as seen from {host}")
    assert place("node0", ("here", "there")).hostname == "as seen from node0"
    assert place("", ("here", "there")).hostname == ""  # gloo has to look for itself
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    asked = place("node0", ("here", "there"))
    assert (asked.hostname, asked.interfaces) == ("", ("lo",))


def test_one_host_needs_no_other_address_than_the_loopback():
    """Where the launcher tells that all are on one host, whatever MASTER_ADDR names."""
    at = first((ELSEWHERE, 1), local_size=2)
    assert addresses.meeting_host(at, served=False) == LOOPBACK
    assert addresses.meeting_host(at, served=True) == ELSEWHERE  # whoever serves listens there


def test_an_address_of_this_host_faces_itself():
    assert facing(SECOND) == SECOND

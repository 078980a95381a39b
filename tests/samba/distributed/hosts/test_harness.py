"""The rehearsed hosts themselves: they reach each other, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.processes import SECONDS, SECONDS_TO_END, ended, line_of
from tests.samba.distributed.hosts import network as making
from tests.samba.distributed.hosts.conftest import made_or_skipped
from tests.samba.distributed.hosts.hub import Quality
from tests.samba.distributed.hosts.jobs import ends, start
from tests.samba.distributed.processes import ROOT, clean_environment

pytestmark = pytest.mark.slow
ECHO = """
import socket, time
made = socket.create_server(("10.77.0.2", 5000))
print("ready", flush=True)
peer, _ = made.accept()
while data := peer.recv(65536):
    peer.sendall(data)
"""
ASK = """
import socket, time
peer = socket.create_connection(("host1", 5000))
start = time.monotonic()
for _ in range(3):
    peer.sendall(b"x")
    assert peer.recv(1) == b"x"
print(time.monotonic() - start)
"""
KEEP = """
import sys, time
from pathlib import Path
from tests.samba.distributed.hosts.network import network
with network(2, Path(sys.argv[1])) as net:
    net.hosts[1].start(["sleep", "1000"], {}, "sleep")
    while not net.hosts[1].processes():
        time.sleep(0.01)
    print(*(host.inode for host in net.hosts), flush=True)
    time.sleep(1000)
"""


def test_a_delay_is_a_delay(net):
    """Of three round trips between the hosts."""
    net.hub.quality = Quality(delay=0.05)
    server = start(net.hosts[1], "echo", [sys.executable, "-c", ECHO])
    limit = time.monotonic() + SECONDS
    while "ready" not in net.hosts[1].said("echo")[0]:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert float(net.hosts[0].call(sys.executable, "-c", ASK, seconds=SECONDS)) >= 3 * 2 * 0.05
    assert [end.code for end in ends([server], seconds=SECONDS)] == [0]


def test_a_host_has_its_own_name_processes_and_network(net):
    for host in net.hosts:
        assert host.call("hostname") == f"{host.name}\n"
        assert host.processes() == []
    spaces = {os.stat("/proc/self/ns/net").st_ino, *(host.inode for host in net.hosts)}
    assert len(spaces) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_leaves_nothing(net, tmp_path, number):  # net: skipped where there are no hosts
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEP, str(tmp_path / "kept")],
        env=clean_environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    inodes = {int(word) for word in line_of(keeper).split()}
    assert len(inodes) == 2
    keeper.send_signal(number)
    ended(keeper)
    assert keeper.stdout is not None
    keeper.stdout.close()
    limit = time.monotonic() + SECONDS_TO_END
    while left := [pid for inode in inodes for pid in making.in_space(inode)]:
        assert time.monotonic() < limit, left
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="hosts are rehearsed in Linux namespaces")
def test_a_kernel_that_refuses_skips_with_what_it_said(monkeypatch, tmp_path):
    monkeypatch.setattr(making, "_UNSHARE", ("sh", "-c", "echo Operation not permitted >&2; false"))
    monkeypatch.setattr("shutil.which", lambda name: name)
    with pytest.raises(
        pytest.skip.Exception, match=r"cannot be rehearsed.*Operation not permitted"
    ):
        next(made_or_skipped(tmp_path))

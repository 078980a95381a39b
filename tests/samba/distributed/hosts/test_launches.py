"""Two hosts, two replicas on each: they meet, train to the bits of one host, and leave."""

from __future__ import annotations

import sys

import pytest

from tests.samba.distributed.hosts.jobs import (
    all_well,
    copied,
    ends,
    launch,
    same_bits,
    start,
    states,
    training,
)

pytestmark = pytest.mark.slow
SECONDS = 120
"""For the whole job: most of it is the start of four interpreters on the cores of one machine."""
ENV = {"CCL_TIMEOUT": "60"}


@pytest.mark.parametrize("address", ["10.77.0.1", "fd00::1", "host0", "host0-v6"])
def test_own_launcher(net, folder, tmp_path, wanted, address):
    run = copied(folder, tmp_path)
    started = [
        start(host, f"launch{host.number}", launch(host.number, address, *training(run)), **ENV)
        for host in net.hosts
    ]
    all_well(ends(started, seconds=SECONDS), net)
    same_bits(states(run), wanted)
    assert net.hub.frames > 0

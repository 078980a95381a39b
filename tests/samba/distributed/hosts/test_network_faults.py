"""What goes wrong between hosts is a named error on all replicas or no bit; never a hang."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.samba.distributed.hosts.hub import Quality
from tests.samba.distributed.hosts.jobs import (
    PER_HOST,
    Ended,
    Started,
    all_well,
    by_hand,
    copied,
    ends,
    launch,
    nothing_left,
    same_bits,
    start,
    states,
    training,
    wait_for,
)
from tests.samba.distributed.hosts.network import Network
from tests.samba.distributed.processes import worker

pytestmark = pytest.mark.slow
DEADLINE = 12
"""``CCL_TIMEOUT``: seconds that a replica may wait for others."""
TO_SAY_SO = 15
"""Seconds that a replica may take beyond that to find who is at fault, and to end."""
SECONDS = 150
SIZE = 4
THERE = {0: (2, 3), 1: (2, 3), 2: (0, 1), 3: (0, 1)}
"""The ranks on the other host."""


def paced(net: Network, folder: Path, to: Path, *slow: str) -> tuple[Path, list[Started]]:
    """Four replicas, two on each host, that are about to make the step in which something happens.

    Args:
        net: The hosts.
        folder: Where their PEF is.
        to: Where they may save.
        slow: A rank, and how many seconds it takes in that step.

    Returns:
        Where they save, and whence they go on once there is a file ``go``; and the replicas.
    """
    run = copied(folder, to)
    started = [
        start(
            net.hosts[rank // PER_HOST],
            f"rank{rank}",
            [*worker("paced"), str(run), *slow],
            **by_hand(net, rank, "10.77.0.1"),
            CCL_TIMEOUT=str(DEADLINE),
        )
        for rank in range(SIZE)
    ]
    halted(run, started)
    return run, started


def halted(run: Path, started: Sequence[Started]) -> None:
    """Wait until all replicas halt."""
    wait_for([run / f"halt{rank}" for rank in range(SIZE)], started)


def failed(end: Ended, *wanted: str, since: float, within: float = DEADLINE + TO_SAY_SO) -> None:
    """A replica ended with an error that says one of some things, in time."""
    assert end.seconds is not None, f"it did not end by itself\n{end.story}"
    assert end.code not in (0, -6, 134), end.story  # an abort is not an error that tells anything
    assert end.seconds - since < within, (end.seconds - since, end.story)
    assert any(re.search(text, end.err) for text in wanted), end.story


def blames(ended: Sequence[Ended], others: Mapping[int, Sequence[int]], *, since: float) -> None:
    """Each replica failed by an error that names one of those it could not reach."""
    for rank, end in enumerate(ended):
        numbers = "|".join(map(str, others[rank]))
        failed(end, r"DataParallelError|PeerLost|CollectiveTimeout", since=since)
        last = [
            line
            for line in end.err.splitlines()
            if "Error" in line or "Lost" in line or "Timeout" in line
        ]
        assert any(re.search(rf"ranks? [\d, and]*\b({numbers})\b", line) for line in last), (
            end.story
        )


@pytest.mark.parametrize("number", [0, 1])
def test_a_host_vanishes(net, folder, tmp_path, number):
    """No packet says so. Host 0 has the store at which they met."""
    run, started = paced(net, folder, tmp_path)
    net.vanish(number)
    (run / "go").touch()
    since = time.monotonic()
    blames(ends(started, seconds=SECONDS), THERE, since=since)
    nothing_left(net)


def test_a_host_vanishes_under_launchers(net, folder, tmp_path):
    run = copied(folder, tmp_path)
    script = [*worker("paced")[1:], str(run)]
    started = [
        start(
            host,
            f"launch{host.number}",
            launch(host.number, "10.77.0.1", *script),
            CCL_TIMEOUT=str(DEADLINE),
        )
        for host in net.hosts
    ]
    halted(run, started)
    net.vanish(1)
    (run / "go").touch()
    since = time.monotonic()
    for end in ends(started, seconds=SECONDS):
        failed(end, "launch: rank [0-3] ended with code 1", since=since)
    nothing_left(net)


def test_a_partition_heals_before_the_deadline(net, folder, tmp_path, wanted):
    run, started = paced(net, folder, tmp_path)
    net.hub.quality = Quality(cut=True)
    (run / "go").touch()
    time.sleep(DEADLINE / 3)
    net.hub.quality = Quality()
    all_well(ends(started, seconds=SECONDS), net)
    same_bits(states(run), wanted)
    assert net.hub.lost > 0


def test_a_partition_heals_after_the_deadline(net, folder, tmp_path):
    run, started = paced(net, folder, tmp_path)
    net.hub.quality = Quality(cut=True)
    (run / "go").touch()
    since = time.monotonic()
    time.sleep(DEADLINE + 1)
    net.hub.quality = Quality()
    blames(ends(started, seconds=SECONDS), THERE, since=since)
    nothing_left(net)


def test_a_slow_replica_is_waited_for(net, folder, tmp_path, wanted):
    run, started = paced(net, folder, tmp_path, "3", str(DEADLINE / 2))
    (run / "go").touch()
    all_well(ends(started, seconds=SECONDS), net)
    same_bits(states(run), wanted)


def test_a_replica_beyond_the_deadline_is_named(net, folder, tmp_path):
    run, started = paced(net, folder, tmp_path, "3", str(SECONDS))
    (run / "go").touch()
    since = time.monotonic()
    for end in ends(started[:3], seconds=SECONDS):
        failed(end, r"rank 3\b", since=since)
    (run / "late").touch()
    since = time.monotonic()
    (end,) = ends(started[3:], seconds=SECONDS)
    failed(end, "DataParallelError|PeerLost", since=since)
    nothing_left(net)


def joining(
    net: Network,
    run: Path,
    *wanted: str,
    ranks: Sequence[int] = range(4),
    host: str = "10.77.0.1",
    **own: dict[str, str],
) -> list[Ended]:
    """Replicas that fail before they train, each by an error that says one of some things.

    ``own`` has variables of ``rankN``.
    """
    since = time.monotonic()
    started = [
        start(
            net.hosts[rank // PER_HOST],
            f"rank{rank}",
            [sys.executable, *training(run)],
            **(
                by_hand(net, rank, host)
                | {"CCL_TIMEOUT": str(DEADLINE)}
                | own.get(f"rank{rank}", {})
            ),
        )
        for rank in ranks
    ]
    ended = ends(started, seconds=SECONDS)
    nothing_left(net)
    for end in ended:
        failed(end, *wanted, since=since, within=JOINING)
    return ended


TO_START = 60
"""Seconds that interpreters may take until replicas look for each other."""
JOINING = TO_START + DEADLINE + TO_SAY_SO


def test_a_wrong_world_size(net, folder, tmp_path):
    said = "Give all of them the same number of replicas"
    wrong = {"WORLD_SIZE": "5"}
    ended = joining(net, copied(folder, tmp_path), said, "DataParallelError", rank3=wrong)
    assert any(said in end.err for end in ended)


def test_a_rank_given_twice(net, folder, tmp_path):
    ended = joining(net, copied(folder, tmp_path), "DataParallelError", rank3={"RANK": "2"})
    assert any("rank 2 of 4 (torch) has already joined" in end.err for end in ended)


def test_a_host_name_that_nobody_knows(net, folder, tmp_path):
    said = r"MASTER_ADDR=nowhere\.invalid.*cannot resolve that name"
    joining(net, copied(folder, tmp_path), said, host="nowhere.invalid")


def test_an_address_at_which_nobody_is(net, folder, tmp_path):
    said = r"got no answer at 10\.77\.0\.9:\d+ within 12 s"
    joining(net, copied(folder, tmp_path), said, ranks=[2, 3], host="10.77.0.9")


def test_a_host_that_never_starts(net, folder, tmp_path):
    missing = "ranks 2, 3 of 4 replicas did not come"
    # Who waits for rank 0, which gave up a moment before, cannot ask it any more.
    gone = "rank 0, which served the store, is gone"
    ended = joining(net, copied(folder, tmp_path), missing, gone, ranks=[0, 1])
    assert f"{missing} within 12 s" in ended[0].err


def test_an_interface_that_a_host_lacks(net, folder, tmp_path):
    lacking = {"GLOO_SOCKET_IFNAME": "ib0"}
    said = ("DataParallelError", "CannotListen")
    ended = joining(net, copied(folder, tmp_path), *said, rank2=lacking)
    assert re.search("GLOO_SOCKET_IFNAME=ib0.*host1, has the interfaces lo", ended[2].err)

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


def paced(net: Network, run: Path, *arguments: str, host: str = "10.77.0.1") -> list[Started]:
    """Four replicas that halt before a step, two on each host."""
    command = [*worker("paced"), str(run), *arguments]
    return [
        start(
            net.hosts[rank // PER_HOST],
            f"rank{rank}",
            command,
            **by_hand(net, rank, host),
            CCL_TIMEOUT=str(DEADLINE),
        )
        for rank in range(SIZE)
    ]


def halted(run: Path, started: Sequence[Started]) -> None:
    """Wait until all replicas are about to make the step in which something happens."""
    wait_for([run / f"halt{rank}" for rank in range(SIZE)], started)


def failed(end: Ended, *wanted: str, since: float, within: float = DEADLINE + TO_SAY_SO) -> None:
    """A replica ended with an error that says one of some things, in time."""
    assert end.seconds is not None, f"it did not end by itself\n{end.story}"
    assert end.code not in (0, -6, 134), end.story  # an abort is no error that tells anything
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
    run = copied(folder, tmp_path)
    started = paced(net, run)
    halted(run, started)
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
    run = copied(folder, tmp_path)
    started = paced(net, run)
    halted(run, started)
    net.hub.quality = Quality(cut=True)
    (run / "go").touch()
    time.sleep(DEADLINE / 3)
    net.hub.quality = Quality()
    all_well(ends(started, seconds=SECONDS), net)
    same_bits(states(run), wanted)
    assert net.hub.lost > 0


def test_a_partition_heals_after_the_deadline(net, folder, tmp_path):
    run = copied(folder, tmp_path)
    started = paced(net, run)
    halted(run, started)
    net.hub.quality = Quality(cut=True)
    (run / "go").touch()
    since = time.monotonic()
    time.sleep(DEADLINE + 1)
    net.hub.quality = Quality()
    blames(ends(started, seconds=SECONDS), THERE, since=since)
    nothing_left(net)


def test_a_slow_replica_is_waited_for(net, folder, tmp_path, wanted):
    run = copied(folder, tmp_path)
    started = paced(net, run, "3", str(DEADLINE / 2))
    (run / "go").touch()
    all_well(ends(started, seconds=SECONDS), net)
    same_bits(states(run), wanted)


def test_a_replica_beyond_the_deadline_is_named(net, folder, tmp_path):
    run = copied(folder, tmp_path)
    started = paced(net, run, "3", str(3 * DEADLINE))
    halted(run, started)
    (run / "go").touch()
    since = time.monotonic()
    ended = ends(started, seconds=SECONDS)
    for end in ended[:3]:
        failed(end, r"rank 3\b", since=since)
    failed(ended[3], "DataParallelError|PeerLost", since=since, within=5 * DEADLINE)
    nothing_left(net)


def joining(
    net: Network, run: Path, ranks: Sequence[int], host: str = "10.77.0.1", **own: dict[str, str]
) -> tuple[list[Ended], float]:
    """Replicas that are to fail before they train; ``own`` has variables of ``rankN``."""
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
    return ended, since


TO_START = 60
"""Seconds that interpreters may take until replicas look for each other."""
JOINING = TO_START + DEADLINE + TO_SAY_SO


def test_a_wrong_world_size(net, folder, tmp_path):
    wrong = {"WORLD_SIZE": "5"}
    ended, since = joining(net, copied(folder, tmp_path), range(SIZE), rank3=wrong)
    for end in ended:
        failed(end, "Give all of them the same", "DataParallelError", since=since, within=JOINING)
    assert any("Give all of them the same number of replicas" in end.err for end in ended)


def test_a_rank_given_twice(net, folder, tmp_path):
    ended, since = joining(net, copied(folder, tmp_path), range(SIZE), rank3={"RANK": "2"})
    for end in ended:
        failed(end, "DataParallelError", since=since, within=JOINING)
    assert any("rank 2 of 4 (torch) has already joined" in end.err for end in ended)


def test_a_host_name_that_nobody_knows(net, folder, tmp_path):
    ended, since = joining(net, copied(folder, tmp_path), range(SIZE), "nowhere.invalid")
    for end in ended:
        failed(
            end,
            r"MASTER_ADDR=nowhere\.invalid.*cannot resolve that name",
            since=since,
            within=JOINING,
        )


def test_an_address_at_which_nobody_is(net, folder, tmp_path):
    ended, since = joining(net, copied(folder, tmp_path), [2, 3], "10.77.0.9")
    for end in ended:
        failed(end, r"got no answer at 10\.77\.0\.9:\d+ within 12 s", since=since, within=JOINING)


def test_a_host_that_never_starts(net, folder, tmp_path):
    ended, since = joining(net, copied(folder, tmp_path), [0, 1])
    for end in ended:
        # Who waits for rank 0, which gave up a moment before, cannot ask it any more.
        missing = r"ranks 2, 3 of 4 replicas did not come|rank 0, which served the store, is gone"
        failed(end, missing, since=since, within=JOINING)
    assert "ranks 2, 3 of 4 replicas did not come within 12 s" in ended[0].err


def test_an_interface_that_a_host_lacks(net, folder, tmp_path):
    lacking = {"GLOO_SOCKET_IFNAME": "ib0"}
    ended, since = joining(net, copied(folder, tmp_path), range(SIZE), rank2=lacking)
    failed(
        ended[2],
        "GLOO_SOCKET_IFNAME=ib0.*host1, has the interfaces lo",
        since=since,
        within=JOINING,
    )
    for end in ended:
        failed(end, "DataParallelError|CannotListen", since=since, within=JOINING)

"""Jobs on rehearsed hosts: commands that are started, waited for, and compared."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.processes import SECONDS_TO_END
from tests.samba.distributed.hosts.network import Host, Network, Process
from tests.samba.distributed.processes import clean_environment, kill_group, worker

PER_HOST = 2
PORT = 29511


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A command on a host.

    Args:
        host: The host.
        log: Name of what it prints.
        process: The process.
    """

    host: Host
    log: str
    process: Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command on a host that has ended.

    Args:
        log: Name of what it printed.
        code: Its exit code.
        out: What it printed.
        err: What it printed as errors.
        seconds: When it ended, as ``time.monotonic()`` counts; None if it had to be killed.
    """

    log: str
    code: int
    out: str
    err: str
    seconds: float | None

    @property
    def story(self) -> str:
        """All of it, for the message of a test that fails."""
        return f"{self.log}: code {self.code}, ended at {self.seconds}\n{self.out}\n{self.err}"


def start(
    host: Host, log: str, command: Sequence[str], *, outside: bool = False, **env: str
) -> Started:
    """Start a command on a host, or one that enters the host by itself."""
    process = host.start(command, clean_environment(**env), log, outside=outside)
    return Started(host=host, log=log, process=process)


def ends(started: Sequence[Started], *, seconds: float) -> list[Ended]:
    """Wait for commands; who has not ended in time is killed with all of its host.

    Args:
        started: The commands.
        seconds: How long to wait for all of them.
    """
    limit = time.monotonic() + seconds
    at: dict[str, float] = {}
    while len(at) < len(started) and time.monotonic() < limit:
        for one in started:
            if one.log not in at and one.process.poll() is not None:
                at[one.log] = time.monotonic()
        time.sleep(0.02)
    for one in started:
        if one.log not in at:
            one.host.end()
            kill_group(one.process.pid)
    found = []
    for one in started:
        code = one.process.wait(SECONDS_TO_END)
        out, err = one.host.said(one.log)
        seconds_at = at.get(one.log)
        found.append(Ended(log=one.log, code=code, out=out, err=err, seconds=seconds_at))
    return found


def wait_for(files: Sequence[Path], started: Sequence[Started], *, seconds: float = 90) -> None:
    """Wait until replicas have made files; none of them may end before."""
    limit = time.monotonic() + seconds
    while missing := [file.name for file in files if not file.exists()]:
        over = [one for one in started if one.process.poll() is not None]
        assert not over, [(one.log, one.host.said(one.log)) for one in over]
        assert time.monotonic() < limit, f"not there within {seconds} s: {missing}"
        time.sleep(0.02)


def all_well(ended: Sequence[Ended], net: Network) -> None:
    """All commands ended with code 0, in time, and nothing that they started is left."""
    bad = [end.story for end in ended if end.code or end.seconds is None]
    assert not bad, "\n".join(bad)
    nothing_left(net)


def nothing_left(net: Network) -> None:
    """No process is left on any host."""
    limit = time.monotonic() + SECONDS_TO_END
    while left := {host.name: host.processes() for host in net.hosts if host.processes()}:
        assert time.monotonic() < limit, left
        time.sleep(0.05)


def by_hand(net: Network, rank: int, host: str, *, per_host: int = PER_HOST) -> dict[str, str]:
    """The variables of one replica, as somebody would set them without any launcher."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(per_host * len(net.hosts)),
        "LOCAL_RANK": str(rank % per_host),
        "LOCAL_WORLD_SIZE": str(per_host),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(PORT),
    }


def launch(node: int, host: str, *script: str, nodes: int = 2) -> list[str]:
    """The command of this project's launcher on one of several hosts."""
    return [
        *(sys.executable, "-m", "samba", "launch", "-n", str(PER_HOST)),
        *("--nnodes", str(nodes), "--node-rank", str(node)),
        *("--master-addr", host, "--master-port", str(PORT), *script),
    ]


COMBINATION = "sgd:inorder:1"
STEPS = 4


def training(folder: Path, *, name: str = COMBINATION) -> list[str]:
    """The worker that trains, as arguments after ``python``."""
    return [*worker("train")[1:], str(folder), str(STEPS), name]


def copied(pefs: Path, to: Path) -> Path:
    """A folder with the PEFs of another one, where replicas may save."""
    return Path(shutil.copytree(pefs, to / "run"))


def states(folder: Path, size: int = 4, engine: str = "torch") -> list[dict[str, torch.Tensor]]:
    """What replicas have saved, by rank."""
    name = COMBINATION.replace(":", "-")
    return [
        torch.load(folder / f"{name}-{engine}-{size}-{rank}.pt", weights_only=True)
        for rank in range(size)
    ]


def same_bits(
    found: Sequence[Mapping[str, torch.Tensor]], wanted: Sequence[Mapping[str, torch.Tensor]]
) -> None:
    """All replicas came to the same bits as others."""
    assert len(found) == len(wanted)
    for rank, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.keys() == other.keys() and one, rank
        different = [name for name in one if not torch.equal(one[name], other[name])]
        assert not different, (rank, different)

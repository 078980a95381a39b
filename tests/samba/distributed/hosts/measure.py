"""Steps of all modes over rehearsed networks: ``python -m tests.samba.distributed.hosts.measure``.

Two hosts with a replica each train twelve equal layers. Each network is measured twice: by frames
that are late, and by :class:`~emulator.replicas.comm.link.SlowLink`, which sleeps as long as the
two messages of a ring would take. It prints a table in Markdown.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.processes import finished
from tests.samba.distributed.hosts.hub import Quality
from tests.samba.distributed.hosts.jobs import by_hand, ends, start
from tests.samba.distributed.hosts.network import network
from tests.samba.distributed.processes import ROOT, clean_environment, worker

ROUNDS, STEPS, WIDTH = 6, 3, 512
FRAME_BYTES = 60_000
"""So large that this machine's cores are not busy with passing frames on."""
MESSAGES = 2
"""What a ring of two sends one after the other to average a bucket: half of it, then its mean."""
NETWORKS = {
    "nothing added": Quality(),
    "5 ms delay": Quality(delay=0.005),
    "20 ms delay": Quality(delay=0.02),
}


def measured(folder: Path, on_cable: Quality, asleep: Quality) -> dict[str, float]:
    """Seconds of a step by mode, of the slower replica.

    Args:
        folder: Where the compiled program is.
        on_cable: What becomes of frames.
        asleep: What is added to each reduction.
    """
    slow = (str(MESSAGES * asleep.delay), str(asleep.rate / 8))
    details = [str(folder), str(WIDTH), "run", str(ROUNDS), str(STEPS), *slow]
    with tempfile.TemporaryDirectory() as files, network(2, Path(files)) as net:
        for host in net.hosts:
            host.call("ip", "link", "set", "eth0", "mtu", str(FRAME_BYTES))
        net.hub.quality = on_cable
        started = [
            start(
                host,
                f"rank{host.number}",
                [*worker("timed"), *details],
                **by_hand(net, host.number, "10.77.0.1", per_host=1),
            )
            for host in net.hosts
        ]
        ended = ends(started, seconds=200)
    found: dict[str, float] = {}
    for end in ended:
        assert end.code == 0, end.story
        words = end.out.split()
        for mode, seconds in zip(words[::2], words[1::2], strict=True):
            found[mode] = max(found.get(mode, 0.0), float(seconds))
    return found


def row(name: str, kind: str, found: dict[str, float]) -> str:
    """A row of the table: milliseconds, and how many times those of ``normal`` they are."""
    cells = [f"{1e3 * found['normal']:.0f} ms"]
    for mode in ("inorder", "optimal"):
        cells.append(f"{1e3 * found[mode]:.0f} ms ({found[mode] / found['normal']:.2f})")
    return f"| {name} | {kind} | {' | '.join(cells)} |"


def main() -> None:
    """Measure all networks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*worker("timed"), folder, str(WIDTH), "compile"]
        done = finished(command, env=clean_environment(), cwd=ROOT)
        assert done.returncode == 0, done.stderr
        print("| network | | `normal` | `inorder` | `optimal` |\n|---|---|---|---|---|")
        for name, quality in NETWORKS.items():
            real = measured(Path(folder), quality, Quality())
            print(row(name, "frames", real), flush=True)
            if quality != Quality():
                simulated = measured(Path(folder), Quality(), quality)
                print(row(name, "asleep", simulated), flush=True)


if __name__ == "__main__":
    main()

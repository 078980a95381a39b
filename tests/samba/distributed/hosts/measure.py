"""Steps of all modes over rehearsed networks: ``python -m tests.samba.distributed.hosts.measure``.

Two hosts with a replica each train twelve equal layers; prints a table in Markdown.
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
NETWORKS = {
    "nothing added": Quality(),
    "5 ms delay": Quality(delay=0.005),
    "1 ms delay, 200 Mbit/s": Quality(delay=0.001, rate=200e6),
    "5 ms delay, 200 Mbit/s": Quality(delay=0.005, rate=200e6),
}


def measured(folder: Path, quality: Quality) -> dict[str, float]:
    """Seconds of a step by mode, of the slower replica."""
    details = [str(folder), str(ROUNDS), str(STEPS), str(WIDTH)]
    with tempfile.TemporaryDirectory() as files, network(2, Path(files)) as net:
        net.hub.quality = quality
        started = [
            start(
                host,
                f"rank{host.number}",
                [*worker("timed"), *details, "run"],
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


def main() -> None:
    """Measure all networks."""
    with tempfile.TemporaryDirectory() as folder:
        details = [folder, str(ROUNDS), str(STEPS), str(WIDTH)]
        command = [*worker("timed"), *details, "compile"]
        done = finished(command, env=clean_environment(), cwd=ROOT)
        assert done.returncode == 0, done.stderr
        print("| network | normal | inorder | optimal |\n|---|---|---|---|")
        for name, quality in NETWORKS.items():
            found = measured(Path(folder), quality)
            normal = found["normal"]
            cells = [f"{1e3 * s:.0f} ms ({s / normal:.2f})" for s in found.values()]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

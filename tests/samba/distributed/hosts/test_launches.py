"""Two hosts, two replicas on each: they meet, train to the bits of one host, and leave."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.samba.distributed.hosts.hub import Quality
from tests.samba.distributed.hosts.jobs import (
    PER_HOST,
    PORT,
    all_well,
    by_hand,
    copied,
    ends,
    launch,
    same_bits,
    start,
    states,
    training,
    wait_for,
)
from tests.samba.distributed.processes import worker

pytestmark = pytest.mark.slow
SECONDS = 240
"""For the whole job: most of it is the start of four interpreters on the cores of one machine."""
ENV = {"CCL_TIMEOUT": "60"}


def launched(net, run: Path, address: str, **env: str) -> None:
    """Train under a launcher on each host; all ends well."""
    started = [
        start(
            host,
            f"launch{host.number}",
            launch(host.number, address, *training(run)),
            **ENV,
            **env,
        )
        for host in net.hosts
    ]
    all_well(ends(started, seconds=SECONDS), net)


WAYS = {
    "10.77.0.1": Quality(delay=0.1),
    "fd00::1": Quality(loss=0.01),
    "host0": Quality(rate=10e6, delay=0.005),
}
"""What is told as the address of the first host, and what is bad about the network."""


@pytest.mark.parametrize("address", WAYS)
def test_a_launcher_on_each_host_over_a_bad_network(net, folder, tmp_path, wanted, address):
    net.hub.quality = WAYS[address]
    run = copied(folder, tmp_path)
    launched(net, run, address)
    same_bits(states(run), wanted)
    assert net.hub.frames > 0
    assert net.hub.lost > 0 or not net.hub.quality.loss


def test_the_jax_engine_over_ipv6(net, folder, tmp_path):
    run = copied(folder, tmp_path)
    launched(net, run, "fd00::1", SN_DP_ENGINE="jax")
    found = states(run, engine="jax")
    same_bits(found, [found[0]] * len(found))


def test_torchrun_with_two_nodes(net, folder, tmp_path, wanted):
    run = copied(folder, tmp_path)
    started = [
        start(
            host,
            f"torchrun{host.number}",
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *(f"--node-rank={host.number}", f"--nproc-per-node={PER_HOST}"),
                *("--master-addr=10.77.0.1", f"--master-port={PORT}", *training(run)),
            ],
            **ENV,
        )
        for host in net.hosts
    ]
    all_well(ends(started, seconds=SECONDS), net)
    same_bits(states(run), wanted)


def test_mpirun_with_two_hosts(net, folder, tmp_path, wanted):
    """MPICH starts its proxies by a script in the place of ssh, from the first host's network."""
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("MPICH, of the extra 'test', is not installed")
    run = copied(folder, tmp_path)
    first = net.hosts[0]
    enter = [" ".join(host.inside()) for host in net.hosts]
    script = tmp_path / "ssh.sh"
    script.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'  # options for ssh
        "host=$1; shift\n"
        f'case $host in host0) exec {enter[0]} sh -c "$*" ;; '
        f'host1) exec {enter[1]} sh -c "$*" ;; esac\n'
        "exit 1\n"
    )
    script.chmod(0o755)
    command = [
        *(str(mpirun), "-hosts", "host0,host1", "-ppn", str(PER_HOST), "-np", "4"),
        *("-launcher", "ssh", "-launcher-exec", str(script), "-localhost", "10.77.0.1"),
        *("-genv", "MASTER_ADDR", "10.77.0.1", "-genv", "MASTER_PORT", str(PORT)),
        *(sys.executable, *training(run)),
    ]
    # Not among the host's processes: from there the script could not reach the other host.
    outside = ["nsenter", f"--net={first.space}", "--", *command]
    started = start(first, "mpirun", outside, outside=True, **ENV)
    all_well(ends([started], seconds=SECONDS), net)
    same_bits(states(run), wanted)


def variables(launcher: str, rank: int) -> dict[str, str]:
    """What a launcher would set for one of four replicas, two on each host."""
    local, node, size = str(rank % PER_HOST), str(rank // PER_HOST), "4"
    master = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(PORT)}
    match launcher:
        case "openmpi":
            return master | {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": size,
                "OMPI_COMM_WORLD_LOCAL_RANK": local,
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(PER_HOST),
            }
        case "slurm":  # it tells the first host, and the port follows from the job
            return {
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": size,
                "SLURM_LOCALID": local,
                "SLURM_NODEID": node,
                "SLURM_JOB_ID": "77",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NODELIST": "host[0-1]",
                "SLURM_STEP_NUM_NODES": "2",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
            }
    raise AssertionError(launcher)


@pytest.mark.parametrize("launcher", ["openmpi", "slurm"])
def test_variables_of_launchers_that_are_not_here(net, folder, tmp_path, wanted, launcher):
    """Open MPI and Slurm are not installed: what they would set is set by hand."""
    run = copied(folder, tmp_path)
    started = [
        start(
            net.hosts[rank // PER_HOST],
            f"rank{rank}",
            [sys.executable, *training(run)],
            **variables(launcher, rank),
            **ENV,
        )
        for rank in range(4)
    ]
    all_well(ends(started, seconds=SECONDS), net)
    same_bits(states(run), wanted)


@pytest.mark.parametrize(
    ("master", "interface", "asked"),
    [
        ("10.77.0.1", "", "eth0"),
        ("fd00::1", "", "eth0"),
        ("host0", "", "eth0"),
        ("host0-v6", "", "eth0"),
        ("10.77.1.1", "", "eth1"),
        ("10.77.0.1", "eth1", "eth1"),
    ],
)
def test_nothing_listens_elsewhere(net, tmp_path, master, interface, asked):
    """The store is at the address that was asked for alone, gloo at the interface."""
    env = ENV | ({"GLOO_SOCKET_IFNAME": interface} if interface else {})
    command = [*worker("listens"), str(tmp_path)]
    started = [
        start(host, f"rank{n}", command, **by_hand(net, n, master, per_host=1), **env)
        for n, host in enumerate(net.hosts)
    ]
    wait_for([tmp_path / "rank0", tmp_path / "rank1"], started)
    found = [host.listening() for host in net.hosts]
    (tmp_path / "seen").touch()
    all_well(ends(started, seconds=SECONDS), net)
    names = {"host0": "10.77.0.1", "host0-v6": "fd00::1"}
    meant = names[master] if master in names else str(master)
    store = f"[{meant}]:{PORT}" if ":" in meant else f"{meant}:{PORT}"
    assert store in found[0]
    for host, listening in zip(net.hosts, found, strict=True):
        gloo = {socket.rsplit(":", 1)[0] for socket in listening if socket != store}
        # What the script's own group takes without the variable is what the host's name means.
        named = set() if interface else {host.address("eth0")}
        version = 6 if ":" in meant else 4
        address = host.address(asked, version=version)
        wanted = {f"[{address}]" if version == 6 else address}
        assert wanted <= gloo <= wanted | named, listening

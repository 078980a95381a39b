"""Hosts rehearsed on one machine: each a network, a process table and a name of its own.

Their namespaces have no names: they are gone with their last process, and each host's processes
are killed by the kernel with its first one, which ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import warm
from tests.processes import ended
from tests.samba.distributed.hosts.hub import Hub
from tests.samba.distributed.processes import ROOT

INTERFACES = ("eth0", "eth1")
_UNSHARE = (
    # Not by a function of the new process: that forks, which a process with jax's threads must not.
    *("setpriv", "--pdeathsig=KILL"),
    *("unshare", "--net", "--pid", "--mount", "--uts", "--fork"),
    *("--kill-child=KILL", "--mount-proc"),
)
_PATIENCE = 60.0


Process = subprocess.Popen[bytes] | warm.Warm


class Refused(Exception):
    """The kernel does not let this process make hosts.

    Attributes:
        reason: What it refused, and why.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Host:
    """A host.

    Args:
        number: Its number, from 0.
        folder: Where its files are.
        names: Text for its ``/etc/hosts``.
    """

    def __init__(self, number: int, folder: Path, names: str) -> None:
        self.number, self.name = number, f"host{number}"
        self._folder = folder / self.name
        (self._folder / "tmp").mkdir(parents=True)
        known = self._folder / "hosts"
        known.write_text(names)
        first = (
            f"hostname {self.name} && mount --bind {known} /etc/hosts && ip link set lo up "
            "&& echo up && exec sleep infinity"
        )
        self._keeper = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", first],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None  # both are pipes
        if self._keeper.stdout.readline() != "up\n":
            reason = self._keeper.stderr.read().strip()
            self.end()
            raise Refused(reason or "unshare: no reason given")
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children")
        self.first = int(children.read_text().split()[0])
        self.space = f"/proc/{self.first}/ns/net"
        self.inode = os.stat(self.space).st_ino

    def address(self, interface: str = "eth0", *, version: int = 4) -> str:
        """Its address at an interface."""
        number = INTERFACES.index(interface)
        if version == 6:
            return str(ipaddress.ip_address(f"fd00:{number}::{self.number + 1}"))
        return f"10.77.{number}.{self.number + 1}"

    def inside(self, *command: str) -> list[str]:
        """A command as it is to be started outside, to run on this host."""
        enter = ("nsenter", "-t", str(self.first), "--net", "--pid", "--mount", "--uts")
        return [*enter, "--", *command]

    def call(self, *command: str, seconds: float = _PATIENCE) -> str:
        """Run a short command on this host; returns what it printed."""
        done = self._done(command, seconds)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def give(self, interface: str) -> None:
        """Give an interface its addresses.

        Raises:
            Refused: If the kernel has no IPv6, say.
        """
        inet, inet6 = (self.address(interface, version=version) for version in (4, 6))
        for command in (
            ("ip", "address", "add", f"{inet}/24", "dev", interface),
            ("ip", "-6", "address", "add", f"{inet6}/64", "dev", interface, "nodad"),
            ("ip", "link", "set", interface, "up"),
        ):
            done = self._done(command, _PATIENCE)
            if done.returncode:
                raise Refused(f"{' '.join(command)}: {done.stderr.strip()}")

    def _done(self, command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.inside(*command), capture_output=True, text=True, timeout=seconds
        )

    def start(
        self, command: Sequence[str], env: Mapping[str, str], log: str, *, outside: bool = False
    ) -> Process:
        """Start a command; what it prints goes to ``LOG.out`` and ``LOG.err``.

        Args:
            command: The command; one of Python is forked from a process that has torch and jax,
                and so are those of Python that it starts.
            env: All of its environment but the folder for temporary files.
            log: Name of the files.
            outside: Whether the command enters the host by itself.
        """
        env = {**env, "TMPDIR": str(self._folder / "tmp")}
        with (
            (self._folder / f"{log}.out").open("wb") as out,
            (self._folder / f"{log}.err").open("wb") as err,
        ):
            if command[0] == sys.executable and not outside:
                return warm.start(
                    command,
                    cwd=ROOT,
                    env=env | warm.for_children(self.first),
                    stdout=out.fileno(),
                    stderr=err.fileno(),
                    new_session=True,
                    host=self.first,
                )
            return subprocess.Popen(
                command if outside else self.inside(*command),
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def said(self, log: str) -> tuple[str, str]:
        """What a command has printed so far, on its output and among its errors."""
        out, err = (self._folder / f"{log}.{kind}" for kind in ("out", "err"))
        return out.read_text(errors="replace"), err.read_text(errors="replace")

    def listening(self) -> list[str]:
        """Addresses at which anybody listens on this host, with their ports."""
        lines = self.call("ss", "--no-header", "--listening", "--tcp", "--numeric").splitlines()
        return sorted(line.split()[3] for line in lines)

    def processes(self) -> list[int]:
        """All of its processes but the two that keep it."""
        keep = (self.first, self._keeper.pid)
        return [pid for pid in in_space(self.inode) if pid not in keep]

    def end(self) -> None:
        """Kill all of its processes."""
        self._keeper.kill()
        ended(self._keeper)
        for pipe in (self._keeper.stdout, self._keeper.stderr):
            if pipe is not None:
                pipe.close()


class Network:
    """Hosts with a cable each.

    Args:
        hosts: The hosts.
        hubs: Their networks, by name of the interface.
    """

    def __init__(self, hosts: Sequence[Host], hubs: Mapping[str, Hub]) -> None:
        self.hosts, self.hubs = hosts, hubs

    @property
    def hub(self) -> Hub:
        """The first network."""
        return self.hubs[INTERFACES[0]]

    def vanish(self, number: int) -> None:
        """Take a host from all networks: no packet tells the others."""
        for hub in self.hubs.values():
            hub.unplug(number)


@contextmanager
def network(size: int, folder: Path) -> Iterator[Network]:
    """Make hosts; at the end all their processes and namespaces are gone.

    Args:
        size: How many hosts.
        folder: Where their files are.

    Returns:
        A context that yields them.

    Raises:
        Refused: If the kernel does not let this process.
    """
    lines = [f"10.77.0.{n + 1} host{n}\nfd00:0::{n + 1} host{n}-v6" for n in range(size)]
    names = "\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""])
    hosts: list[Host] = []
    try:
        for number in range(size):
            hosts.append(Host(number, folder, names))
        with ExitStack() as stack:
            hubs: dict[str, Hub] = {}
            for name in INTERFACES:
                try:
                    hubs[name] = stack.enter_context(Hub(name, [host.space for host in hosts]))
                except OSError as error:
                    raise Refused(f"no interface by /dev/net/tun: {error}") from error
                for host in hosts:
                    host.give(name)
            yield Network(hosts, hubs)
    finally:
        for host in hosts:
            host.end()
        _swept({host.inode for host in hosts})


def in_space(inode: int) -> list[int]:
    """Processes in a network namespace, of the whole machine."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}/ns/net").st_ino == inode:
                    found.append(int(name))
    return found


def _swept(inodes: set[int]) -> None:
    """Nothing is left of some namespaces: they end with their last process."""
    end = time.monotonic() + _PATIENCE
    while left := [pid for inode in inodes for pid in in_space(inode)]:
        assert time.monotonic() < end, f"processes left on hosts: {left}"
        time.sleep(0.05)

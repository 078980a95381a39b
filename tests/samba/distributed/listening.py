"""The sockets at which processes listen, read from /proc; and where replicas choose to."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from samba.distributed import addresses

_LISTENS = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
"""The state of a socket that takes what anybody sends, by protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A socket that listens.

    Args:
        protocol: ``"tcp"``, ``"tcp6"``, ``"udp"`` or ``"udp6"``.
        address: Where; of an IPv4 address in IPv6 the former.
        port: At which port.
        inode: The socket, told from all others.
        pids: Processes that hold it.
    """

    protocol: str
    address: str
    port: int
    inode: str
    pids: tuple[int, ...]


def tree(root: int) -> list[int]:
    """A process and all that it, or one of them, has started."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def listening(pids: Iterable[int]) -> list[Listening]:
    """The sockets at which processes listen."""
    holders: dict[str, list[int]] = {}
    for pid in pids:
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        for link in dict.fromkeys(links):
            if link.startswith("socket:["):
                holders.setdefault(link[8:-1], []).append(pid)
    found = []
    for protocol, state in _LISTENS.items():
        table = Path(f"/proc/net/{protocol}")
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == state and fields[9] in holders:
                address, port = fields[1].split(":")
                found.append(
                    Listening(
                        protocol=protocol,
                        address=_address(address),
                        port=int(port, 16),
                        inode=fields[9],
                        pids=tuple(holders[fields[9]]),
                    )
                )
    return found


def _address(text: str) -> str:
    """An address as the kernel shows it: hexadecimal, in words of four bytes of this machine."""
    words = (int(text[i : i + 8], 16) for i in range(0, len(text), 8))
    whole = ipaddress.ip_address(b"".join(socket.htonl(w).to_bytes(4, "big") for w in words))
    mapped = whole.ipv4_mapped if isinstance(whole, ipaddress.IPv6Address) else None
    return str(mapped or whole)


def chosen(stores: Sequence[Any], host: str, spaces: Sequence[str]) -> list[addresses.Place]:
    """Where replicas in these network spaces choose to listen, each with its client of a store."""
    of_thread = threading.local()

    def choose(rank: int) -> addresses.Place:
        of_thread.space = spaces[rank]
        return addresses.choose_place(stores[rank], host, rank=rank, size=len(spaces))

    ranks = range(len(spaces))
    with (
        pytest.MonkeyPatch.context() as patch,
        concurrent.futures.ThreadPoolExecutor(len(spaces)) as pool,
    ):
        patch.setattr(addresses, "network_space", lambda: of_thread.space)
        return [one.result(30) for one in [pool.submit(choose, rank) for rank in ranks]]

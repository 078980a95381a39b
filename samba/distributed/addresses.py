"""Where replicas listen: at the loopback, or where a job of several hosts was asked to.

Nothing that listens is authenticated or encrypted, so nothing listens at more addresses than the
job needs. torch's store would listen at all of them, whatever host it is given, and gloo at
whatever the host's name means.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from samba.distributed.environment import Launch
from samba.distributed.errors import CannotListen
from samba.distributed.stores import Store

LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
"""gloo's own variable: names of interfaces, with commas between them."""
_LOOPBACK_INTERFACES = ("lo", "lo0")
_ANY_PORT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one replica listens for the others.

    Args:
        address: Numeric address of this host; empty if nobody knows which the others reach.
        interfaces: The interfaces that gloo was asked to use instead.
        shared: Whether all replicas are on this host.
    """

    address: str
    interfaces: tuple[str, ...]
    shared: bool

    @property
    def hostname(self) -> str:
        """The address for gloo; empty if it has to look for itself."""
        return "" if self.interfaces else self.address


def choose_place(store: Store, host: str, *, rank: int, size: int) -> Place:
    """Choose where this replica listens: at the loopback if all of them are on this host.

    Args:
        store: A store that all replicas use for this alone.
        host: The host at which they met; empty if nobody knows it.
        rank: Number of this replica.
        size: How many there are.

    Raises:
        CannotListen: If an interface is asked for that this host does not have, or there is no
            way to the host at which they met.
    """
    interfaces = asked_interfaces()
    shared = _on_one_host(store, rank, size)
    address = facing(host) if host else ""
    if shared:
        address = address if is_loopback(address) else LOOPBACK
    elif is_loopback(address):
        if not interfaces:
            raise _out_of_reach(host, address)
        address = ""
    return Place(address=address, interfaces=interfaces, shared=shared)


def _on_one_host(store: Store, rank: int, size: int) -> bool:
    """Whether all replicas are on this host: a few requests of each, however many there are."""
    mine = network_space()
    store.set(_space(rank), mine)
    if store.get(_space(0)).decode() != mine:
        store.add("elsewhere", 1)
    if store.add("came", 1) == size:  # nobody adds to "elsewhere" any more
        store.set("on one host", str(store.add("elsewhere", 0) == 0))
    return store.get("on one host") == b"True"  # waits for the last to come


def absent(store: Store, size: int) -> tuple[int, ...]:
    """The replicas that have not come to choose a place; none if the store does not answer.

    Args:
        store: The store with which others are in :func:`choose_place`.
        size: How many replicas there are.
    """
    with contextlib.suppress(RuntimeError):
        return tuple(rank for rank in range(size) if not store.check([_space(rank)]))
    return ()


def _space(rank: int) -> str:
    return f"space/{rank}"


def _out_of_reach(host: str, address: str) -> CannotListen:
    return CannotListen(
        what=f"MASTER_ADDR={host}",
        address=address,
        reason="only this host can reach that address, and other hosts have replicas too",
        hint="Set MASTER_ADDR to an address of rank 0's host that the other hosts can reach.",
    )


def is_loopback(address: str) -> bool:
    """Whether a numeric address is of the host itself, and of no use to another one.

    Example:
        >>> is_loopback("127.0.1.1"), is_loopback("::1"), is_loopback("10.0.0.1"), is_loopback("a")
        (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def at(host: str, port: int) -> str:
    """A host and a port in one text.

    Example:
        >>> at("10.0.0.1", 80), at("::1", 80)
        ('10.0.0.1:80', '[::1]:80')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def meeting_host(launch: Launch, *, served: bool) -> str:
    """The host at which all replicas meet, where the launcher gives an address.

    Args:
        launch: Which replica this is, with an address.
        served: Whether somebody else listens there already.

    Returns:
        A loopback address if the host's name means one or all replicas are known to be on one
        host; else the host as the launcher names it.

    Raises:
        CannotListen: If replicas on other hosts would look for this one at the loopback.
    """
    assert launch.address is not None
    host, port = launch.address
    numeric = _addresses(host, port)
    if numeric and all(is_loopback(address) for address in numeric):
        if not served and 0 < launch.local_size < launch.size:
            raise _out_of_reach(host, at(numeric[0], port))
        return numeric[0]
    if not served and launch.local_size == launch.size:
        return LOOPBACK
    return host


def is_known(host: str) -> bool:
    """Whether this host has an address for the name of another one.

    Example:
        >>> is_known("127.0.0.1")
        True
    """
    return bool(_addresses(host, _ANY_PORT))


def _addresses(host: str, port: int) -> list[str]:
    """Numeric addresses of a host, those of IPv4 first; none if it has no such name."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    numeric = dict.fromkeys(str(info[4][0]) for info in infos)
    return sorted(numeric, key=lambda address: ":" in address)


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens at one address of this host.

    Args:
        host: The address, or a name of this host.
        port: The port; 0 for any that is free.

    Raises:
        CannotListen: If this host has no such address, or the port is taken.
    """
    what = f"MASTER_ADDR={host}"
    candidates = _addresses(host, port)
    if not candidates:
        raise CannotListen(
            what=what,
            address=at(host, port),
            reason="this host cannot resolve that name",
            hint="Set MASTER_ADDR to the address of rank 0's host.",
        )
    for address in candidates:
        sock = _socket(address, socket.SOCK_STREAM)
        try:
            # As torch does: a job may be started again at the port of the one before.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            sock.listen(socket.SOMAXCONN)
            return sock
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRNOTAVAIL:
                continue
            in_use = error.errno == errno.EADDRINUSE
            raise CannotListen(
                what=f"MASTER_ADDR={host} MASTER_PORT={port}",
                address=at(address, port),
                reason="another program, or another rank 0, listens there"
                if in_use
                else error.strerror or str(error),
                hint="Set MASTER_PORT to a free port of rank 0's host, for all replicas.",
            ) from error
    raise CannotListen(
        what=what,
        address=at(candidates[0], port),
        reason=f"this host, {socket.gethostname()}, has no such address",
        hint="Start rank 0 on the host that MASTER_ADDR names, or set MASTER_ADDR to an address "
        "of rank 0's host.",
    )


def facing(host: str) -> str:
    """The address of this host from which it reaches another one.

    Args:
        host: The other one; if it is this one, its address is the answer.

    Raises:
        CannotListen: If there is no way there.
    """
    reason = "this host cannot resolve that name"
    for address in _addresses(host, _ANY_PORT):
        with contextlib.suppress(OSError), _socket(address, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return address
        with _socket(address, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, _ANY_PORT))  # sends nothing
                return str(probe.getsockname()[0])
            except OSError as error:
                reason = error.strerror or str(error)
    raise CannotListen(
        what=f"the connection to {host}",
        address=host,
        reason=reason,
        hint=f"Set {INTERFACE_VARIABLE} to the interface that faces the other hosts.",
    )


def _socket(address: str, kind: socket.SocketKind) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)


def asked_interfaces() -> tuple[str, ...]:
    """The interfaces that ``GLOO_SOCKET_IFNAME`` asks for; none without it.

    Raises:
        CannotListen: If this host does not have one of them.
    """
    text = os.environ.get(INTERFACE_VARIABLE, "")
    names = tuple(text.split(",")) if text else ()
    if not names:
        return ()
    present = [name for _, name in socket.if_nameindex()]
    missing = [name for name in names if name not in present]
    if missing:
        raise CannotListen(
            what=f"{INTERFACE_VARIABLE}={text}",
            address=", ".join(map(repr, missing)),
            reason=f"this host, {socket.gethostname()}, has the interfaces {', '.join(present)}",
            hint="Name one of them, or leave the variable out.",
        )
    return names


def prefer_loopback() -> None:
    """Let groups that a script makes of its own listen at the loopback too.

    They are torch's, and where they listen is to be told in this variable only.
    """
    if os.environ.get(INTERFACE_VARIABLE):
        return
    present = [name for _, name in socket.if_nameindex()]
    for name in _LOOPBACK_INTERFACES:
        if name in present:
            os.environ[INTERFACE_VARIABLE] = name
            return


def network_space() -> str:
    """An identifier of the loopback interface, equal in exactly the processes that share it."""
    return namespace("net") or f"{sys.platform}/{socket.gethostname()}/{uuid.getnode():x}"


def namespace(kind: str) -> str:
    """An identifier of a Linux namespace, equal in all its processes; empty on other systems.

    Args:
        kind: ``"net"`` or ``"pid"``.
    """
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(f'/proc/self/ns/{kind}').st_ino}"
    return ""
